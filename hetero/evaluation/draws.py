"""Random calls of any operation, and their operands in memory."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np

from hetero import devices
from hetero.arrays import HOST, Operand, Spec
from hetero.ops import benchmark
from hetero.ops.benchmark import Trial
from hetero.registry import Operation
from hetero.registry.problem import DEVICE_DTYPES


def draw(operation: Operation, random: random.Random, on: str, largest: int) -> Trial:
    """An operation's own random call, or one with dimensions log-uniform up to ``largest``."""
    own = benchmark.of(operation, "draw")
    if own is not None:
        return own(random, on, largest)
    form = random.choice(operation.dims).split()
    dims = tuple(max(1, round(2.0 ** random.uniform(0, math.log2(largest)))) for _ in form)
    problem = operation.from_dims(dims, random.choice(DEVICE_DTYPES), on)
    return Trial(tuple(Spec(o.shape, o.dtype, on=o.location) for o in problem.inputs))


class Arrays:
    """Random numbers where a trial names but shapes, from memory that is allocated once."""

    def __init__(self, on: str) -> None:
        self._on = on
        self._block = np.random.default_rng(3).random(1 << 20) - 0.5
        self._pools: dict[Any, np.ndarray] = {}

    def of(self, trial: Trial) -> tuple[Any, ...]:
        """The trial's operands, on the host or on the device."""
        return tuple(
            self._filled(x.operand(), number) if isinstance(x, Spec) else x
            for number, x in enumerate(trial.operands)
        )

    def _filled(self, operand: Operand, number: int) -> Any:
        key = (number, operand.dtype.name)
        pool = self._pools.get(key)
        if pool is None or pool.size < operand.size:
            pool = np.resize(self._block.astype(operand.dtype), operand.size)
            self._pools[key] = pool
        host = np.ndarray(operand.shape, operand.dtype, pool, 0, operand.strides)
        if operand.location == HOST:
            return host
        from pycuda import gpuarray

        with devices.get(self._on).active():
            return gpuarray.to_gpu(host)
