"""`hetero bench`: an operation by every method side by side, and by the libraries that are here;
with "movement" the speed of copies of each kind and size. `hetero demo`: real calls compared.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hetero import devices, profile, registry, terminal
from hetero.arrays import HOST
from hetero.calibration import calibrate
from hetero.calibration.measure import measure
from hetero.calling import overview, planner
from hetero.devices.base import Device
from hetero.errors import one_of, readable
from hetero.evaluation import comparing, problems
from hetero.evaluation.comparing import compared, on_device
from hetero.evaluation.report import markdown
from hetero.host import cpu
from hetero.imports import load
from hetero.pricing.plan import CPU
from hetero.profile import inventory
from hetero.registry import Operation
from hetero.terminal import Progress, silent

SIZES = tuple(1 << n for n in (16, 20, 24, 28, 30))  # bytes of a copy
_SECONDS = 0.4  # for all samples of a copy
_LONGEST = 5.0  # predicted seconds of a candidate that is timed
_LARGEST, _LARGEST_ON_GPU = 2048, 8192  # extents of demo
_LONGEST_CALL = 0.5  # predicted seconds of a call on host operands, of sizes that nobody named


def _case(operation: Operation, dims: tuple[int, ...], place: str, dtype: str) -> str:
    """What is compared, in words."""
    extents = "x".join(map(str, dims))
    return f"{operation.function} {extents}, operands on {place}, {dtype}"


def bench(
    operation: Operation,
    dtype: str | None = None,
    *,
    device: str | None = None,
    order: str = "C",
    cases: str | None = None,
    progress: Progress = silent,
) -> list[dict[str, Any]]:
    """Rows of `hetero.evaluation.comparing` for each size that is compared of an operation.

    Operands lie on the host, and on the first GPU; those of products on the ``device`` alone, which
    is "cpu" for the host, their first one in this ``order``. ``cases`` names sizes that others
    measured. A size for which there is no room, or no time, is left out.

    Raises
    ------
    ValueError
        If the operation has no cases of that name; the message names those that it has.
    """
    of, gpu = problems.of(operation), problems.cuda_device()
    options, sizes = {"order": order} if "order" in of.options else {}, of.sizes
    if cases is not None:
        if not of.cases:
            raise ValueError(f"--cases: there are none of {operation.function}, got {cases!r}")
        if cases not in of.cases:
            raise ValueError(one_of(f"--cases of {operation.function}", of.cases, cases))
        dtype, sizes = dtype or of.cases[cases].dtype, of.cases[cases].sizes
    places = [HOST, gpu]
    if "device" in of.options:
        if device not in (None, CPU):
            devices.get(device)  # or says which there are
        device = device or gpu or CPU
        places = [HOST if device == CPU else device]
    every = [(place, dims) for place in places if place for dims in sizes]
    rows, dtype = list[dict[str, Any]](), dtype or of.dtype
    for number, (place, dims) in enumerate(every):
        case = _case(operation, dims, place, dtype)
        progress(number / len(every), case)
        problem = operation.from_dims(dims, dtype, HOST)
        nbytes = sum(o.nbytes for o in (*problem.inputs, problem.output))
        if 8 * nbytes > inventory.devices()[CPU if place == HOST else place]["memory_bytes"]:
            continue
        if place == HOST and cases is None:
            predicted = planner.plan(problem, CPU if device == CPU else None).seconds
            if predicted is not None and predicted > _LONGEST_CALL:
                continue
        trial = of.trial(dims, dtype, **options)
        if place == HOST:
            row = compared(operation, trial, case, longest=_LONGEST)[0]
        elif all(isinstance(x, (np.ndarray, int)) for x in trial.operands):
            row = on_device(operation, trial, case, devices.get(place), longest=_LONGEST)
        else:
            continue
        if set(row["seconds"]) - set(row["peers"]):
            rows.append(row)
    return rows


# -- Movement --------------------------------------------------------------------------------------


def movement(
    *, device: str | None = None, sizes: tuple[int, ...] = SIZES, progress: Progress = silent
) -> dict[str, Any]:
    """Speed of copies of ``sizes`` bytes, for which there is room, by default to the first GPU.

    Gives device; copies: for each size bytes and the bytes per second of each kind of copy.

    Raises
    ------
    DeviceNotAvailable
        If there is no such device, or none at all.
    """
    where, copies = problems.device_of(device), []
    room = int(where.describe()["memory_bytes"]) // 4
    for number, nbytes in enumerate(size for size in sizes if size <= room):
        progress(number / len(sizes), f"copies of {nbytes} bytes")
        copies.append({"bytes": nbytes, **speeds(where, nbytes)})
    return {"device": where.name, "copies": copies}


def speeds(device: Device, nbytes: int) -> dict[str, float]:
    """Bytes per second of each kind of copy, of both directions together where both go at once."""
    with device.active():
        (there, _one), (other, _two) = device.allocate(nbytes), device.allocate(nbytes)
        ordinary = np.random.default_rng(0).integers(0, 255, nbytes, np.uint8)
        given, shape = np.ones(nbytes, np.uint8), (nbytes,)
        pinned, second = device.pinned(nbytes), device.pinned(nbytes)
        pinned[:], second[:] = ordinary, 1

        def both() -> None:
            down = device.begin_download(other, second)
            device.begin_upload(pinned, there).wait()
            down.wait()

        ways: dict[str, Callable[[], object]] = {
            "upload": lambda: device.upload(ordinary, there),
            "upload, pinned": lambda: device.upload(pinned, there),
            "download, new array": lambda: device.download(there, cpu.empty(shape, np.uint8)),
            "download, fresh pages": lambda: device.download(there, np.empty(nbytes, np.uint8)),
            "download, given array": lambda: device.download(there, given),
            "download, pinned": lambda: device.download(there, pinned),
            "both at once, pinned": both,
        }
        found = {}
        for name, copy in ways.items():
            moved = nbytes * (2 if name.startswith("both") else 1)
            found[name] = moved / measure(copy, budget=_SECONDS)
    return found


def text(found: Mapping[str, Any]) -> str:
    """What `movement` gives, in Markdown."""
    kinds = [name for name in found["copies"][0] if name != "bytes"]
    sizes = [f"{row['bytes'] >> 10} KiB" for row in found["copies"]]
    cells = [[kind, *(f"{row[kind] / 1e9:.1f}" for row in found["copies"])] for kind in kinds]
    head = f"copies between the host and {found['device']}, in GB/s\n"
    return "\n".join([head, *markdown(("", *sizes), cells)])


# -- Demo ------------------------------------------------------------------------------------------


def demo(
    *,
    largest: int | None = None,
    picture: str | None = None,
    progress: Progress = silent,
    show: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Run the demonstration, by the stored profile of this machine if there is one.

    Else the machine is measured quickly, for this process alone. Nothing is watched between calls:
    each moves its operands and its result, as the plan of a first call and the other libraries do.
    ``picture`` names a PGM file for a photograph that was convolved with the largest filter.

    Gives a row of `hetero.evaluation.comparing` for each call.
    """
    start = time.perf_counter()
    progress(0.0, "trying the devices")
    show(overview.machine().brief())
    if (stored := profile.survey()) and stored.obstacle is None:
        profile.set_current(None)  # but for this file's, one may be set
        show(f"by the profile {stored.path}")
    else:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "profile.json")
            calibrate(True, file, progress=lambda done, text: progress(0.6 * done, text))
        took = readable(time.perf_counter() - start)
        show(f"calibrated in {took}, for this run alone ('hetero calibrate' does it better, once)")
    usual = _LARGEST_ON_GPU if problems.cuda_device() else _LARGEST
    size = largest or usual
    shown = [(o, dims) for o in registry.operations() for dims in problems.of(o).shown(size)]
    rows, plans = list[dict[str, Any]](), []
    for number, (operation, dims) in enumerate(shown):
        of = problems.of(operation)
        trial, case = of.trial(dims, of.dtype), _case(operation, dims, HOST, of.dtype)
        progress(0.6 + 0.4 * number / len(shown), case)
        if is_picture := operation.name == "convolve2d":
            trial = trial._replace(operands=_photograph(size, dims[-1]))
        with planner.use(watch=False):
            row, plan, result = compared(operation, trial, case)
        rows.append(row)
        plans.append(plan)
        show("\n" + terminal.aligned(comparing.text([row])))
        if is_picture and picture is not None and result is not None:
            pixels = np.clip(np.rint(255.0 * result), 0, 255).astype(np.uint8)
            Path(picture).write_bytes(b"P5 %d %d 255\n" % pixels.shape[::-1] + pixels.tobytes())
    show("\n" + terminal.aligned("\n".join(comparing.means(rows))))
    one = max(plans, key=lambda plan: len(plan.candidates))
    show(f"\nhow one of them was chosen, as hetero.plan and 'hetero explain' print it:\n{one}")
    show(f"\n{readable(time.perf_counter() - start)} in all")
    return rows


def _photograph(side: int, blur: int) -> tuple[np.ndarray, np.ndarray]:
    """A gray photograph of scikit-image's, float32 from 0 to 1, repeated or cut to that height and
    width, without that package waves; and a disk of that diameter, as of a lens out of focus."""
    try:
        found = load("skimage.data").camera() / np.float32(255.0)
    except ImportError:
        y, x = np.mgrid[0:512, 0:512].astype(np.float32) / 512.0
        found = 0.5 + 0.3 * np.sin(31.0 * x + 9.0 * y) * np.cos(23.0 * y)
    y, x = np.mgrid[:blur, :blur] - (blur - 1) / 2.0
    disk = (x**2 + y**2 <= blur**2 / 4.0).astype(np.float32)
    return np.tile(found, [-(-side // 512)] * 2)[:side, :side].copy(), disk / disk.sum()
