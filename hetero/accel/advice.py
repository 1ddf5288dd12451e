"""`hetero advise`: what another machine would do with the calls of a script that runs here.

The script runs unchanged, all by the plain libraries. Each call that hetero could do is noted with
the line it is made from, and whether its large operands were written to since the call before, as
the system reports it page by page. Afterwards the same problems are priced by the other machine's
profile, copies over its link included.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from hetero import accel, registry
from hetero.accel import __main__ as running
from hetero.accel.loading import GAIN, LOADING
from hetero.accel.session import Attempt, Session, calls_in_words, copies_of, line_of_script
from hetero.arrays import describe_used, kept
from hetero.calling.planner import Machine, use
from hetero.evaluation import calls
from hetero.pricing.plan import CPU, Candidate
from hetero.registry.problem import Problem
from hetero.times import readable


@dataclass
class Line:
    """All calls of one size from one line of a script, here and there."""

    place: str
    call: str  # the function with shapes and dtypes
    count: int = 0
    here: float = 0.0  # seconds of all calls, measured
    iterations: int = 0  # of all solves
    # For each operand the number of calls before which nobody had written to it.
    unchanged: list[int] = field(default_factory=list)
    way: str = ""  # what hetero would do each call by; where it cannot, the notes say why
    each: float = 0.0  # seconds of a call there by that, on average
    # Seconds of all calls there, with hetero.accel and without. Where the profile has no price of
    # the plain library, its calls take as long there as here.
    there: float = 0.0
    plain: float = 0.0
    notes: list[str] = field(default_factory=list)  # what to keep, and what would change it

    def __str__(self) -> str:
        called, here, there = calls_in_words(self.count), readable(self.here), readable(self.there)
        lines = [f"{self.place}: {self.call}: {called}, {here} here"]
        if self.way:
            gain = f"{self.plain / self.there:.3g} times as fast as without"
            lines.append(f"with hetero {there}, {gain}; {readable(self.each)} a call by {self.way}")
        return "\n   ".join([*lines, *self.notes])


@dataclass
class Advice:
    """The lines of a script, those that take most time here first."""

    machine: str  # the profile's name
    own: bool  # it is this machine: the plain library takes as long as was measured
    lines: list[Line]
    rest: float  # seconds of what hetero does not do, measured here, and there as well
    loading: float  # seconds of ``there`` in which hetero is loaded; 0 where it is not
    here: float  # seconds of the whole script
    there: float  # the same there by hetero.accel
    plain: float  # and there without

    def __str__(self) -> str:
        here, there, plain, rest, loading = map(
            readable, (self.here, self.there, self.plain, self.rest, self.loading)
        )
        whole = f"the whole script: {here} here; on {self.machine} {plain} without hetero, {there} "
        whole += f"with it: {self.plain / self.there:.3g} times as fast. {rest} are other work, "
        whole += f"which lasts there as long as here, as do calls without a price; {loading} load "
        whole += "hetero"
        if obstacle := kept.obstacle():
            whole += f". Whether operands change is not known here: {obstacle}"
        return "\n".join([*map(str, self.lines), whole])


class Watching(Session):
    """Notes each call, and leaves it to the plain library."""

    def __init__(self, *options: Any, **more: Any) -> None:
        super().__init__(*options, **more)
        # A line, its problem, and what is known of its calls but for their operands.
        self.noted: dict[tuple[str, str], tuple[Line, Problem | None, Attempt]] = {}
        self.noting = 0.0  # seconds

    def run(self, function: str, attempt: Attempt, plain: Callable[[], Any]) -> Any:
        """The plain library's result."""
        rounds: list[None] = []
        if function.endswith(".cg"):
            asked = plain.keywords.get("callback") or (lambda x: None)
            plain.keywords["callback"] = lambda x: (rounds.append(None), asked(x))
        result, seconds = self._timed(plain)
        begin, key = time.perf_counter(), (line_of_script(), f"{function} {attempt.what}")
        if key not in self.noted:
            plan, (code, why) = None, attempt.obstacle or ("", "")
            if code in ("", "no-device"):
                with use(watch=False):  # the plan counts no use of the operands
                    plan = attempt.plan()
            line = Line(*key, unchanged=[0] * len(attempt.operands))
            if plan:  # elsewhere operands have no copies as on devices here
                inputs = tuple(o.unkept() for o in plan.problem.inputs)
                plan = replace(plan.problem, inputs=inputs)
            else:
                line.notes.append(f"left alone: {why}")
            self.noted[key] = line, plan, attempt._replace(plan=None, compute=None, operands=())
        line, *_ = self.noted[key]
        line.count, line.here = line.count + 1, line.here + seconds
        line.iterations += getattr(result, "n_iter_", len(rounds))
        for position, array in enumerate(attempt.operands):
            used = describe_used(array, attempt.operands[0] if position else None)
            if used.kept is not None:
                used.kept.uses += 1
                line.unchanged[position] += 1
        self.noting += time.perf_counter() - begin
        return result


def advise(
    command: list[str], on: str | None, module: bool = False
) -> tuple[Advice, BaseException | None]:
    """Run a script, or a module, with its arguments here, and price its calls on another machine,
    or on this one.

    ``on`` is a profile that comes with hetero, such as "h100", or a profile's file; ValueError if
    there is none. Gives what the script ended with, too: an exception, SystemExit or None.
    """
    try:
        constants, devices = calls.known(on)
    except ValueError as error:
        raise ValueError(f"--on: {error}") from None
    ending, begin = None, time.perf_counter()
    with accel.install(recording=True, kind=Watching) as installed:
        session = installed.session
        try:
            running.run(module, command)
        except (Exception, SystemExit) as error:
            ending = error
    rest = time.perf_counter() - begin - session.noting
    lines = sorted((line for line, *_ in session.noted.values()), key=lambda line: -line.here)
    rest -= sum(line.here for line in lines)
    machine = Machine(constants, devices)
    for line, problem, attempt in session.noted.values():
        line.plain = line.there = line.here
        if problem is not None:
            _price(line, problem, attempt, machine, own=on is None)
    has_gpu = any(n != CPU and not info.get("is_host_cpu") for n, info in devices.items())
    # In a second run, which loads hetero for the first call, or never.
    loading = LOADING[has_gpu]
    if sum(line.plain - line.there for line in lines) < GAIN * loading:
        loading = 0.0
        for line in lines:
            line.there = line.plain
    sums = {n: rest + sum(getattr(line, n) for line in lines) for n in ("here", "there", "plain")}
    sums["there"] += loading
    return Advice(constants.name, on is None, lines, rest, loading, **sums), ending


def _price(line: Line, problem: Problem, attempt: Attempt, machine: Machine, own: bool) -> None:
    """Fill in what a line's calls take on a machine; what was measured on it holds."""
    each, count = round(line.iterations / line.count), line.count
    for name in ("iterations", "maxiter"):  # as many as here, on average
        if each and hasattr(problem.options, name):
            problem = replace(problem, options=problem.options._replace(**{name: each}))
    if not (priced := _priced(problem, machine)):
        return
    chosen, host = priced[0], next((c for c in priced if c.device == CPU), None)
    elsewhere = next((c for c in priced if c.device != CPU), None)
    if host and not own and attempt.is_plain(host):
        line.plain = count * host.seconds
    every = line.plain if attempt.is_plain(chosen) else count * chosen.seconds
    large = [  # not one that is new in most calls
        i for i, n in enumerate(line.unchanged)
        if 2 * n > max(line.unchanged) and problem.inputs[i].nbytes >= 1 << 20
    ]  # fmt: skip
    if large and elsewhere and registry.operation(problem.operation).keeps(problem):
        again, names = min(line.unchanged[i] for i in large), {*machine.devices()} - {CPU}
        inputs = [o._replace(copies=(*names,) * (i in large)) for i, o in enumerate(problem.inputs)]
        there, *_ = _priced(replace(problem, inputs=tuple(inputs)), machine)
        moved = max(elsewhere.seconds - chosen.seconds, 0.0)
        together = (count - again) * chosen.seconds + again * there.seconds + moved
        if together < every:
            chosen, every = there, together
            size = sum(problem.inputs[i].nbytes for i in large) / 1e6
            line.notes.append(
                f"operand {' and '.join(str(i + 1) for i in large)}, {size:.3g} MB, is unchanged "
                f"in {again} of {count} calls: it stays there; hetero.keep promises so"
            )
    line.each, line.there = every / count, min(every, line.plain)
    line.way = f"{chosen.method} on {chosen.device}"
    if chosen.device == CPU and elsewhere:
        apart = readable(elsewhere.seconds - copies_of(elsewhere))
        text = f"{elsewhere.method} on {elsewhere.device} takes {readable(elsewhere.seconds)} a "
        line.notes.append(f"{text}call, {apart} where the operands are there")


def _priced(problem: Problem, machine: Machine) -> list[Candidate]:
    """The candidates with a price, the fastest one first."""
    return [c for c in machine.plan(problem).candidates if c.reason is None and c.seconds]
