"""Operands to measure with: cut out of memory that is allocated once for each device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hetero.arrays import Operand
from hetero.calibration.measure import measure
from hetero.calibration.queue import Queue
from hetero.devices.base import Device
from hetero.problem import Problem
from hetero.registry import Implementation


class Bench:
    """Operands of any shape on one device, cut out of memory that is allocated once.

    Parameters
    ----------
    device : Device or None
        None: the CPU.
    largest : int
        Elements of the largest operand.
    """

    def __init__(self, device: Device | None, largest: int) -> None:
        self.device = device
        block = np.random.default_rng(0).random(min(largest, 1 << 20)) - 0.5
        self.queue = Queue(device) if device is not None and device.kind == "cuda" else None
        self._pools: dict[tuple[str, int], Any] = {}
        self._block = block
        self._largest = largest

    def _pool(self, dtype: str, number: int) -> Any:
        key = (dtype, number)
        if key not in self._pools:
            values = np.resize(self._block.astype(dtype), self._largest)
            if self.device is None:
                self._pools[key] = values
            else:
                buffer, owner = self.device.allocate(values.nbytes)
                self.device.upload(values, buffer)
                self._pools[key] = (buffer, owner)
        return self._pools[key]

    def array(self, operand: Operand, number: int, turn: int = 0) -> Any:
        """An array with the operand's shape and strides; on a device, its address.

        Other turns give other places, so that operands are not in the cache already.
        """
        dtype = operand.dtype
        pool = self._pool(dtype.name, number)
        if self.device is None:
            return np.ndarray(operand.shape, dtype, pool, 0, operand.strides)
        if self.queue is None:
            return pool[0]
        size = -(-operand.nbytes // 256) * 256
        places = max(1, self._largest * dtype.itemsize // size)
        return pool[0] + size * (turn % places)

    def seconds(self, implementation: Implementation, problem: Problem, budget: float) -> float:
        """Seconds of one call, until its result is there.

        On a CUDA device it is its clock that measures, and the host's share is left out.
        """
        run = implementation.run
        assert run is not None
        operands = (*problem.inputs, problem.output)
        if self.queue is not None:
            sets = [[self.array(o, i, turn) for i, o in enumerate(operands)] for turn in range(16)]

            def call(turn: int) -> None:
                arrays = sets[turn % 16]
                run(self.device, problem, arrays[:-1], arrays[-1])

            return self.queue.quickly(call)
        return measure(self.waiting(implementation, problem), budget=budget, most=30).seconds

    def waiting(self, implementation: Implementation, problem: Problem) -> Callable[[], None]:
        """A function that computes the problem once and returns when it is done."""
        run = implementation.run
        assert run is not None
        device = self.device
        inputs = [self.array(o, i) for i, o in enumerate(problem.inputs)]
        if device is None:
            return lambda: run(None, problem, inputs, None)
        output = self.array(problem.output, len(inputs))

        def call() -> None:
            run(device, problem, inputs, output)
            device.synchronize()

        return call

    def host_seconds(self, implementation: Implementation, problem: Problem) -> float:
        """The host's share of a call: what it takes in all, less the device's own time."""
        if self.queue is None:
            return 0.0
        whole = measure(
            self.waiting(implementation, problem), budget=0.1, least=60, most=400
        ).seconds
        return max(whole - self.seconds(implementation, problem, 0.0), 0.0)
