"""The roof: the most that a device gives, measured by kernels that do one thing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from hetero.calibration.measure.candidates import once
from hetero.devices.base import Device
from hetero.devices.kinds import traits
from hetero.host import limits
from hetero.kernels import Launch
from hetero.kernels.common import access
from hetero.kernels.common.peak import peaks
from hetero.ops.cases import Place

_BLOCKS = 32  # of each multiprocessor
_ROUNDS, _ROUNDS_OTHERS = {"cuda": 1 << 12}, 1 << 6
_COPIED, _COPIED_OTHERS = {"cuda": 1 << 30}, 1 << 26  # bytes, far more than caches hold
_REPEATS = 4
_LAUNCHES = 32  # in a row
_PRODUCT = 1024  # extent of the product that is the CPU's
_SHARED_BLOCKS, _SHARED_ROUNDS, _SHARED_ROUNDS_OTHERS = 8, 256, 16  # of a multiprocessor
_WARP = 32
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Roof(NamedTuple):
    """The most that a device gives: arithmetic on registers alone, and a copy in its memory.

    A method takes at least the longer of the times of its flops and of its bytes, its roof
    (S. Williams, A. Waterman, D. Patterson, "Roofline", Commun. ACM 52 (2009), 65-76).
    """

    flops_per_second: float
    bytes_per_second: float  # of reading plus writing
    how: str  # the first was measured
    wavefronts_per_second: float = 0.0  # of shared memory; 0 of a CPU, which has none
    launch: float = 0.0  # seconds of a launch of one block between others

    def seconds(self, flops: float, nbytes: float) -> float:
        """The least that a method takes with these numbers of flops and bytes."""
        return max(flops / self.flops_per_second, nbytes / self.bytes_per_second)

    def raised(self, other: Roof) -> Roof:
        """The better one of each: other load lowers what is measured at that time."""
        flops, nbytes, how, wavefronts, _ = map(max, zip(self, other, strict=True))
        how = max(self, other).how
        return Roof(flops, nbytes, how, wavefronts, min(self.launch, other.launch))


def roof(place: Place, dtype: str, threads: int | None = None) -> Roof:
    """The roof of a place's first device, which is active, or of some of the CPU's threads."""
    if place.devices:
        return roof_of_device(place.devices[0], dtype)
    return roof_of_host(dtype, threads)


def roof_of_device(device: Device, dtype: str) -> Roof:
    """The roof of a device, which is active."""
    blocks = _BLOCKS * device.multiprocessors
    rounds = _ROUNDS.get(device.kind, _ROUNDS_OTHERS)
    kernels = peaks(dtype, blocks, rounds, device.block_limit, device.capability)
    rates = {how: flops / seconds_of(device, launch) for how, (launch, flops) in kernels.items()}
    how = max(rates, key=lambda name: rates[name])
    nbytes = _COPIED.get(device.kind, _COPIED_OTHERS)
    (source, _first), (target, _second) = device.allocate(nbytes), device.allocate(nbytes)
    device.fill(source, nbytes)
    copied = _least(device, lambda: device.copy(target, source, nbytes))
    wavefronts = 0.0
    if not device.describe().get("is_host_cpu"):
        launch, reads = of_shared(device)
        wavefronts = reads / _WARP / seconds_of(device, launch)
    empty = kernels[how][0]._replace(grid=1, arguments=("out", 0))
    in_a_row = seconds_of(device, empty, number=_LAUNCHES)
    return Roof(rates[how], 2 * nbytes / copied, how, wavefronts, in_a_row)


def of_shared(device: Device, stride: int = 1) -> tuple[Launch, int]:
    """A launch that reads shared memory and nothing else, and how many elements it reads."""
    rounds = _SHARED_ROUNDS if traits(device.kind).own_clock else _SHARED_ROUNDS_OTHERS
    blocks = _SHARED_BLOCKS * device.multiprocessors
    return access.banks(stride, blocks, rounds, device.block_limit)


def seconds_of(
    device: Device, launch: Launch, buffers: Mapping[str, Any] = _NOTHING, number: int = 1
) -> float:
    """Seconds of a launch on an active device, one of several in a row; its buffer ``"out"`` has up
    to 8 bytes for each thread."""
    out, _owner = device.allocate(8 * launch.grid * launch.block)
    known = {**buffers, "out": out}
    kernel = device.build(launch.source, launch.kernel, launch.defines)
    arguments = [known[a] if type(a) is str else a for a in launch.arguments]
    one = partial(device.launch, kernel, launch.grid, launch.block, arguments)
    return _least(device, lambda: [one() for _ in range(number)]) / number


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


def roof_of_host(dtype: str, threads: int | None = None) -> Roof:
    """The roof of the CPU: a product by BLAS, on that many threads, and a copy of an array."""
    A = np.random.default_rng(0).random((_PRODUCT, _PRODUCT), np.float32).astype(dtype)
    source = np.ones(_COPIED_OTHERS // A.itemsize, dtype)
    target, C = np.ones_like(source), np.empty_like(A)

    def multiply() -> None:
        np.dot(A, A, out=C)

    if threads is not None:
        multiply = limits.limited(limits.BLAS, threads, multiply)
    product, copy = (
        min(once(run) for _ in range(_REPEATS + 1))
        for run in (multiply, lambda: np.copyto(target, source))
    )
    return Roof(2.0 * _PRODUCT**3 / product, 2 * source.nbytes / copy, "a product by BLAS")
