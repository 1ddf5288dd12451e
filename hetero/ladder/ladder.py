"""`hetero ladder`: the kernels of an operation from the first idea to the best, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np

from hetero.errors import readable
from hetero.evaluation.comparing import leaving_out
from hetero.evaluation.report import by, draw_curves, markdown, rounded
from hetero.imports import load
from hetero.ladder import families, probe
from hetero.ladder.families import Dims, Family, OnCpu, OnDevice
from hetero.ladder.probe import Clock
from hetero.pricing.plan import CPU
from hetero.terminal import Progress, silent

_SIZES, _SIZES_OTHERS = {"cuda": (256, 1024, 4096)}, (64, 256, 512)
_LIMIT, _LIMIT_OTHERS = 1.0, 0.5  # seconds of a call
_CHECKED = 29  # extent at which results are checked: no block divides it
_OF_ROW = ("number", "idea", "adds", "seed", "instead_of")  # what a row says of a rung or a loop
Row = dict[str, Any]
Ground = Callable[[Dims], Any]  # gives what runs a size


def ladder(
    function: str,
    dtype: str | None = None,
    sizes: Sequence[int] | None = None,
    *,
    dims: Sequence[int] | None = None,
    device: str | None = None,
    threads: Sequence[int] = (),
    limit: float | None = None,
    filter: int | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Check every rung against NumPy, and time it and the methods above on operands on the device.

    Parameters are the command's options; ``progress`` is as in `hetero.calibrate`.

    Returns
    -------
    dict
        operation, device, name (the device's), dtype, what (is timed), roof (`probe.roof`), rows:
        size (the first dimension), dims, number, method, idea, of a rung also block or threads,
        instead_of, adds, seed; seconds, flops_per_second, bytes_per_second, gain (over the row
        before that is no branch; of a branch over its rung), share (of what the roof allows),
        over_cpu (how many times as fast as the CPU's best); or reason.

    Raises
    ------
    ValueError, DeviceNotAvailable
        For what is no such option, or a rung with a wrong result; for such a device.
    """
    of, place = families.family(function), probe.place_of(device)
    dtype, kind = dtype or of.dtype, CPU if place is None else place.kind
    every = families.problems(of, sizes, dims, filter, _SIZES.get(kind, _SIZES_OTHERS))
    there = load("numba").config.NUMBA_NUM_THREADS if threads and place is None else 0
    if threads and not 1 <= min(threads) <= max(threads) <= there:
        got = ", ".join(map(str, threads))
        raise ValueError(f"threads are of device {CPU!r}, 1 to {there} there, got {got}")
    most = limit or (_LIMIT if place is not None and place.is_cuda else _LIMIT_OTHERS)
    rows: list[Row] = []
    with nullcontext() if place is None else place.active():
        clock = Clock(place)
        above = probe.roof(clock, dtype)
        runner = partial(OnCpu, threads) if place is None else partial(OnDevice, place)
        ground = partial(runner, of, dtype)
        _check(of, ground)
        for at, size in enumerate(every):
            for row in _rows(ground, size, clock, most):
                rows.append({"size": size[0], "dims": list(size), **row})
                share = min(row["number"] / len(of.ladder.rungs), 1.0)
                progress((at + share) / len(every), f"{function} {row['method']}")
    _compare(rows, of, np.dtype(dtype).itemsize, above)
    found = {"operation": function, **probe.named(place), "dtype": dtype, "what": of.what}
    return found | {"roof": above, "rows": rows}


def _check(of: Family, ground: Ground) -> None:
    """Compile every rung, and compare its result at a small size with NumPy's."""
    dims = tuple(min(size, _CHECKED) for size in of.of_size(_CHECKED))
    small = ground(dims)
    names = [name for name in small.rungs if small.obstacle(name) is None]
    if isinstance(small, OnDevice):
        small.compile_ahead(*((name,) for name in names))
    for name in names:
        ground(dims).check(name)


def _rows(sized: Ground, dims: Dims, clock: Clock, limit: float) -> Iterator[Row]:
    """The rows of a size: rungs or loops, hetero's methods, the best of the CPU."""
    ground, number = sized(dims), 0
    of = ground.of
    for name, rung in ground.rungs.items():
        number = rung.number

        def seconds(small: Dims, name: str = name) -> float:
            return clock.seconds(sized(small).prepared(name))

        for how in ground.variants(name):
            row = {"method": name} | {n: getattr(rung, n) for n in _OF_ROW} | how
            with leaving_out("reason", row):
                if reason := ground.obstacle(name) or families.too_long(of, dims, limit, seconds):
                    row["reason"] = reason
                else:
                    row["seconds"] = clock.seconds(ground.prepared(name, **how)) / rung.repeats
            yield row
    for name, idea in ground.methods.items():
        with leaving_out(name, {}):
            taken = clock.seconds(ground.method(name)) / of.made
            number += 1
            yield {"method": name, "number": number, "idea": idea, "seconds": taken}
    call = partial(of.call, {**ground.arrays, "host": ground.arrays}, device=CPU)
    row = {"method": f"{CPU}'s best", "number": number + 1, "idea": "hetero's own call on the host"}
    yield row | {"seconds": Clock(None).seconds(lambda turn: call()) / of.made}


def _compare(rows: list[Row], of: Family, item: int, above: Any) -> None:
    """Add rates, gains, and how near the roof and how far from the CPU each row is."""
    before: dict[Any, float] = {}
    best = {row["size"]: row["seconds"] for row in rows if row["method"].startswith(CPU)}
    for row in (row for row in rows if "seconds" in row):
        seconds, size, branch = row["seconds"], row["size"], row.get("instead_of", "")
        flops, elements = of.work(*row["dims"])
        rates = {"flops_per_second": flops / seconds, "bytes_per_second": elements * item / seconds}
        last = None if row["method"].startswith(CPU) else before.get((size, branch))
        row |= rates | {
            "share": max(rate / above[name] for name, rate in rates.items()),
            "over_cpu": best[size] / seconds,
            "gain": None if last is None else last / seconds,
        }
        before[size, row["method"]] = seconds
        if not branch:
            before[size, ""] = seconds


def text(found: dict[str, Any]) -> str:
    """The ladder as tables, one for each size."""
    above = found["roof"]
    flops, nbytes = (rounded(1e-9 * above[f"{what}_per_second"]) for what in ("flops", "bytes"))
    lines = [
        "{operation} {dtype} on {device} ({name}), one {what}".format_map(found),
        f"roof: {flops} GFLOP/s ({above['how']}), {nbytes} GB/s (a copy)",
    ]
    head = ("", "method", "time", "GFLOP/s", "GB/s", "gain", "of the roof", "over the CPU")
    for dims in dict.fromkeys(tuple(row["dims"]) for row in found["rows"]):
        rows = [row for row in found["rows"] if tuple(row["dims"]) == dims]
        timed = [row for row in rows if "seconds" in row]
        lines += ["", by(dims), *markdown((*head, "what is new"), map(_cells, timed))]
        lines += [f"{_label(row)} is left out: {row['reason']}" for row in rows if "reason" in row]
    return "\n".join(lines)


def _label(row: Row) -> str:
    return row["method"] + (f", {row['threads']} threads" if row.get("threads") else "")


def _cells(row: Row) -> list[str]:
    branch, gain = row.get("instead_of"), "" if row["gain"] is None else f"{row['gain']:.2f}"
    rates = (rounded(1e-9 * row[name]) for name in ("flops_per_second", "bytes_per_second"))
    return [
        *("or" if branch else str(row["number"]), _label(row), readable(row["seconds"]), *rates),
        gain + (f" of {branch}" if gain and branch else ""),
        *(f"{rounded(100 * row['share'], 2)} %", f"{row['over_cpu']:.2f}", row["idea"]),
    ]


def draw(found: dict[str, Any], picture: Any) -> None:
    """Draw the rates of each method over the size on a figure of matplotlib's."""
    curves: dict[str, dict[int, float]] = {}
    for row in found["rows"]:
        if "seconds" in row:
            curves.setdefault(_label(row), {})[row["size"]] = 1e-9 * row["flops_per_second"]
            most = 1e-9 * found["roof"]["flops_per_second"]
            curves.setdefault("roof", {})[row["size"]] = most
    title = f"{found['operation']} {found['dtype']} on {found['name']}"
    draw_curves(picture, title, "size", curves, unit="GFLOP/s")
