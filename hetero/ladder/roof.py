"""The roof: the most that a device gives, measured by kernels that do one thing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from hetero.calibration.measure.timing import once
from hetero.devices.base import Device
from hetero.kernels import Launch
from hetero.kernels.common.peak import peaks

_BLOCKS = 32  # of each multiprocessor
_ROUNDS, _ROUNDS_OTHERS = {"cuda": 1 << 12}, 1 << 6
_COPIED, _COPIED_OTHERS = {"cuda": 1 << 30}, 1 << 26  # bytes, far more than caches hold
_REPEATS = 16  # other load only adds to them
_PRODUCT = 1024  # extent of the product that is the CPU's


class Roof(NamedTuple):
    """The most that a device gives: arithmetic on registers alone, and a copy in its memory.

    A method takes at least the longer of the times of its flops and of its bytes, its roof
    (S. Williams, A. Waterman, D. Patterson, "Roofline", Commun. ACM 52 (2009), 65-76).
    """

    flops_per_second: float
    bytes_per_second: float  # of reading plus writing
    how: str  # the first was measured

    def share(self, flops_per_second: float, bytes_per_second: float) -> float:
        """What part of the roof these rates reach."""
        return max(
            flops_per_second / self.flops_per_second, bytes_per_second / self.bytes_per_second
        )


def roof(device: Device | None, dtype: str) -> Roof:
    """The roof of a device, which is active, or of the CPU: a product by BLAS, and a copy."""
    if device is None:
        A = np.random.default_rng(0).random((_PRODUCT, _PRODUCT), np.float32).astype(dtype)
        source = np.ones(_COPIED_OTHERS // A.itemsize, dtype)
        target, C = np.ones_like(source), np.empty_like(A)
        calls = (lambda: np.dot(A, A, out=C)), (lambda: np.copyto(target, source))
        product, copy = (min(once(call) for _ in range(_REPEATS + 1)) for call in calls)
        return Roof(2.0 * _PRODUCT**3 / product, 2 * source.nbytes / copy, "a product by BLAS")
    blocks = _BLOCKS * device.multiprocessors
    rounds = _ROUNDS.get(device.kind, _ROUNDS_OTHERS)
    kernels = peaks(dtype, blocks, rounds, device.block_limit, device.capability)
    rates = {how: flops / seconds_of(device, launch) for how, (launch, flops) in kernels.items()}
    how = max(rates, key=lambda name: rates[name])
    nbytes = _COPIED.get(device.kind, _COPIED_OTHERS)
    (source, _first), (target, _second) = device.allocate(nbytes), device.allocate(nbytes)
    device.fill(source, nbytes)
    copied = _least(device, lambda: device.copy(target, source, nbytes))
    return Roof(rates[how], 2 * nbytes / copied, how)


def seconds_of(device: Device, launch: Launch, buffers: Mapping[str, Any] | None = None) -> float:
    """Seconds of a launch on an active device; ``"out"`` has up to 8 bytes for each thread."""
    out, _owner = device.allocate(8 * launch.grid * launch.block)
    known = {**(buffers or {}), "out": out}
    kernel = device.build(launch.source, launch.kernel, launch.defines)
    arguments = [known[a] if type(a) is str else a for a in launch.arguments]
    return _least(device, lambda: device.launch(kernel, launch.grid, launch.block, arguments))


def _least(device: Device, run: Callable[[], object]) -> float:
    """Seconds on the device's clock, the fewest of some; the first run does not count."""
    run()
    device.synchronize()
    taken = []
    for _ in range(_REPEATS):
        begin = device.event()
        run()
        taken.append(device.elapsed(begin, device.event()))
    return min(taken)
