"""Samples of one case: seconds of a table's knots, or of a solve's set-up and step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import inf, prod
from typing import Any

import numpy as np

from hetero.arrays import Operand
from hetero.calibration.measure import Queue, in_turn, measure, monotone, once
from hetero.calibration.sizes import LONGEST, Case, Dims, grid, numbers
from hetero.devices.base import Device
from hetero.devices.storage import Workspace
from hetero.host import cpu
from hetero.ops.solvers.systems import Solve
from hetero.registry import BLAS, Arguments, Problem

TURNS = 16  # places that operands rotate among, against caches
_ROOM = 1 << 30  # bytes for all of them
# Seconds of a call on the CPU, and on a device: shorter ones may be all overhead, and give no rate.
_TELLS = 1e-4, 1e-3
_VERY_LONG = 20.0  # points that few and more steps take together, which are then timed once
_STANDS_OUT = 2.5  # ratio of the solve of more steps to the one of few
_NO_SETUP = 1e-7  # seconds
_LEAST_STEP = 0.1  # of a solve's time per step: a lower bound of its steps' time
_ALLOWED = 1.5  # times what the other samples of a case allow
# Seconds that the host takes longer for a product by cuBLAS than for one of ours: for 512^3 to
# 3000^3 on the hosts of two H200.
_CUBLAS = 9e-6
_AGAIN = 0.25  # of the knots of a case, that are measured once more at most


@dataclass(frozen=True)
class Samples:
    """The measurements of a case: seconds by dimensions."""

    seconds: dict[Dims, float] = field(default_factory=dict)  # of knots; of one step of a solve
    setup: dict[Dims, float] = field(default_factory=dict)  # of a solve without its steps
    doubtful: list[Dims] = field(default_factory=list)  # by the others, and a second look


def take(case: Case, bench: Bench, point: float) -> Samples:
    """Measure a case: ``point`` seconds for each sample.

    Knots of a table that would take too long are left out. Those that the others contradict are
    taken once more after all others, if they are few: else the machine is busy. The faster ones
    count. What takes as long again is no disturbance.
    """
    found = Samples()
    if case.steps is not None:
        prepared(case, tuple(axis[0] for axis in case.axes), bench)(1)  # compiles
    tells = _TELLS[bool(case.place.devices)]
    best = most = 0.0  # volume per second, and seconds, of all calls of a table
    for dims in case.knots if case.steps is None else grid(case.axes):  # from small to large
        if most > tells and prod(dims) / best > case.longest:
            continue
        found.setup[dims], taken = _sample(case, dims, bench, point)
        found.seconds[dims] = taken
        if case.steps is None:
            best, most = max(best, prod(dims) / taken), max(most, taken)
    doubtful, again = contradicted(case, found), list[Dims]()
    _, many, _ = case.steps or (1, 1, 1)
    for dims in doubtful if len(doubtful) <= max(_AGAIN * len(found.seconds), 1) else ():
        setup, taken = _sample(case, dims, bench, point)
        first, second = found.setup[dims] + many * found.seconds[dims], setup + many * taken
        if second < first:
            found.setup[dims], found.seconds[dims] = setup, taken
        if max(first, second) <= _ALLOWED * min(first, second):
            again.append(dims)
    found.doubtful.extend(dims for dims in contradicted(case, found) if dims not in again)
    return found


def contradicted(case: Case, found: Samples) -> list[Dims]:
    """Samples that the others rule out: more work takes no less time, and n times the work at most
    n times as long.

    What a method estimates itself is measured by a device's clock, which other load does not bend.
    """
    if not found.seconds or case.estimated:
        return []
    axes = [sorted(set(extents)) for extents in zip(*found.seconds, strict=True)]
    known = [found.seconds.get(dims, inf) for dims in grid(axes)]
    power = 2 if case.layout == "dense" else 1  # of a matrix's rows in the work
    most = monotone([[n**power for n in axis] for axis in axes], known, _ALLOWED, _ALLOWED)
    pairs = zip(grid(axes), known, most, strict=True)
    return [dims for dims, took, limit in pairs if limit < took < inf]


def _sample(case: Case, dims: Dims, bench: Bench, point: float) -> tuple[float, float]:
    """Seconds of set-up and of one step, of solves of few and of more steps; of tables 0 and those
    of a call.

    Where the steps take less than the set-up, more of them are timed, as long as that does not take
    too long: otherwise noise of the set-up would count as steps. In float32 the residual of too
    many would become subnormal, which is slow.
    """
    if case.steps is None:
        return 0.0, bench.seconds(case, case.problem(*case.knots[dims]), point)
    call, (few, many, most) = prepared(case, dims, bench), case.steps
    most = min(most, few + round(8 * dims[0] ** (1 / 3)))
    if few == many:
        return _NO_SETUP, measure(partial(call, few), budget=point, least=2)
    less, took = (min(once(partial(call, n)) for _ in range(2)) for n in (few, many))  # it compiles
    while many < most and took <= min(_STANDS_OUT * less, LONGEST / 2.0):
        many = min(few + 2 * (many - few), most)
        took = once(partial(call, many))
    least = _LEAST_STEP * took / many
    if less + took <= _VERY_LONG * point or (took - less) / (many - few) <= least:
        less, took = in_turn([partial(call, n) for n in (few, many)], budget=point)
    step = min(max((took - less) / (many - few), _LEAST_STEP * took / many), took / many)
    return max(less - few * step, _NO_SETUP), step


def prepared(case: Case, dims: Dims, bench: Bench) -> Callable[[int], None]:
    """A function that solves with a number of steps, its operands where the method takes them."""
    problem, run, device = case.problem(*dims), case.row.run, bench.device
    arguments = case.arguments(*dims, devices=bench.devices)
    (b,), x, solve = arguments
    # Several devices begin from zero themselves, and results get memory that was used before.
    by_themselves = len(bench.devices) > 1 and isinstance(solve, Solve)
    given, owner = {"from_zero": True} if by_themselves else {}, None
    if device is not None and not case.row.from_host:
        x, owner = device.allocate(b.nbytes)
        there = bench.buffer(b.dtype, 0, b.nbytes)
        arguments = arguments._replace(inputs=(there,), output=x)

    def call(count: int) -> None:
        if owner is not None:  # the closure keeps the buffer alive
            device.fill(x, b.nbytes)
            start = x
        elif by_themselves:  # a new array each time, as in a call
            start = cpu.empty(x.shape, x.dtype)
        else:
            start = np.empty(x.shape, x.dtype)
            start[...] = 0.0
        options = solve._replace(maxiter=count, **given)
        run(bench.devices, problem, arguments._replace(output=start, options=options))
        if device is not None:
            device.synchronize()

    return call


# -- Operands --------------------------------------------------------------------------------------


class Bench:
    """Operands of any shape at one place, and the timing of calls on them.

    There is one device; none for the CPU. For several together, operands are the host's.
    """

    def __init__(self, devices: tuple[Device, ...] = ()) -> None:
        self.devices = devices
        self.device = devices[0] if len(devices) == 1 else None
        self._buffers: dict[tuple[str, int], tuple[Any, int, Workspace]] = {}
        self._queue: Queue | None = None

    def buffer(self, dtype: np.dtype, number: int, nbytes: int) -> Any:
        """Memory on the device for an operand, of the largest size so far, with random numbers: one
        block from the host, repeated there."""
        key = dtype.name, number
        _, before, _ = self._buffers.get(key, (None, 0, None))
        if before < nbytes:
            self._buffers.pop(key, None)
            nbytes = max(nbytes, min(2 * before, _ROOM))  # or each larger shape fills it anew
            owner = Workspace(self.device, "calibration")
            buffer = owner.allocate(nbytes)
            block = numbers((min(1 << 20, -(-nbytes // dtype.itemsize)),), dtype.name)
            self.device.upload(block, buffer)
            done = block.nbytes
            while done < nbytes:
                size = min(done, nbytes - done)
                self.device.copy(buffer, buffer, size, done)
                done += size
            self._buffers[key] = buffer, nbytes, owner
        return self._buffers[key][0]

    def arguments(self, case: Case, problem: Problem, turns: int = 1) -> list[Arguments]:
        """The arguments of some runs of the problem on the device. Their operands lie at different
        places, so that caches have none of them."""
        options, operands = _options(case, problem)

        def places(operand: Operand, number: int) -> list[Any]:
            size = -(-operand.nbytes // 256) * 256
            count = max(1, min(TURNS, _ROOM // size)) if turns > 1 else 1
            pool = self.buffer(operand.dtype, number, size * count)
            # A buffer need not be an address.
            return [pool + size * (turn % count) if count > 1 else pool for turn in range(turns)]

        inputs = zip(*[places(operand, i) for i, operand in enumerate(operands)], strict=True)
        outputs = places(problem.output, len(problem.inputs))
        return [Arguments(*both, options) for both in zip(inputs, outputs, strict=True)]

    def seconds(self, case: Case, problem: Problem, budget: float) -> float:
        """Seconds of one call, until its result is there; of `Case.clocked` by the device's clock,
        without the host's share, but of cuBLAS with what it takes of the host."""
        if not case.clocked:
            return measure(self.waiting(case, problem), budget=budget, least=2, most=30)
        run, devices = case.row.run, self.devices
        runs = self.arguments(case, problem, TURNS)
        self._queue = self._queue or Queue(self.device)
        taken = self._queue.quickly(lambda turn: run(devices, problem, runs[turn % TURNS]))
        return taken + _CUBLAS if case.row.method == "library" else taken

    def waiting(self, case: Case, problem: Problem) -> Callable[[], None]:
        """A function that computes the problem once and returns when it is done."""
        run, devices, device = case.row.run, self.devices, self.device
        if device is None:
            options, operands = _options(case, problem)
            inputs = tuple(
                np.ndarray(o.shape, o.dtype, numbers(o.shape, o.dtype.name, i), 0, o.strides)
                for i, o in enumerate(operands)
            )
            result = problem.output
            # As calls make it: a product's is NumPy's own.
            empty = np.empty if case.row.method == BLAS else cpu.empty

            def call_here() -> None:
                out = empty(result.shape, result.dtype)
                run(devices, problem, Arguments(inputs, out, options))

            return call_here
        (arguments,) = self.arguments(case, problem)

        def call() -> None:
            run(devices, problem, arguments)
            device.synchronize()

        return call


def _options(case: Case, problem: Problem) -> tuple[Any, tuple[Operand, ...]]:
    """The options of a run, and the operands: the filter of an image is in the options."""
    if case.options is None:
        return None, problem.inputs
    return case.options(problem), problem.inputs[:1]
