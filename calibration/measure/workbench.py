"""The operands that cases are measured on, in memory kept between measurements; samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hetero.arrays import Operand
from hetero.calibration.measure.queue import Queue
from hetero.calibration.measure.timing import measure
from hetero.devices.base import Device
from hetero.devices.workspace import Workspace
from hetero.host import pages
from hetero.ops.cases import Case, Dims
from hetero.registry import BLAS, Arguments
from hetero.registry.problem import Problem

TURNS = 16  # places that operands rotate among, against caches
_ROOM = 1 << 30  # bytes for all of them


@dataclass(frozen=True)
class Samples:
    """The measurements of a case: seconds by dimensions."""

    # Of knots, but those that would have taken too long or were not reached in time; of a solve of
    # one step.
    seconds: dict[Dims, float] = field(default_factory=dict)
    held_out: dict[Dims, float] = field(default_factory=dict)  # of shapes that are no knots
    setup: dict[Dims, float] = field(default_factory=dict)  # of a solve without its steps
    host: float = 0.0  # the host's share of each call, where it is known


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
