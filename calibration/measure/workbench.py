"""The operands that cases are measured on, in memory kept between measurements; samples."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hetero.arrays import Operand
from hetero.calibration.measure.queue import Queue
from hetero.calibration.measure.timing import Watch, measure, own_time
from hetero.devices.base import Device
from hetero.devices.workspace import Workspace
from hetero.host import cpu, pages
from hetero.host.blas import one_thread
from hetero.ops.cases import Case, Dims
from hetero.registry import BLAS, Arguments
from hetero.registry.problem import Problem

TURNS = 16  # places that operands rotate among, against caches
_ROOM = 1 << 30  # bytes for all of them
_HELD_UP = 0.02  # seconds of a call that is much longer where one of its threads has no core
_HOST_CALLS = 100  # from which the host's share is taken


@dataclass(frozen=True)
class Samples:
    """The measurements of a case: seconds by dimensions.

    Attributes
    ----------
    seconds : dict
        Of knots; of one step in a solve. Knots that would have taken too long, or were not reached
        in time, are missing.
    held_out : dict
        Of shapes that are no knots.
    setup : dict
        Of a solve without its steps.
    passes : int
        How many were made, where ``seconds`` is the fastest call of all.
    host : float
        The host's share of each call, where it is known.
    timed : dict
        Seconds of a whole solve with each number of steps, the fastest one.
    steps : dict
        These numbers.
    marked : frozenset
        Dimensions that were measured under other load only.
    """

    seconds: dict[Dims, float] = field(default_factory=dict)
    held_out: dict[Dims, float] = field(default_factory=dict)
    setup: dict[Dims, float] = field(default_factory=dict)
    passes: int = 0
    host: float = 0.0
    timed: dict[Dims, tuple[float, ...]] = field(default_factory=dict)
    steps: dict[Dims, tuple[float, ...]] = field(default_factory=dict)
    marked: frozenset[Dims] = frozenset()


class Bench:
    """Operands of any shape at one place, and the timing of calls on them.

    Parameters
    ----------
    devices : tuple of Device
        One; none for the CPU. For several together, operands are the host's.
    watch : Watch, optional
        Notices other load; default: one of its own.
    """

    def __init__(self, devices: tuple[Device, ...] = (), watch: Watch | None = None) -> None:
        self.devices = devices
        self.watch = watch or Watch()
        self.device = devices[0] if len(devices) == 1 else None
        self.own = None if devices else own_time  # see `timing.once`
        self._queue: Queue | None = None
        self._pools: dict[tuple[str, int], tuple[Any, int, Any]] = {}
        self._block = np.random.default_rng(0).random(1 << 20) - 0.5

    @property
    def queue(self) -> Queue | None:
        """The `Queue` that times calls by the device's own clock; None without one."""
        timed = self.device is not None and self.device.traits.own_clock
        if timed and self._queue is None:
            self._queue = Queue(self.device)
        return self._queue

    def _pool(self, dtype: np.dtype, number: int, nbytes: int) -> Any:
        """Memory for an operand, of the largest size so far, filled with random numbers."""
        key = (dtype.name, number)
        values, before, _ = self._pools.get(key, (None, 0, None))
        if before < nbytes:
            if self.device is None:
                self._pools[key] = self._grown(values, before, dtype, nbytes), nbytes, None
            else:
                self._pools.pop(key, None)
                nbytes = max(nbytes, min(2 * before, _ROOM))  # or each larger shape fills it anew
                owner = Workspace(self.device, "calibration")
                self._pools[key] = self._filled(owner, dtype, nbytes), nbytes, owner
        return self._pools[key][0]

    def _grown(self, values: Any, before: int, dtype: np.dtype, nbytes: int) -> np.ndarray:
        """A host array with ``nbytes`` of random numbers: ``values``, of which the first ``before``
        bytes are filled, or a longer one."""
        if values is None or values.nbytes < nbytes:
            before = 0
            try:  # pages that are not filled take no memory
                values = np.empty(max(nbytes, _ROOM) // dtype.itemsize + 1, dtype)
            except MemoryError:
                values = np.empty(nbytes // dtype.itemsize + 1, dtype)
        block = self._block.astype(dtype, copy=False)
        end = nbytes // dtype.itemsize + 1
        for begin in range(before // dtype.itemsize, end, block.size):
            part = values[begin : min(begin + block.size, end)]
            part[...] = block[: part.size]
        return values

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

    def array(self, operand: Operand, number: int, turn: int = 0) -> Any:
        """An array with the operand's shape and strides; on a device, its address.

        Each turn has another place, so that operands are not in a cache.
        """
        pool, size, places = self._places(operand, number)
        if self.device is None:
            return np.ndarray(operand.shape, operand.dtype, pool, 0, operand.strides)
        return pool + size * (turn % places) if places > 1 else pool

    def _places(self, operand: Operand, number: int) -> tuple[Any, int, int]:
        """Memory for an operand, the bytes of one turn, and the number of distinct places."""
        size = -(-operand.nbytes // 256) * 256
        places = max(1, min(TURNS, _ROOM // size)) if self.queue is not None else 1
        return self._pool(operand.dtype, number, size * places), size, places

    def like(self, values: np.ndarray) -> Any:
        """A buffer on the device with random numbers, as large as this array."""
        return self._pool(values.dtype, 0, values.nbytes)

    def arguments(self, case: Case, problem: Problem, turn: int = 0) -> Arguments:
        """The arguments of a run of the problem; on the CPU `waiting` makes the output."""
        inputs = [
            self.array(operand, number, turn)
            for number, operand in enumerate(problem.inputs[: case.inputs])
        ]
        output = None
        if self.device is not None:
            output = self.array(problem.output, len(problem.inputs), turn)
        options = case.options(problem) if case.options is not None else None
        return Arguments(tuple(inputs), output, options)

    def seconds(self, case: Case, problem: Problem, budget: float) -> float:
        """Seconds of one call, until its result is there.

        A CUDA device measures by its own clock, without the host's share.
        """
        if self.queue is None:
            call = self.waiting(case, problem)
            measured = measure(call, budget=budget, most=30, own=self.own)
            self.watch.note(measured.disturbed)
            seconds = measured.seconds
            if measured.ever and seconds < _HELD_UP and case.implementation.method == BLAS:
                # One of several threads may have been held up in all of them. No call takes longer
                # than one thread computes; where in between it lies, the mean of both ends tells.
                with one_thread():
                    mine = {"clock": time.thread_time, "switches": lambda: 0}
                    alone = measure(call, budget=budget, most=30, **mine).seconds
                shared = cpu.describe()["blas_threads"] ** 0.5 if measured.disturbed else 1.0
                seconds = min(seconds, alone / shared)
            return seconds
        run, devices = case.implementation.run, self.devices
        sets = self._sets(case, problem)
        return self.queue.quickly(lambda turn: run(devices, problem, sets[turn % TURNS]))

    def _sets(self, case: Case, problem: Problem) -> list[Arguments]:
        """As `arguments`, on a CUDA device, of all turns."""
        first = self.arguments(case, problem)
        operands = (*problem.inputs[: case.inputs], problem.output)
        numbers = (*range(len(first.inputs)), len(problem.inputs))
        where = [self._places(*one) for one in zip(operands, numbers, strict=True)]
        sets = []
        for turn in range(TURNS):
            *inputs, output = (pool + size * (turn % places) for pool, size, places in where)
            sets.append(first._replace(inputs=tuple(inputs), output=output))
        return sets

    def waiting(self, case: Case, problem: Problem) -> Callable[[], None]:
        """A function that computes the problem once and returns when it is done."""
        run, devices, device = case.implementation.run, self.devices, self.device
        arguments = self.arguments(case, problem)
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

    def host_seconds(self, case: Case, problem: Problem, device_seconds: float) -> float:
        """The host's share of a call: its whole time less the device's."""
        if self.queue is None:
            return 0.0
        call = self.waiting(case, problem)
        whole = measure(call, budget=0.1, least=_HOST_CALLS, most=_HOST_CALLS).seconds
        return max(whole - device_seconds, 0.0)


def watched(bench: Bench, call: Callable[..., Any], *arguments: Any) -> tuple[Any, bool]:
    """The result of a call, and whether other load was noticed meanwhile."""
    bench.watch.begin()
    result = call(*arguments)
    return result, bench.watch.disturbed()
