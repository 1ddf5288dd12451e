"""What a device gives at most, measured: arithmetic on registers alone, and a copy in its memory.

A method with so many flops and bytes takes at least the longer of the two times: its roof
(S. Williams, A. Waterman, D. Patterson, "Roofline", Commun. ACM 52 (2009), 65-76).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hetero.devices.base import Device
from hetero.kernels.common.peak import THREADS, peaks

_BLOCKS = 32  # of each multiprocessor
_ROUNDS = {"cuda": 1 << 12}
_ROUNDS_OTHERS = 1 << 6
_COPIED = {"cuda": 1 << 30}  # bytes, far more than caches hold
_COPIED_OTHERS = 1 << 26
_REPEATS = 4
_PRODUCT = 1024  # extent of the product that is the CPU's


class Roof(NamedTuple):
    """The rates of a device.

    Attributes
    ----------
    flops_per_second, bytes_per_second : float
        The second of reading plus writing.
    how : str
        What the first was measured by.
    """

    flops_per_second: float
    bytes_per_second: float
    how: str

    def seconds(self, flops: float, nbytes: float) -> float:
        """The least that so many flops and bytes take."""
        return max(flops / self.flops_per_second, nbytes / self.bytes_per_second)

    def raised(self, other: Roof) -> Roof:
        """The higher rate of each: other load lowers what is measured at that time."""
        return max(self, other)._replace(bytes_per_second=max(self[1], other[1]))


def of_device(device: Device, dtype: str) -> Roof:
    """The roof of a device, which is active."""
    blocks = _BLOCKS * device.multiprocessors
    rounds = _ROUNDS.get(device.kind, _ROUNDS_OTHERS)
    found = peaks(dtype, blocks, rounds, device.block_limit, device.capability)
    itemsize = np.dtype(dtype).itemsize
    out, _owner = device.allocate(blocks * THREADS * itemsize)
    rates = {}
    for how, (launch, flops) in found.items():
        kernel = device.build(launch.source, launch.kernel, launch.defines)

        def run(kernel: Any = kernel, launch: Any = launch) -> None:
            device.launch(kernel, launch.grid, launch.block, [out, rounds])

        rates[how] = flops / _least(device, run)
    how = max(rates, key=lambda name: rates[name])
    return Roof(rates[how], _copied(device), how)


def _copied(device: Device) -> float:
    """Bytes read and written in a second by a copy."""
    nbytes = _COPIED.get(device.kind, _COPIED_OTHERS)
    (source, _first), (target, _second) = device.allocate(nbytes), device.allocate(nbytes)
    device.fill(source, nbytes)
    return 2 * nbytes / _least(device, lambda: device.copy(target, source, nbytes))


def _least(device: Device, run: Callable[[], None]) -> float:
    """Seconds on the device's clock, the fewest of some; the first run does not count."""
    run()
    device.synchronize()
    found = []
    for _ in range(_REPEATS):
        begin = device.event()
        run()
        found.append(device.elapsed(begin, device.event()))
    return min(found)


def of_host(dtype: str) -> Roof:
    """The roof of the CPU: a product by BLAS, and a copy of an array."""
    A = np.random.default_rng(0).random((_PRODUCT, _PRODUCT), np.float32).astype(dtype)
    source = np.ones(_COPIED_OTHERS // A.itemsize, dtype)
    target, C = np.ones_like(source), np.empty_like(A)
    product = _fastest(lambda: np.dot(A, A, out=C))
    copy = _fastest(lambda: np.copyto(target, source))
    return Roof(2.0 * _PRODUCT**3 / product, 2 * source.nbytes / copy, "a product by BLAS")


def _fastest(run: Callable[[], object]) -> float:
    found = []
    for _ in range(_REPEATS + 1):
        begin = time.perf_counter()
        run()
        found.append(time.perf_counter() - begin)
    return min(found)
