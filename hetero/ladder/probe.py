"""What a device gives, measured by kernels that do one thing: its clock, its roof; and
`hetero probe`, what a pattern of access to memory costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from hetero.calibration import measure as timing
from hetero.devices.base import Device
from hetero.errors import readable
from hetero.evaluation import problems
from hetero.evaluation.report import draw_curves, markdown, rounded
from hetero.kernels import Launch
from hetero.kernels.common import launch as probes
from hetero.pricing.plan import CPU
from hetero.terminal import Progress, silent

_POINT = 0.06  # seconds for one figure by the host's clock
_ROOF_BLOCKS = 32  # of each multiprocessor, of the kernels of the roof
_ROOF_ROUNDS, _ROOF_ROUNDS_OTHERS = {"cuda": 1 << 12}, 1 << 6
_COPIED = 1 << 26  # bytes of the copy of the roof on others: more than caches hold
_PRODUCT = 1024  # extent of the product that is the CPU's
_BYTES, _BYTES_OTHERS = 1 << 30, 1 << 26  # that are read; on devices without a clock of their own
_BLOCKS, _ROUNDS, _ROUNDS_OTHERS = 8, 256, 16  # of a multiprocessor, that read shared memory
_PASSES = 3  # over all strides, of which the least times count
_SEEN = 1.25  # times the least: what takes longer is no noise
_SAME = 0.8  # of the most time: what takes as much is on its plateau


def place_of(device: str | None) -> Device | None:
    """As `problems.device_of`; None of the CPU."""
    return None if device == CPU else problems.device_of(device)


def named(place: Device | None) -> dict[str, str]:
    """What results say of a device: its names."""
    if place is None:
        return {"device": CPU, "name": CPU}
    return {"device": place.name, "name": place.describe()["name"]}


class Clock:
    """Seconds of calls on a ``device``, which is active, by its own clock; None: on the CPU."""

    def __init__(self, device: Device | None) -> None:
        self.device = device
        self._queue = timing.Queue(device) if device is not None and device.is_cuda else None

    def seconds(self, call: Callable[[int], object]) -> float:
        """Of a call; of an OpenCL device by the host's clock."""
        if self._queue is not None:
            return self._queue.quickly(call)
        waited = timing.awaited(partial(call, 0), [self.device] if self.device else [])
        return timing.measure(waited, budget=_POINT, most=30)

    def bandwidth(self) -> float:
        """Bytes per second, read and written, of a copy in the device's memory."""
        if self._queue is not None:
            return self._queue.copy_bandwidth()
        if self.device is None:
            source, target = np.ones(_COPIED, np.uint8), np.ones(_COPIED, np.uint8)
            return 2 * _COPIED / self.seconds(lambda _: np.copyto(target, source))
        (one, _first), (other, _second) = (self.device.allocate(_COPIED) for _ in range(2))
        self.device.fill(one, _COPIED)
        return 2 * _COPIED / self.seconds(lambda _: self.device.copy(other, one, _COPIED))

    def of_launch(self, launch: Launch, **buffers: Any) -> float:
        """Of a launch; ``"out"`` has up to 8 bytes for each thread."""
        device = self.device
        buffers["out"], _owner = device.allocate(8 * launch.grid * launch.block)
        bound = device.bound(launch, buffers)
        return self.seconds(lambda _: device.launch(*bound))


def roof(clock: Clock, dtype: str) -> Mapping[str, Any]:
    """The most that a clock's device gives: flops_per_second, by arithmetic on registers alone or
    a product by BLAS, as ``how`` says; bytes_per_second, read and written by a copy in its memory.

    A method takes at least the longer of the times of its flops and of its bytes, its roof
    (S. Williams, A. Waterman, D. Patterson, "Roofline", Commun. ACM 52 (2009), 65-76).
    """
    device = clock.device
    if device is None:
        A = np.random.default_rng(0).random((_PRODUCT, _PRODUCT), np.float32).astype(dtype)
        C = np.empty_like(A)
        product = clock.seconds(lambda _: np.dot(A, A, out=C))
        rates = {"a product by BLAS": 2.0 * _PRODUCT**3 / product}
    else:
        blocks = _ROOF_BLOCKS * device.multiprocessors
        rounds = _ROOF_ROUNDS.get(device.kind, _ROOF_ROUNDS_OTHERS)
        kernels = probes.peaks(dtype, blocks, rounds, device.block_limit, device.capability)
        rates = {how: flops / clock.of_launch(launch) for how, (launch, flops) in kernels.items()}
    how = max(rates, key=rates.__getitem__)
    return {"flops_per_second": rates[how], "bytes_per_second": clock.bandwidth(), "how": how}


# -- Patterns of access ----------------------------------------------------------------------------


class Probe(NamedTuple):
    """A pattern of access, and what its figures mean."""

    summary: str
    strides: tuple[int, ...]  # in pieces; the others are compared with the first
    piece: int  # elements of float32 that stay together; 0: single ones of shared memory
    meaning: str  # of strides from {stride} on taking longest
    none: str  # if none takes longer


PROBES = {
    "camping": Probe(
        "pieces of 256 bytes, those that are read at a time further and further apart",
        tuple(1 << i for i in range(9)),
        64,
        "reads that far apart meet in a partition of the memory, or open its pages anew",
        "no camping seen",
    ),
    "banks": Probe(
        "a warp's reads of shared memory, those of neighbouring threads further and further apart",
        (1, 0, 2, 4, 8, 16, 31, 32, 33, 64),
        0,
        "{stride} banks",
        "no bank conflicts seen",
    ),
    "coalescing": Probe(
        "a matrix read by columns: neighbouring threads read elements further and further apart",
        (1, 2, 4, 8, 16, 32, 64),
        1,
        "{bytes} bytes are moved for each element",
        "no loss seen: caches keep what neighbouring threads leave of a line",
    ),
}


def probe(name: str, *, device: str | None = None, progress: Progress = silent) -> dict[str, Any]:
    """Time a pattern of access, one of `PROBES`, over its stride, on a device or the first one.

    Returns
    -------
    dict
        probe, device, name (the device's), summary, unit (bytes of a stride of 1), rows (each with
        stride, seconds, per_second: bytes, of shared memory elements; ratio: seconds over those of
        the first row), means (a sentence).

    Raises
    ------
    ValueError, DeviceNotAvailable
        If the device is the CPU, which runs no kernels; if there is no such device.
    """
    wanted, own = PROBES[name], place_of(device)
    if own is None:
        raise ValueError(f"{name} is a kernel of a device, and 'cpu' runs none")
    info, strides = own.describe(), wanted.strides
    most, rounds = (_BYTES, _ROUNDS) if own.is_cuda else (_BYTES_OTHERS, _ROUNDS_OTHERS)
    nbytes = min(most, 1 << (int(info["memory_bytes"]) // 4).bit_length() - 1)
    with own.active():
        clock, (data, _owner) = Clock(own), own.allocate(nbytes)
        own.fill(data, nbytes)
        seconds, counts = dict.fromkeys(strides, math.inf), dict.fromkeys(strides, nbytes)
        for number, stride in enumerate(strides * _PASSES):  # other load meets none each time
            progress(number / (_PASSES * len(strides)), f"stride {stride}")
            if wanted.piece:
                elements = nbytes // probes.BYTES
                launch = probes.strided(wanted.piece, stride, elements, own.block_limit)
            else:
                blocks = _BLOCKS * own.multiprocessors
                launch, counts[stride] = probes.banks(stride, blocks, rounds, own.block_limit)
            seconds[stride] = min(seconds[stride], clock.of_launch(launch, data=data))
    first = seconds[strides[0]]
    rows = [
        {"stride": n, "seconds": s, "per_second": counts[n] / s, "ratio": s / first}
        for n, s in seconds.items()
    ]
    known = {"probe": name, **named(own), "summary": wanted.summary}
    known["unit"] = max(wanted.piece, 1) * probes.BYTES
    meaning = means(wanted, rows, bool(info.get("is_host_cpu")))
    return known | {"rows": rows, "means": meaning}


def means(wanted: Probe, rows: Sequence[dict[str, Any]], on_cpu: bool) -> str:
    """One sentence on the measured figures."""
    ratios = [row["ratio"] for row in rows]
    if max(ratios) < _SEEN:
        return f"{wanted.none}: worst/best {max(ratios) / min(ratios):.2f}"
    first = next(row for row in rows if row["ratio"] > _SAME * max(ratios))
    text = f"stride {first['stride']}: {rounded(first['ratio'], 2)}x slower"
    nbytes, cause = (
        first["stride"] * probes.BYTES,
        "; a CPU has caches, no banks nor partitions",
    )
    known = f": {wanted.meaning.format(stride=first['stride'], bytes=nbytes)}"
    return text + (cause if on_cpu else known)


def text(result: dict[str, Any]) -> str:
    """The figures as a table, and what they mean."""
    per = "GB/s" if PROBES[result["probe"]].piece else "10^9 reads/s"
    cells = [
        [str(row["stride"]), readable(row["seconds"]), rounded(row["per_second"] * 1e-9)]
        + [f"{row['ratio']:.2f}"]
        for row in result["rows"]
    ]
    table = markdown((f"stride of {result['unit']} bytes", "time", per, "times the first"), cells)
    title = f"{result['probe']} on {result['device']} ({result['name']}): {result['summary']}"
    return "\n".join([title, "", *table, "", result["means"]])


def draw(result: dict[str, Any], picture: Any) -> None:
    """Draw time over stride on a figure of matplotlib's."""
    curve = dict(sorted((row["stride"], row["ratio"]) for row in result["rows"]))
    over, title = f"stride, of {result['unit']} bytes", f"{result['probe']} on {result['name']}"
    curves = {result["probe"]: curve}
    draw_curves(picture, title, over, curves, unit="times the first")
