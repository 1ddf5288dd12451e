"""`hetero advise`: what another machine would do with the calls of a script that runs here.

The script runs unchanged, all by the plain libraries. Each call that hetero could do is priced by
the other machine's profile, copies over its link included. A large operand that nobody writes to
between calls, as the system reports it page by page, stays on a device there from its third call
on.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hetero import accel, registry
from hetero.accel import __main__ as running
from hetero.accel.session import GAIN, LOADING, Attempt, Note, Session, inside, price_of, timed
from hetero.arrays import describe_used
from hetero.calling.planner import Machine, use
from hetero.errors import readable
from hetero.evaluation import calls
from hetero.pricing.plan import CPU, Candidate
from hetero.registry import Problem
from hetero.tables import setting

_LARGE = 1 << 20  # bytes of an operand that stays


class Advisor(Session):
    """Prices each call on a machine, by ``own`` this one, and leaves it to the plain library.

    A note's ``saved`` is what the machine would save of the plain library's time there, which is
    that measured here where there is no price.
    """

    def __init__(self, *options: Any, machine: Machine, own: bool, **more: Any) -> None:
        super().__init__(*options, **more)
        self._machine, self._own = machine, own
        self._priced = functools.cache(self._candidates)
        self.here = self.plain = self.saved = self.noting = 0.0  # seconds

    def run(self, function: str, attempt: Attempt, plain: Callable[[], Any]) -> Any:
        """The plain library's result."""
        rounds: list[None] = []
        if function.endswith(".cg"):
            asked = plain.keywords.get("callback") or (lambda x: None)
            plain.keywords["callback"] = lambda x: (rounds.append(None), asked(x))
        with setting(inside, True):
            result, here = timed(plain)
        begin, without, there = time.perf_counter(), here, here
        code, text = attempt.obstacle, ""
        if code in ("", "no-device"):
            code, text = "plain-is-fastest", "there is no price of it"
            priced = self._ways(attempt, getattr(result, "n_iter_", len(rounds)))
            host = next((c for c in priced if c.device == CPU), None)
            if host and not self._own and attempt.is_plain(host):
                without = there = host.seconds
            if priced and not attempt.is_plain(priced[0]) and priced[0].seconds < without:
                code, there = "would-take", priced[0].seconds
            if priced:
                text = f"{readable(without)} without hetero, {price_of(priced[0])}"
        self.here, self.plain = self.here + here, self.plain + without
        self.saved += without - there
        self.note(Note(function, attempt.what, "", code, text, here, without - there))
        self.noting += time.perf_counter() - begin
        return result

    def _ways(self, attempt: Attempt, iterations: int) -> list[Candidate]:
        """The candidates of a call that have a price, the one that would run first."""
        with use(watch=False):  # the plan counts no use of the operands
            problem = attempt.plan().problem
        stay, blocks = [], {}  # of memory that nobody wrote to
        if registry.operation(problem.operation).keeps(problem):
            for i, array in enumerate(attempt.operands):
                known = describe_used(array, attempt.operands[0] if i else None).kept
                if known is not None and problem.inputs[i].nbytes >= _LARGE:
                    stay += [i] * (known.uses > 1)
                    blocks[id(known)] = known
        for known in blocks.values():
            known.uses += 1
        return self._priced(problem, iterations, tuple(stay))

    def _candidates(
        self, problem: Problem, iterations: int, stay: tuple[int, ...]
    ) -> list[Candidate]:
        for name in ("iterations", "maxiter"):
            if iterations and hasattr(problem.options, name):
                options = problem.options._replace(**{name: iterations})
                problem = replace(problem, options=options)
        names = tuple(name for name in self._machine.devices() if name != CPU)
        inputs = enumerate(o.unkept() for o in problem.inputs)  # no copies are as on devices here
        given = tuple(o._replace(copies=names * (i in stay)) for i, o in inputs)
        every = self._machine.plan(replace(problem, inputs=given)).candidates
        return [c for c in every if c.reason is None and c.seconds]


def advise(
    command: list[str], on: str | None, module: bool = False
) -> tuple[dict[str, Any], str, BaseException | None]:
    """Run a script, or a module, with its arguments here, and price its calls on another machine,
    or on this one.

    ``on`` is a profile that comes with hetero, such as "h100", or a profile's file; ValueError if
    there is none. Gives what was found, the same as text, and what the script ended with: an
    exception, SystemExit or None.
    """
    try:
        constants, devices = calls.known(on)
    except ValueError as error:
        raise ValueError(f"--on: {error}") from None
    kind = functools.partial(Advisor, machine=Machine(constants, devices), own=on is None)
    ending, begin = None, time.perf_counter()
    with accel.install(recording=True, kind=kind) as installed:
        session = installed.session
        try:
            running.run(module, command)
        except (Exception, SystemExit) as error:
            ending = error
    rest = time.perf_counter() - begin - session.noting - session.here
    has_gpu = any(n != CPU and not info.get("is_host_cpu") for n, info in devices.items())
    # In a second run, which loads hetero for the first call, or never.
    pays = session.saved >= GAIN * LOADING[has_gpu]
    loading, saved = (LOADING[has_gpu], session.saved) if pays else (0.0, 0.0)
    here, plain = rest + session.here, rest + session.plain
    sums = {"here": here, "plain": plain, "there": plain - saved + loading}
    found = {"machine": constants.name, "own": on is None, "rest": rest, "loading": loading, **sums}
    found["lines"] = [row._asdict() for row in session.book.rows()]
    where = "this machine" if on is None else constants.name
    text = f"{session.book.table()}\nthe whole script: {readable(here)} here; on {where} "
    text += f"{readable(plain)} without hetero, {readable(sums['there'])} with it: "
    text += f"{plain / sums['there']:.3g} times as fast. {readable(rest)} are other work, which "
    text += f"lasts there as long as here; {readable(loading)} load hetero"
    if not pays:
        text += f", which is not loaded to save less than {readable(GAIN * LOADING[has_gpu])}"
    return found, text, ending
