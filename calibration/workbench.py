"""Operands to measure with, cut out of memory that is kept from one measurement to the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hetero.arrays import Operand
from hetero.calibration.measure import measure
from hetero.calibration.queue import Queue
from hetero.devices.base import Device
from hetero.runtime.problem import Problem
from hetero.runtime.registry import Arguments, Implementation

TURNS = 16  # places among which operands rotate
_ROOM = 1 << 30  # bytes for all of them


class Bench:
    """Operands of any shape on one device, and the time that calls on them take.

    Parameters
    ----------
    device : Device or None
        None: the CPU.
    """

    def __init__(self, device: Device | None) -> None:
        self.device = device
        self.queue = Queue(device) if device is not None and device.kind == "cuda" else None
        self._pools: dict[tuple[str, int], tuple[Any, int, Any]] = {}
        self._block = np.random.default_rng(0).random(1 << 20) - 0.5

    def _pool(self, dtype: np.dtype, number: int, nbytes: int) -> Any:
        """Memory for an operand: as much as was ever asked for, filled with random numbers."""
        key = (dtype.name, number)
        if key not in self._pools or self._pools[key][1] < nbytes:
            self._pools.pop(key, None)
            values = np.resize(self._block.astype(dtype), -(-nbytes // dtype.itemsize))
            if self.device is None:
                self._pools[key] = values, nbytes, None
            else:
                buffer, owner = self.device.allocate(values.nbytes)
                self.device.upload(values, buffer)
                self._pools[key] = buffer, nbytes, owner
        return self._pools[key][0]

    def array(self, operand: Operand, number: int, turn: int = 0) -> Any:
        """An array with the operand's shape and strides; on a device, its address.

        Other turns give other places, so that operands are not in the cache already.
        """
        size = -(-operand.nbytes // 256) * 256
        places = max(1, min(TURNS, _ROOM // size)) if self.queue is not None else 1
        pool = self._pool(operand.dtype, number, size * places)
        if self.device is None:
            return np.ndarray(operand.shape, operand.dtype, pool, 0, operand.strides)
        return pool + size * (turn % places) if places > 1 else pool

    def arguments(self, inputs: list[Any], output: Any) -> Arguments:
        """What a run gets, of what `array` made."""
        return Arguments(tuple(inputs), output)

    def seconds(self, implementation: Implementation, problem: Problem, budget: float) -> float:
        """Seconds of one call, until its result is there.

        On a CUDA device it is its clock that measures, and the host's share is left out.
        """
        run = implementation.run
        assert run is not None
        operands = (*problem.inputs, problem.output)
        if self.queue is not None:
            sets = [
                [self.array(o, i, turn) for i, o in enumerate(operands)] for turn in range(TURNS)
            ]

            def call(turn: int) -> None:
                arrays = sets[turn % TURNS]
                run((self.device,), problem, self.arguments(arrays[:-1], arrays[-1]))

            return self.queue.quickly(call)
        return measure(self.waiting(implementation, problem), budget=budget, most=30).seconds

    def waiting(self, implementation: Implementation, problem: Problem) -> Callable[[], None]:
        """A function that computes the problem once and returns when it is done."""
        run = implementation.run
        assert run is not None
        device = self.device
        inputs = [self.array(o, i) for i, o in enumerate(problem.inputs)]
        if device is None:
            result = problem.output
            return lambda: run(
                (), problem, self.arguments(inputs, np.empty(result.shape, result.dtype))
            )
        arguments = self.arguments(inputs, self.array(problem.output, len(inputs)))

        def call() -> None:
            run((device,), problem, arguments)
            device.synchronize()

        return call

    def host_seconds(
        self, implementation: Implementation, problem: Problem, device_seconds: float, least: int
    ) -> float:
        """The host's share of a call: what it takes in all, less the device's own time."""
        if self.queue is None:
            return 0.0
        call = self.waiting(implementation, problem)
        return max(measure(call, budget=0.1, least=least, most=least).seconds - device_seconds, 0.0)
