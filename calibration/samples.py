"""Samples of one case at one place: seconds of a table's knots, or of a solve's set-up and step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import numpy as np

from hetero.arrays import Operand
from hetero.calibration.measure import Queue, in_turn, measure, once
from hetero.calibration.sizes import LONGEST, Case, Dims, grid
from hetero.devices.base import Device
from hetero.devices.workspace import Workspace
from hetero.host import pages
from hetero.ops.linear_systems.solve import Solve
from hetero.registry import BLAS, Arguments
from hetero.registry.problem import Problem

# -- Tables --
TURNS = 16  # places that operands rotate among, against caches
_ROOM = 1 << 30  # bytes for all of them
# Seconds of a call on the CPU, and on a device: shorter ones may be all overhead, and give no rate.
_TELLS = 1e-4, 1e-3
# -- Solves --
_LONG = 0.03  # seconds of a solve: of longer ones the first call counts, too
_VERY_LONG = 20.0  # points that few and more steps take together, which are then timed once
_STANDS_OUT = 2.5  # ratio of the solve of more steps to the one of few
_NO_SETUP = 1e-7  # seconds
_LEAST_STEP = 0.1  # of a solve's time per step: a lower bound of its steps' time


@dataclass(frozen=True)
class Samples:
    """The measurements of a case: seconds by dimensions."""

    # Of knots, but those that would have taken too long or were not reached in time; of a solve of
    # one step.
    seconds: dict[Dims, float] = field(default_factory=dict)
    held_out: dict[Dims, float] = field(default_factory=dict)  # of shapes that are no knots
    setup: dict[Dims, float] = field(default_factory=dict)  # of a solve without its steps
    host: float = 0.0  # the host's share of each call, where it is known


def take(case: Case, bench: Bench, point: float, host: float = 0.0) -> Samples:
    """Measure a case: ``point`` seconds for each sample; ``host`` is the host's share of a call."""
    if case.steps is not None:
        _prepared(case, case.smallest, bench)(1)  # compiles
        found = {dims: parts(case, dims, bench, point) for dims in grid(case.axes)}
        setup, step = ({dims: two[i] for dims, two in found.items()} for i in (0, 1))
        return Samples(step, setup=setup)
    tells = _TELLS[bool(bench.devices)]
    seconds: dict[Dims, float] = {}
    held_out: dict[Dims, float] = {}
    best = most = 0.0  # volume per second, and seconds, of all calls

    def is_longer(dims: Dims, than: float) -> bool:
        """Whether a call is predicted to take longer; not where all were too short for a rate."""
        return most > tells and prod(dims) / best > than

    for dims, sizes in case.knots.items():  # from small to large
        if seconds and is_longer(dims, case.longest):
            continue
        seconds[dims] = taken = timed(case, sizes, bench, point, host)
        best, most = max(best, prod(dims) / taken), max(most, taken)
    for dims, sizes in case.between.items():
        if len(held_out) >= case.checks:
            break
        if not is_longer(dims, case.longest / (1 if case.by_host else 4)):
            held_out[dims] = timed(case, sizes, bench, point, host)
    return Samples(seconds, held_out, host=host)


def timed(case: Case, sizes: Dims, bench: Bench, point: float, host: float) -> float:
    """Seconds of one call; the host's share is in it, but for what estimates a device's time."""
    problem = case.problem(*sizes)
    if case.by_host:
        return measure(bench.waiting(case, problem), budget=point, least=2, most=30)
    return bench.seconds(case, problem, point) + (0.0 if case.estimated else host)


# -- Solves ----------------------------------------------------------------------------------------


def parts(case: Case, dims: Dims, bench: Bench, point: float) -> tuple[float, float]:
    """Seconds of set-up and of one step, of solves of few and of more steps.

    Where the steps take less than the set-up, more of them are timed, as long as that does not take
    too long: otherwise noise of the set-up would count as steps. In float32 the residual of too
    many would become subnormal, which is slow. Times that tell no step, since more steps took less
    time, are taken once more.
    """
    call, (few, many) = _prepared(case, dims, bench), case.steps
    if few == many:
        return _NO_SETUP, measure(partial(call, few), budget=point, least=2)
    less = once(partial(call, few))
    if less <= _LONG:  # caches, pages
        less = once(partial(call, few))
    most = max(many, case.most_steps)
    if few > 2:
        most = few + min(512, round(8 * dims[0] ** (1 / 3)))
    took = once(partial(call, many))
    while many < most and took <= min(_STANDS_OUT * less, LONGEST / 2.0):
        many = min(few + 2 * (many - few), most)
        took = once(partial(call, many))

    def is_sane() -> bool:
        return _LEAST_STEP * took / many < (took - less) / (many - few) <= took / many

    first: tuple[float, ...] = (less, took)
    for _ in range(2):
        if first and less + took > _VERY_LONG * point and is_sane():
            break
        less, took = in_turn([partial(call, n) for n in (few, many)], budget=point, first=first)
        first = ()
        if is_sane():
            break
    step = min(max((took - less) / (many - few), _LEAST_STEP * took / many), took / many)
    return max(less - few * step, _NO_SETUP), step


def _prepared(case: Case, dims: Dims, bench: Bench) -> Callable[[int], None]:
    """A function that solves with a number of steps, its operands where the method takes them."""
    problem, run = case.problem(*dims), case.implementation.run
    arguments = case.arguments(*dims, devices=bench.devices)
    device = bench.device
    (b,), x, solve = arguments
    # Several devices begin from zero themselves, and results get memory that was used before.
    by_themselves = len(bench.devices) > 1 and isinstance(solve, Solve)
    owners = []
    if device is not None and not case.implementation.from_host:
        x, owner = device.allocate(b.nbytes)
        owners = [owner]
        arguments = arguments._replace(inputs=(bench.like(b),), output=x)

    def call(count: int) -> None:
        if owners:  # the closure keeps the buffers alive
            device.fill(x, b.nbytes)
            start = x
        else:  # a new array each time, as in a call
            start = (pages.empty if by_themselves else np.empty)(x.shape, x.dtype)
            if not by_themselves:
                start[...] = 0.0
        options = solve._replace(maxiter=count)
        if by_themselves:
            options = options._replace(from_zero=True)
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
        self._queue: Queue | None = None
        self._pools: dict[tuple[str, int], tuple[Any, int, Any]] = {}
        self._block = np.random.default_rng(0).random(1 << 20) - 0.5

    @property
    def queue(self) -> Queue | None:
        """The `Queue` that times calls by the device's own clock; None without one."""
        if self._queue is None and self.device is not None and self.device.is_cuda:
            self._queue = Queue(self.device)
        return self._queue

    def _pool(self, dtype: np.dtype, number: int, nbytes: int) -> Any:
        """Memory for an operand, of the largest size so far, filled with random numbers."""
        key = (dtype.name, number)
        _, before, _ = self._pools.get(key, (None, 0, None))
        if before < nbytes:
            self._pools.pop(key, None)
            nbytes = max(nbytes, min(2 * before, _ROOM))  # or each larger shape fills it anew
            if self.device is None:
                block, owner = self._block.astype(dtype), None
                values: Any = np.resize(block, -(-nbytes // dtype.itemsize))
            else:
                owner = Workspace(self.device, "calibration")
                values = self._filled(owner, dtype, nbytes)
            self._pools[key] = values, nbytes, owner
        return self._pools[key][0]

    def _filled(self, owner: Workspace, dtype: np.dtype, nbytes: int) -> Any:
        """A buffer of random numbers: one block from the host, repeated on the device."""
        buffer = owner.allocate(nbytes)
        block = self._block.astype(dtype)[: -(-nbytes // dtype.itemsize)]
        self.device.upload(block, buffer)
        done = block.nbytes
        while done < nbytes:
            size = min(done, nbytes - done)
            self.device.copy(buffer, buffer, size, done)
            done += size
        return buffer

    def _places(self, operand: Operand, number: int) -> tuple[Any, int, int]:
        """Memory for an operand, the bytes of one turn, and the number of distinct places."""
        size = -(-operand.nbytes // 256) * 256
        places = max(1, min(TURNS, _ROOM // size)) if self.queue is not None else 1
        return self._pool(operand.dtype, number, size * places), size, places

    def like(self, values: np.ndarray) -> Any:
        """A buffer on the device with random numbers, as large as this array."""
        return self._pool(values.dtype, 0, values.nbytes)

    def arguments(self, case: Case, problem: Problem, turns: int = 1) -> list[Arguments]:
        """The arguments of some runs of the problem, whose operands lie at different places against
        caches; on the CPU `waiting` makes the output."""
        options = case.options(problem) if case.options is not None else None
        operands = [*problem.inputs[: case.inputs]]
        where = [self._places(operand, number) for number, operand in enumerate(operands)]
        if self.device is None:
            inputs = tuple(
                np.ndarray(operand.shape, operand.dtype, pool, 0, operand.strides)
                for operand, (pool, *_) in zip(operands, where, strict=True)
            )
            return [Arguments(inputs, None, options)] * turns
        where.append(self._places(problem.output, len(problem.inputs)))
        runs = []
        for turn in range(turns):
            *inputs, output = (  # a buffer need not be an address
                pool + size * (turn % places) if places > 1 else pool
                for pool, size, places in where
            )
            runs.append(Arguments(tuple(inputs), output, options))
        return runs

    def seconds(self, case: Case, problem: Problem, budget: float) -> float:
        """Seconds of one call, until its result is there.

        A CUDA device measures by its own clock, without the host's share.
        """
        if self.queue is None:
            return measure(self.waiting(case, problem), budget=budget, most=30)
        run, devices = case.implementation.run, self.devices
        runs = self.arguments(case, problem, TURNS)
        return self.queue.quickly(lambda turn: run(devices, problem, runs[turn % TURNS]))

    def waiting(self, case: Case, problem: Problem) -> Callable[[], None]:
        """A function that computes the problem once and returns when it is done."""
        run, devices, device = case.implementation.run, self.devices, self.device
        (arguments,) = self.arguments(case, problem)
        if device is None:
            inputs, _, options = arguments
            result = problem.output
            # As calls make it: a product's is NumPy's own.
            is_numpys = case.implementation.method == BLAS
            empty = np.empty if is_numpys else pages.maker(result.nbytes)

            def call_here() -> None:
                out = empty(result.shape, result.dtype)
                run(devices, problem, Arguments(inputs, out, options))

            return call_here

        def call() -> None:
            run(devices, problem, arguments)
            device.synchronize()

        return call
