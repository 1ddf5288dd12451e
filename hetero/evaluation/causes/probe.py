"""`hetero probe`: what a pattern of access to memory costs, by a kernel that does nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hetero import devices
from hetero.devices.base import Device
from hetero.devices.kinds import traits
from hetero.errors import DeviceNotAvailable
from hetero.evaluation import climbing
from hetero.evaluation.causes import roof
from hetero.evaluation.report import markdown, rounded
from hetero.kernels.common import access
from hetero.pricing.plan import CPU, readable

PICTURE = (7.0, 4.5)  # inches
_BYTES, _BYTES_OTHERS = 1 << 30, 1 << 26  # that are read; on devices without a clock of their own
_SEEN = 1.25  # times the least: what takes longer is no noise
_SAME = 0.8  # of the most time: what takes as much is on its plateau


class Probe(NamedTuple):
    """A pattern of access.

    Attributes
    ----------
    summary : str
    strides : tuple of int
        In pieces; the first is what others are compared with.
    piece : int
        Elements of float32 that stay together; 0: of shared memory, where single ones are read.
    meaning : str
        What it says of a GPU if strides from ``{stride}`` elements on take longest.
    none : str
        What it says if none takes longer.
    on_cpu : str
        What the figures mean, and do not mean, where the device is a CPU.
    """

    summary: str
    strides: tuple[int, ...]
    piece: int
    meaning: str
    none: str
    on_cpu: str


PROBES = {
    "camping": Probe(
        "pieces of 256 bytes, those that are read at a time further and further apart",
        tuple(1 << i for i in range(9)),
        64,
        "reads that far apart meet in a partition of the memory, or open its pages anew",
        "no camping seen",
        "a CPU has no partitions to meet in: time goes to pages, and to reads that its prefetchers "
        "do not foresee",
    ),
    "banks": Probe(
        "a warp's reads of shared memory, those of neighbouring threads further and further apart",
        (1, 0, 2, 4, 8, 16, 31, 32, 33, 64),
        0,
        "{stride} banks",
        "no bank conflicts seen",
        "a CPU has no banks: shared memory is ordinary memory in its first cache",
    ),
    "coalescing": Probe(
        "a matrix read by columns: neighbouring threads read elements further and further apart",
        (1, 2, 4, 8, 16, 32, 64),
        1,
        "{bytes} bytes are moved for each element",
        "no loss seen: caches keep what neighbouring threads leave of a line",
        "a CPU reads lines, too, but a thread at a time, ahead, and with caches for each core: a "
        "GPU loses other factors, at other strides",
    ),
}


def probe(
    name: str,
    *,
    device: str | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> dict[str, Any]:
    """Time a pattern of access over its stride.

    Parameters
    ----------
    name : str
        One of `PROBES`.
    device : str, optional
        Default: the first GPU, without one the first OpenCL device.
    progress : callable, optional
        As in `hetero.calibrate`.

    Returns
    -------
    dict
        probe, device, name (the device's), summary, unit (of a stride), rows (each with stride,
        seconds, per_second: bytes, of shared memory accesses; ratio: seconds over those of the
        first row), means (a sentence).

    Raises
    ------
    ValueError
        If there is no such probe, or the device runs no kernels.
    DeviceNotAvailable
    """
    if name not in PROBES:
        raise ValueError(f"the probe must be one of {', '.join(PROBES)}, got {name!r}")
    wanted, place = PROBES[name], climbing.place_of(device)
    if not place.devices:
        nearest = next(iter(devices.proven()), None)
        if nearest is None:
            raise DeviceNotAvailable(
                f"{name} is a kernel of a device, and none is here: {'; '.join(devices.missing())}"
            )
        raise ValueError(
            f"{name} is a kernel of a device, and {CPU!r} runs none: --device {nearest} is the "
            "nearest that does"
        )
    own, rows = place.devices[0], []
    with own.active():
        data, owner = _data(own) if wanted.piece else (None, None)
        for number, stride in enumerate(wanted.strides):
            if progress is not None:
                progress(number / len(wanted.strides), f"stride {stride}")
            seconds, rate = _timed(own, wanted, stride, data)
            rows.append({"stride": stride, "seconds": seconds, "per_second": rate})
        del data, owner
    for row in rows:
        row["ratio"] = row["seconds"] / rows[0]["seconds"]
    return {
        "probe": name,
        "device": place.name,
        "name": place.info.get("name", place.name),
        "summary": wanted.summary,
        "unit": f"{max(wanted.piece, 1) * access.BYTES} bytes",
        "rows": rows,
        "means": means(wanted, rows, bool(place.info.get("is_host_cpu"))),
    }


def means(wanted: Probe, rows: Sequence[dict[str, Any]], on_cpu: bool) -> str:
    """One sentence on the measured figures."""
    worst = max(rows, key=lambda row: row["ratio"])
    if worst["ratio"] < _SEEN:
        best = min(row["ratio"] for row in rows)
        text = f"{wanted.none}: worst/best {worst['ratio'] / best:.2f}"
    else:
        first = next(row for row in rows if row["ratio"] > _SAME * worst["ratio"])
        text = f"stride {first['stride']}: {rounded(first['ratio'], 2)}x slower"
        stride = first["stride"]
        meaning = wanted.meaning.format(stride=stride, bytes=stride * access.BYTES)
        text += "" if on_cpu else f": {meaning}"
    return f"{text}; {wanted.on_cpu}" if on_cpu else text


def _bytes(own: Device) -> int:
    most = _BYTES if traits(own.kind).own_clock else _BYTES_OTHERS
    room = int(own.describe()["memory_bytes"]) // 4
    return min(most, 1 << room.bit_length() - 1)


def _data(own: Device) -> tuple[Any, Any]:
    data, owner = own.allocate(_bytes(own))
    own.fill(data, _bytes(own))
    return data, owner


def _timed(own: Device, wanted: Probe, stride: int, data: Any) -> tuple[float, float]:
    """Seconds of the kernel, and what it reads a second: bytes, of shared memory elements."""
    if not wanted.piece:
        return roof.shared(own, stride)
    nbytes = _bytes(own)
    launch = access.strided(wanted.piece, stride, nbytes // access.BYTES, own.block_limit)
    out, _owner = own.allocate(launch.grid * launch.block * access.BYTES)
    seconds = roof.seconds_of(own, launch, {"data": data, "out": out})
    return seconds, nbytes / seconds


def text(found: dict[str, Any]) -> str:
    """The figures as a table, and what they mean."""
    per = "GB/s" if PROBES[found["probe"]].piece else "10^9 reads/s"
    cells = [
        [
            str(row["stride"]),
            readable(row["seconds"]),
            rounded(row["per_second"] * 1e-9),
            f"{row['ratio']:.2f}",
        ]
        for row in found["rows"]
    ]
    head = (f"stride, {found['unit']}", "time", per, "times the first")
    title = f"{found['probe']} on {found['device']} ({found['name']}): {found['summary']}"
    return "\n".join([title, "", *markdown(head, cells), "", found["means"]])


def draw(found: dict[str, Any], picture: Any) -> None:
    """Draw time over stride on a figure of matplotlib's."""
    axes = picture.subplots()
    rows = sorted(found["rows"], key=lambda row: row["stride"])
    axes.plot(range(len(rows)), [row["ratio"] for row in rows], marker="o", color="black")
    axes.set_xticks(range(len(rows)), [row["stride"] for row in rows])
    axes.set_yscale("log", base=2)
    axes.set_xlabel(f"stride in {found['unit']}")
    axes.set_ylabel("times the first")
    axes.grid(True, which="major", linewidth=0.4)
    axes.set_title(f"{found['probe']} on {found['name']}\n{found['means'].partition(';')[0]}")
