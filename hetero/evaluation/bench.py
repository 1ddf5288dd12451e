"""`hetero bench`: an operation by every method side by side, and by the libraries that are here;
with "movement" the speed of copies of each kind and size. `hetero demo`: real calls compared.
`hetero verify`: does the plan choose well? Random calls, every candidate measured.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hetero import devices, profile, registry, terminal
from hetero.arrays import HOST
from hetero.calibration import calibrate
from hetero.calibration.fit import residuals
from hetero.calibration.measure import measure
from hetero.calling import overview, planner
from hetero.devices.base import Device
from hetero.errors import one_of, readable
from hetero.evaluation import comparing, problems
from hetero.evaluation.calls import Arrays, draw
from hetero.evaluation.comparing import OWN, callers, compared, name_of, on_device, timed
from hetero.evaluation.problems import Trial
from hetero.evaluation.report import errors, markdown
from hetero.host import cpu
from hetero.imports import load
from hetero.pricing.plan import CPU
from hetero.profile import inventory
from hetero.registry import Operation, Problem
from hetero.terminal import Progress, silent

SIZES = tuple(1 << n for n in (16, 20, 24, 28, 30))  # bytes of a copy
_SECONDS = 0.4  # for all samples of a copy
_LONGEST = 5.0  # predicted seconds of a candidate that is timed
_LARGEST, _LARGEST_ON_GPU = 2048, 8192  # extents of demo
_LONGEST_CALL = 0.5  # predicted seconds of a call on host operands, of sizes that nobody named
USUAL = ("matvec", "matmul")  # what is verified unless others are named
_LONGEST_VERIFIED = 1.0  # predicted seconds of a candidate, above which a call is left out
_MUCH_SLOWER = 30.0  # than the best, by prediction: no candidate that needs to be measured
_BRIEF = 0.01  # seconds of a call, above which slow spells are a small part
_ROUNDS = 3, 9  # of the call in turn with the fastest candidate; of brief ones
# Times at most that both are measured where they are the same work, as long as they differ by more.
_AGAIN, _ALIKE = 3, 1.02
_WORST, _WRONG = 8, 1.05  # choices that are listed; times the best, above which one is wrong


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


# -- Does the plan choose well? --------------------------------------------------------------------


class Row(NamedTuple):
    """One random problem: what was predicted and what was measured, by "method on device"."""

    problem: Problem
    predicted: dict[str, float]  # seconds; that of the one that is chosen comes first
    measured: dict[str, float]  # of calls that name the candidate
    seconds: float  # of the call that is placed by itself
    best: str  # the fastest candidate
    failed: dict[str, str]  # why it could not be measured

    @property
    def ratio(self) -> float:
        """Seconds of the call that is placed by itself over those of the best one, itself included:
        a call that names a method is not always remembered, and may take longer."""
        return self.seconds / min(self.seconds, self.measured[self.best])


def verify(
    operations: tuple[Operation, ...],
    *,
    on: str = HOST,
    count: int = 100,
    seconds: float = 60.0,
    seed: int = 0,
    largest: int | None = None,
    progress: Progress = silent,
) -> list[Row]:
    """Measure every candidate of random problems, ``count`` for each operation.

    Operands lie ``on`` the host or a device; after ``seconds`` no further problem is drawn. The
    ``largest`` extent is 4096 unless it is given, 16384 where there is a GPU.
    """
    source = random.Random(seed)
    progress(0.0, "trying the devices")
    usual = 16384 if problems.cuda_device() else 4096
    memory, rows = Arrays(on), list[Row]()
    load("scipy.signal")  # as a program that filters images; until then few products are NumPy's
    begin, total = time.perf_counter(), count * len(operations)
    for number in range(total):
        spent = time.perf_counter() - begin
        if spent > seconds:
            break
        operation = operations[number % len(operations)]
        trial = draw(operation, source, on, largest or usual)
        problem = operation.problem(*trial.operands, **trial.options)
        progress(max(number / total, spent / seconds), str(problem))
        if (row := _measured(operation, trial, memory)) is not None:
            rows.append(row)
    return rows


def _measured(operation: Operation, trial: Trial, memory: Arrays) -> Row | None:
    """Predict and measure every candidate of a call, and the call itself; operands in ``memory``.

    None if a candidate has no price or would take too long, unless it is slower than another by
    far. One that fails is left out, and the choice is the best of those that are left.
    """
    plan, failed = planner.plan_call(operation, trial.operands, dict(trial.options)), {}
    prices = {name_of(c): c.seconds for c in plan.candidates if c.reason is None}
    if not prices or None in prices.values():
        return None
    most = max(_LONGEST_VERIFIED, _MUCH_SLOWER * min(prices.values()))
    prices = {name: seconds for name, seconds in prices.items() if seconds <= most}
    if max(prices.values()) > _LONGEST_VERIFIED:
        return None
    calls = callers(operation, memory.of(trial), trial.options, prices, failed)
    own = calls.pop(OWN, None)
    measured = timed(calls, failed=failed)
    predicted = {name: price for name, price in prices.items() if name in measured}
    if own is None or not predicted:
        return None
    # Not by the samples that it is the fastest by, maybe by luck, but in turn with the call; often,
    # or a slow spell of one of them would count as a wrong choice.
    best = min(measured, key=measured.__getitem__)
    rounds = _ROUNDS[measured[best] < _BRIEF]
    del measured[best]
    for _ in range(_AGAIN if best == next(iter(predicted)) else 1):
        taken = timed({OWN: own, best: calls[best]}, failed=failed, chosen=OWN, rounds=rounds)
        if taken.keys() != {OWN, best}:
            return None
        for name, seconds in taken.items():
            measured[name] = min(seconds, measured.get(name, seconds))
        if measured[OWN] <= _ALIKE * measured[best]:
            break
    return Row(plan.problem, predicted, measured, measured.pop(OWN), best, failed)


def summary(rows: list[Row]) -> dict[str, Any]:
    """The call over the best (geometric mean, 95th and 99th percentile, worst), prediction errors,
    and the worst choices, a line for each."""
    if not rows:
        return {"problems": 0, "left_out": {}, "worst_choices": []}
    worst = sorted(rows, key=lambda row: -row.ratio)
    ratios = np.array([row.ratio for row in rows])
    pairs: dict[str, list[tuple[float, float]]] = {}
    left_out = dict(devices.broken())  # device -> why measuring something there failed first
    for row in rows:
        for name, predicted in row.predicted.items():
            pairs.setdefault(_title(row, name), []).append((predicted, row.measured[name]))
        for name, reason in row.failed.items():
            method, _, device = name.partition(" on ")
            left_out.setdefault(device, f"{method}, {row.problem}: {reason}")
    return {
        "problems": len(rows),
        "chosen_over_best": {
            "geometric_mean": float(np.exp(np.log(ratios).mean())),
            "p95": float(np.percentile(ratios, 95)),
            "p99": float(np.percentile(ratios, 99)),
            "worst": float(ratios.max()),
            "fastest_within_5_percent": float((ratios <= _WRONG).mean()),
        },
        "fastest": dict(Counter(_title(row, row.best) for row in rows)),
        "prediction_error": {
            title: residuals(*map(list, zip(*found, strict=True)))
            for title, found in sorted(pairs.items())
        },
        "left_out": left_out,
        "worst_choices": [_line(row) for row in worst[:_WORST] if row.ratio > _WRONG],
    }


def _title(row: Row, name: str) -> str:
    return f"{registry.operation(row.problem.operation).function} {name}"


def _line(row: Row) -> str:
    named = (next(iter(row.predicted)), row.seconds), (row.best, row.measured[row.best])
    chosen, best = (
        f"{name} ({readable(seconds)}, predicted {readable(row.predicted[name])})"
        for name, seconds in named
    )
    return f"{row.ratio:5.2f}x {row.problem}: chose {chosen}, best {best}"


def text_of_choices(found: Mapping[str, Any]) -> str:
    """What `summary` gives."""
    left_out = [f"left out: {name}: {why}" for name, why in found["left_out"].items()]
    if not found["problems"]:
        return "\n".join(["no problem could be measured", *left_out])
    over = found["chosen_over_best"]
    lines = [
        f"{found['problems']} random problems",
        f"call / best: geometric mean {over['geometric_mean']:.3f}, 95th percentile "
        f"{over['p95']:.3f}, 99th {over['p99']:.3f}, worst {over['worst']:.3f}",
        *(f"  fastest {count} times: {name}" for name, count in sorted(found["fastest"].items())),
        *errors("prediction error", found["prediction_error"]),
    ]
    return "\n".join([*lines, *found["worst_choices"], *left_out])
