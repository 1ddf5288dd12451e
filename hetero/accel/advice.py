"""`hetero advise`: what another machine would do with the calls of a script that runs here.

The script runs unchanged, all by the plain libraries. Each call that hetero could do is noted with
the line it is made from, and whether its large operands were written to since the call before, as
the system reports it page by page. Afterwards the same problems are priced by the other machine's
profile, copies over its link included.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hetero import registry
from hetero.accel import __main__ as running
from hetero.accel import install, uninstall
from hetero.accel.notes import calls_in_words
from hetero.accel.session import LOADING, MEASURED, SAMPLES, Attempt, copies_of
from hetero.arrays import describe_used, kept
from hetero.calling.planner import OtherMachine, use
from hetero.evaluation import calls
from hetero.pricing.plan import CPU, Candidate
from hetero.registry.problem import Problem
from hetero.times import readable

_NOTABLE = 0.8  # times as long, at most: another way that is worth a line


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
    left: int = 0  # calls that hetero.accel leaves to the library although that is faster
    # Seconds of all calls there, with hetero.accel and without. Where the profile has no price of
    # the plain library, its calls take as long there as here.
    there: float = 0.0
    plain: float = 0.0
    # What to keep; what float32, or a copy that is there already, would change.
    notes: list[str] = field(default_factory=list)

    def text(self, where: str) -> str:
        """What is printed; ``where``: "there", or "with hetero" of this machine."""
        lines = [
            f"{self.place}: {self.call}: {calls_in_words(self.count)}, {readable(self.here)} here"
        ]
        if self.way:
            gain = f"{self.plain / self.there:.3g} times as fast".removeprefix("1 times ")
            each = f"{readable(self.each)} a call by {self.way}"
            lines.append(f"{where} {readable(self.there)}, {gain} as without hetero; {each}")
        if self.left:
            text = f"{calls_in_words(self.left)} of these are left to the library: those before "
            lines.append(text + "hetero is loaded, and the first of a size, which are measured")
        return "\n   ".join([*lines, *self.notes])


# A line, its problem, and what is known of its calls but for their operands.
_Noted = tuple[Line, Problem | None, Attempt]


@dataclass
class Advice:
    """The lines of a script, those that take most time here first."""

    machine: str  # the profile's name
    own: bool  # it is this machine: the plain library takes as long as was measured
    lines: list[Line]
    rest: float  # seconds of what hetero does not do, measured here
    loading: float  # seconds of ``there`` in which hetero is loaded; 0 where it is not
    here: float  # seconds of the whole script
    there: float  # the same there by hetero.accel
    plain: float  # and there without

    def __str__(self) -> str:
        here, there, plain, rest = map(readable, (self.here, self.there, self.plain, self.rest))
        gain, with_hetero = f"{self.plain / self.there:.3g} times as fast", f"{there} with hetero"
        if self.loading:
            with_hetero += f", of which {readable(self.loading)} load it"
        if self.own:
            whole = f"the whole script: {here}; {with_hetero}: {gain}. {rest} are other work"
        else:
            whole = f"the whole script: {here} here; on {self.machine} {plain} without hetero, "
            whole += f"{with_hetero}: {gain}. {rest} are other work, which is taken to last there "
            whole += "as long as here, as are calls without a price"
        if obstacle := kept.obstacle():
            whole += f". Whether operands change is not known here: {obstacle}"
        where = "with hetero" if self.own else "there"
        return "\n".join([*(line.text(where) for line in self.lines), whole])


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
    order, rest, ending = _noted(lambda: running.run(module, command))
    machine = OtherMachine(constants, devices)
    others = (info for name, info in devices.items() if name != CPU)
    has_gpu = any(not info.get("is_host_cpu") for info in others)
    noted = {id(each[0]): each for each in order}.values()
    for each in noted:
        _price(*each, machine, own=on is None)
    loading = _done(order, has_gpu)
    lines = sorted((line for line, _, _ in noted), key=lambda line: -line.here)
    sums = {n: rest + sum(getattr(line, n) for line in lines) for n in ("here", "there", "plain")}
    sums["there"] += loading
    return Advice(constants.name, on is None, lines, rest, loading, **sums), ending


def _noted(run: Callable[[], object]) -> tuple[list[_Noted], float, BaseException | None]:
    """Run a script; its calls in their order, the seconds of all else, what it ended with."""
    known: dict[tuple[str, str], _Noted] = {}
    order: list[_Noted] = []
    spent, ending = 0.0, None  # by noting

    def watcher(call: str, attempt: Attempt, place: str, seconds: float, more: int) -> None:
        nonlocal spent
        begin = time.perf_counter()
        if (place, call) not in known:
            problem = _problem(attempt)
            why = [f"left alone: {(attempt.obstacle or '?')[1]}"] if problem is None else []
            line = Line(place, call, unchanged=[0] * len(attempt.operands), notes=why)
            alone = attempt._replace(plan=None, compute=None, operands=())
            known[place, call] = line, problem, alone
        order.append(known[place, call])
        line = order[-1][0]
        line.count += 1
        line.here += seconds
        line.iterations += more
        for position, array in enumerate(attempt.operands):
            used = describe_used(array, attempt.operands[0] if position else None)
            line.unchanged[position] += used.kept is not None
        spent += time.perf_counter() - begin

    begin = time.perf_counter()
    install(watcher=watcher)
    try:
        run()
    except (Exception, SystemExit) as error:
        ending = error
    finally:
        uninstall()
    rest = time.perf_counter() - begin - spent - sum(line.here for line, _, _ in known.values())
    return order, rest, ending


def _problem(attempt: Attempt) -> Problem | None:
    """What is to be priced elsewhere; copies on devices here are none there."""
    with use(watch=False):  # the plan counts no use of the operands
        plan = attempt.plan()
    if plan is None:
        return None
    return replace(plan.problem, inputs=tuple(o.unkept() for o in plan.problem.inputs))


def _done(order: list[_Noted], has_gpu: bool) -> float:
    """Do a script's calls as `Session` would, and sum up what each line's take there; gives the
    seconds of loading hetero, if it is."""
    after, loading = LOADING[has_gpu]
    spent, is_loaded = 0.0, False
    samples: Counter[str] = Counter()
    for line, _, attempt in order:
        plain = line.plain / line.count
        if not line.way or (attempt.obstacle is not None and not has_gpu):
            line.there += plain
            continue
        is_loaded = is_loaded or spent + plain >= after
        is_first = samples[line.call] < SAMPLES and plain < MEASURED and not attempt.again
        if is_loaded and line.each < plain and not is_first:
            line.there += line.each
        else:
            line.there, spent = line.there + plain, spent + plain
            samples[line.call] += 1
            line.left += line.each < plain
    return loading * is_loaded


def _price(
    line: Line, problem: Problem | None, attempt: Attempt, machine: OtherMachine, own: bool
) -> None:
    """Fill in what a line's calls take on a machine; what was measured on it holds."""
    line.plain = line.here
    each = round(line.iterations / line.count)
    for name in ("iterations", "maxiter"):  # as many as here, on average
        if problem is not None and each and hasattr(problem.options, name):
            problem = replace(problem, options=problem.options._replace(**{name: each}))
    chosen = None if problem is None else _best(problem, machine)
    if problem is None or chosen is None:
        return
    by_host = None if own else _best(problem, machine, host=True)
    if by_host is not None and attempt.is_plain(by_host):
        line.plain = line.count * _seconds(by_host)
    all_of_them = line.plain if attempt.is_plain(chosen) else line.count * _seconds(chosen)
    elsewhere = _best(problem, machine, host=False)
    large = [  # not one that is new in most calls
        i for i, n in enumerate(line.unchanged)
        if 2 * n > max(line.unchanged) and problem.inputs[i].nbytes >= 1 << 20
    ]  # fmt: skip
    if large and elsewhere and registry.operation(problem.operation).keeps(problem):
        again = min(line.unchanged[i] for i in large)
        names = tuple(name for name in machine.devices() if name != CPU)
        inputs = [o._replace(copies=names * (i in large)) for i, o in enumerate(problem.inputs)]
        there = _best(replace(problem, inputs=tuple(inputs)), machine)
        moved = max(_seconds(elsewhere) - _seconds(chosen), 0.0)
        together = (line.count - again) * _seconds(chosen) + again * _seconds(there) + moved
        if there is not None and together < all_of_them:
            chosen, all_of_them = there, together
            size = sum(problem.inputs[i].nbytes for i in large) / 1e6
            line.notes.append(
                f"operand {' and '.join(str(i + 1) for i in large)}, {size:.3g} MB, is unchanged "
                f"in {again} of {line.count} calls: it stays there; hetero.keep promises so"
            )
    line.each = all_of_them / line.count
    line.way = f"{chosen.method} on {chosen.device}"
    if chosen.device != CPU and copies_of(chosen) > (1 - _NOTABLE) * _seconds(chosen):
        whole = readable(_seconds(chosen))
        line.notes.append(f"{readable(copies_of(chosen))} of {whole} a call are copies")
    elif chosen.device == CPU and elsewhere is not None:
        whole, alone = _seconds(elsewhere), _seconds(elsewhere) - copies_of(elsewhere)
        text = f"{elsewhere.method} on {elsewhere.device} takes {readable(whole)} a call"
        if alone < _NOTABLE * _seconds(chosen):
            text += f", {readable(alone)} where the operands are there already"
        line.notes.append(text)
    if problem.dtype == "float64":
        narrow = _best(_narrowed(problem), machine)
        if narrow is not None and _seconds(narrow) < _NOTABLE * _seconds(chosen):
            text = f"in float32 {readable(_seconds(narrow))} a call"
            line.notes.append(f"{text} by {narrow.method} on {narrow.device}")


def _best(problem: Problem, machine: OtherMachine, host: bool | None = None) -> Candidate | None:
    """The fastest priced candidate; of the CPU's alone, or of devices' alone, where asked so."""
    priced = (c for c in machine.plan(problem).candidates if c.reason is None and c.seconds)
    return next((c for c in priced if host is None or host == (c.device == CPU)), None)


def _seconds(candidate: Candidate | None) -> float:
    return float("inf") if candidate is None else candidate.seconds or 0.0


def _narrowed(problem: Problem) -> Problem:
    """The problem in float32."""

    def narrowed(o: Any) -> Any:
        if o.dtype != np.float64:
            return o
        return o._replace(dtype=np.dtype("f4"), strides=tuple(n // 2 for n in o.strides))

    inputs = tuple(map(narrowed, problem.inputs))
    return replace(problem, dtype="float32", inputs=inputs, output=narrowed(problem.output))
