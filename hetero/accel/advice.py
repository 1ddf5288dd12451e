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

import numpy as np

from hetero import registry
from hetero.accel import __main__ as running
from hetero.accel import install, uninstall
from hetero.accel.session import LOADING, Attempt
from hetero.arrays import watched
from hetero.calling.planner import OtherMachine
from hetero.evaluation import calls
from hetero.pricing.plan import CPU, Candidate
from hetero.registry.problem import Problem
from hetero.times import readable

_NOTABLE = 0.8  # times as long, at most: another way that is worth a line


@dataclass
class Line:
    """All calls of one size from one line of a script, here and there.

    Attributes
    ----------
    place, call : str
        Where it stands; the function with shapes and dtypes.
    count : int
    here : float
        Seconds of all calls, measured.
    iterations : int
        Of all solves; 0 of what has none.
    unchanged : list of int
        For each operand the number of calls before which nobody had written to it.
    way : str
        What does each call there; "" where hetero cannot, with the reason in ``notes``.
    there, plain : float
        Seconds of all calls there, with hetero and without. Where the profile has no price of the
        plain library, its calls take as long there as here.
    notes : list of str
        What to keep; what float32, or a copy that is there already, would change.
    """

    place: str
    call: str
    count: int = 0
    here: float = 0.0
    iterations: int = 0
    unchanged: list[int] = field(default_factory=list)
    way: str = ""
    there: float = 0.0
    plain: float = 0.0
    notes: list[str] = field(default_factory=list)

    def text(self, where: str) -> str:
        """What is printed; ``where``: "there", or "with hetero" of this machine."""
        calls = f"{self.count} call{'s' * (self.count != 1)}"
        lines = [f"{self.place}: {self.call}: {calls}, {readable(self.here)} here"]
        if self.way:
            gain = f"{self.plain / self.there:.3g} times as fast".removeprefix("1 times ")
            gain += " as without hetero"
            lines.append(f"{where} {readable(self.there)} by {self.way}, {gain}")
        return "\n   ".join([*lines, *self.notes])


@dataclass
class Advice:
    """The lines of a script, those that take most time here first.

    Attributes
    ----------
    machine : str
        The profile's name.
    own : bool
        Whether it is this machine: the plain library takes as long as was measured.
    lines : list of Line
    rest : float
        Seconds of what hetero does not do, measured here.
    has_gpu : bool
        Whether the machine has one, which decides when hetero is loaded.
    here, there, plain : float
        Seconds of the whole script: here; there by hetero.accel; there without.
    """

    machine: str
    own: bool
    lines: list[Line]
    rest: float
    has_gpu: bool
    here: float = field(init=False)
    there: float = field(init=False)
    plain: float = field(init=False)

    def __post_init__(self) -> None:
        here, there, plain = (
            sum(getattr(line, name) for line in self.lines) for name in ("here", "there", "plain")
        )
        after, loading = LOADING[self.has_gpu]
        if plain > after:
            there = after + loading + (1.0 - after / plain) * there
        else:
            there = plain
        self.here, self.there, self.plain = (self.rest + part for part in (here, there, plain))

    def __str__(self) -> str:
        here, there, plain, rest = map(readable, (self.here, self.there, self.plain, self.rest))
        _, loading = LOADING[self.has_gpu]
        gain, with_hetero = f"{self.plain / self.there:.3g} times as fast", f"{there} with hetero"
        if self.there != self.plain:
            with_hetero += f", of which {readable(loading)} load it"
        if self.own:
            whole = f"the whole script: {here}; {with_hetero}: {gain}. {rest} are other work"
        else:
            whole = f"the whole script: {here} here; on {self.machine} {plain} without hetero, "
            whole += f"{with_hetero}: {gain}. {rest} are other work, which is taken to last there "
            whole += "as long as here, as are calls without a price"
        if obstacle := watched.obstacle():
            whole += f". Whether operands change is not known here: {obstacle}"
        where = "with hetero" if self.own else "there"
        return "\n".join([*(line.text(where) for line in self.lines), whole])


def advise(command: list[str], on: str | None, module: bool = False) -> Advice:
    """Run a script here, and price its calls on another machine, or on this one.

    Parameters
    ----------
    command : list of str
        The script, or a module's name, and its arguments.
    on : str or None
        A profile that comes with hetero, such as "h100", or a profile's file.
    module : bool
        Whether the command begins with a module's name.

    Raises
    ------
    ValueError
        If there is no such profile.
    """
    constants, devices = calls.known(on)
    noted, rest = _noted(lambda: running.run(module, command))
    machine = OtherMachine(constants, devices)
    for line, problem in noted:
        _price(line, problem, machine, own=on is None)
    others = (info for name, info in machine.devices().items() if name != CPU)
    has_gpu = any(not info.get("is_host_cpu") for info in others)
    return Advice(constants.name, on is None, [line for line, _ in noted], rest, has_gpu)


def _noted(run: Callable[[], object]) -> tuple[list[tuple[Line, Problem | None]], float]:
    """Run a script; its calls with their problems, and the seconds of all else."""
    known: dict[tuple[str, str], tuple[Line, Problem | None]] = {}
    spent = 0.0  # by noting

    def watcher(call: str, attempt: Attempt, place: str, seconds: float, more: int) -> None:
        nonlocal spent
        begin = time.perf_counter()
        if (place, call) not in known:
            problem = _problem(attempt)
            why = [f"left alone: {(attempt.obstacle or '?')[1]}"] if problem is None else []
            unchanged = [0] * len(attempt.operands)
            known[place, call] = Line(place, call, unchanged=unchanged, notes=why), problem
        line, _ = known[place, call]
        line.count += 1
        line.here += seconds
        line.iterations += more
        for position, array in enumerate(attempt.operands):
            line.unchanged[position] += watched.note(array) is not None
        spent += time.perf_counter() - begin

    begin = time.perf_counter()
    install(watcher=watcher)
    try:
        run()
    except SystemExit:
        pass
    finally:
        uninstall()
    rest = time.perf_counter() - begin - spent - sum(line.here for line, _ in known.values())
    return sorted(known.values(), key=lambda one: -one[0].here), rest


def _problem(attempt: Attempt) -> Problem | None:
    """What is to be priced elsewhere; copies on devices here are none there."""
    if (plan := attempt.plan()) is None:
        return None
    return replace(plan.problem, inputs=tuple(o.unkept() for o in plan.problem.inputs))


def _price(line: Line, problem: Problem | None, machine: OtherMachine, own: bool) -> None:
    """Fill in what a line's calls take on a machine; what was measured on it holds."""
    line.there = line.plain = line.here
    each = round(line.iterations / line.count)
    for name in ("iterations", "maxiter"):  # as many as here, on average
        if problem is not None and each and hasattr(problem.options, name):
            problem = replace(problem, options=problem.options._replace(**{name: each}))
    chosen = None if problem is None else _best(problem, machine)
    if problem is None or chosen is None:
        return
    is_plain = chosen.device == CPU and chosen.method == "blas"
    line.there = line.here if own and is_plain else line.count * _seconds(chosen)
    blas = None if own else _best(problem, machine, host=True)
    if blas is not None and blas.method == "blas":
        line.plain = line.count * _seconds(blas)
    elsewhere = _best(problem, machine, host=False)
    large = [  # not one that is new in most calls
        i for i, n in enumerate(line.unchanged)
        if 2 * n > max(line.unchanged) and problem.inputs[i].nbytes >= 1 << 20
    ]  # fmt: skip
    if large and elsewhere and registry.operation(problem.operation).keeps(problem):
        again = min(line.unchanged[i] for i in large)
        names = tuple(name for name in machine.devices() if name != CPU)
        inputs = [o._replace(copies=names * (i in large)) for i, o in enumerate(problem.inputs)]
        kept = _best(replace(problem, inputs=tuple(inputs)), machine)
        moved = max(_seconds(elsewhere) - _seconds(chosen), 0.0)
        together = (line.count - again) * _seconds(chosen) + again * _seconds(kept) + moved
        if kept is not None and together < line.there:
            chosen, line.there = kept, together
            size = sum(problem.inputs[i].nbytes for i in large) / 1e6
            line.notes.append(
                f"operand {' and '.join(str(i + 1) for i in large)}, {size:.3g} MB, is unchanged "
                f"in {again} of {line.count} calls: it stays there; hetero.keep promises so"
            )
    line.way = f"{chosen.method} on {chosen.device}"
    if chosen.device != CPU and _copies(chosen) > (1 - _NOTABLE) * _seconds(chosen):
        whole = readable(_seconds(chosen))
        line.notes.append(f"{readable(_copies(chosen))} of {whole} a call are copies")
    elif chosen.device == CPU and elsewhere is not None:
        whole, alone = _seconds(elsewhere), _seconds(elsewhere) - _copies(elsewhere)
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


def _copies(candidate: Candidate) -> float:
    return candidate.terms.get("upload", 0.0) + candidate.terms.get("download", 0.0)


def _narrowed(problem: Problem) -> Problem:
    """The problem in float32."""

    def narrowed(o: Any) -> Any:
        if o.dtype != np.float64:
            return o
        return o._replace(dtype=np.dtype("f4"), strides=tuple(n // 2 for n in o.strides))

    inputs = tuple(map(narrowed, problem.inputs))
    return replace(problem, dtype="float32", inputs=inputs, output=narrowed(problem.output))
