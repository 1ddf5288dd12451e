"""`hetero ladder`: the kernels of an operation from the first idea to the best, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np

from hetero.evaluation.comparing import leaving_out
from hetero.evaluation.report import by, draw_curves, markdown, prefixed, rounded
from hetero.host import loops as compiled
from hetero.imports import load
from hetero.ladder import families, running
from hetero.ladder.families import Arrays, Dims, Family
from hetero.ladder.running import Clock, OnDevice
from hetero.pricing.plan import CPU
from hetero.times import readable

PICTURE = (11.0, 5.5)  # inches
_SIZES, _SIZES_OTHERS = {"cuda": (256, 1024, 4096)}, (64, 256, 512)
_LIMIT, _LIMIT_OTHERS = 1.0, 0.5  # seconds of a call
_CHECKED = 29  # extent at which results are checked: no block divides it
Row = dict[str, Any]


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
    progress: Callable[[float, str], None] | None = None,
) -> dict[str, Any]:
    """Check every rung against NumPy, and time it and the methods above on operands on the device.

    Parameters are the command's options; ``progress`` is as in `hetero.calibrate`.

    Returns
    -------
    dict
        operation, device, name (the device's), dtype, what (is timed), roof (`running.roof`), rows:
        size (the first dimension), dims, number, method, idea, of a rung also block, threads,
        instead_of, adds, seed; seconds, flops_per_second, bytes_per_second, gain (over the row
        before that is no branch; of a branch over its rung), share (of what the roof allows),
        over_cpu (how many times as fast as the CPU's best); or reason.

    Raises
    ------
    ValueError, DeviceNotAvailable
        For what is no such option, or a rung with a wrong result; for such a device.
    """
    of, place = families.family(function), running.place_of(device)
    dtype = dtype or of.dtype
    usual = _SIZES.get(CPU if place is None else place.kind, _SIZES_OTHERS)
    every = families.problems(of, sizes, dims, filter, usual)
    there = load("numba").config.NUMBA_NUM_THREADS if threads and place is None else 0
    if threads and not 1 <= min(threads) <= max(threads) <= there:
        got = ", ".join(map(str, threads))
        raise ValueError(f"threads are of device {CPU!r}, 1 to {there} there, got {got}")
    most = limit or (_LIMIT if place is not None and place.is_cuda else _LIMIT_OTHERS)
    rows: list[Row] = []
    with place.active() if place is not None else nullcontext():
        above, clock = running.roof(place, dtype), Clock(place)
        if place is not None:
            _check(of, place, dtype)
        for at, size in enumerate(every):
            given = of, size, dtype, clock, most
            found = _loops(*given, threads) if place is None else _rungs(*given, place)
            for row in found:
                rows.append({"size": size[0], "dims": list(size), **row})
                if progress is not None:
                    share = min(row["number"] / len(of.ladder.rungs), 1.0)
                    progress((at + share) / len(every), f"{function} {row['method']}")
    _compare(rows, of, np.dtype(dtype).itemsize, above)
    return {
        "operation": function,
        "device": CPU if place is None else place.name,
        "name": CPU if place is None else place.describe()["name"],
        "dtype": dtype,
        "what": of.what,
        "roof": above,
        "rows": rows,
    }


def _check(of: Family, place: Any, dtype: str) -> None:
    """Compile every rung, and compare its result at a small size with NumPy's."""
    dims = tuple(min(size, _CHECKED) for size in of.of_size(_CHECKED))
    ground = OnDevice(place, of, dims, dtype)
    launches = [step.launch for name in of.ladder.rungs for step in ground.steps(name).launches]
    place.compile_ahead([(launch.source, launch.defines) for launch in launches])
    for name in of.ladder.rungs:
        OnDevice(place, of, dims, dtype).check(name)


def _rungs(
    of: Family, dims: Dims, dtype: str, clock: Clock, limit: float, place: Any
) -> Iterator[Row]:
    """The rows of a size on a device: rungs, hetero's methods, the best of the CPU."""
    ground, number = OnDevice(place, of, dims, dtype), 0
    for name, rung in of.ladder.rungs.items():
        number, failed = rung.number, {}
        row = _row(rung) | {"instead_of": rung.instead_of, "block": list(ground.chosen(name))}

        def once(small: Dims, name: str = name) -> float:
            return clock.once(OnDevice(place, of, small, dtype).prepared(name))

        with leaving_out(name, failed):
            reason = ground.obstacle(name) or running.too_long(dims, limit, of, once)
            failed |= {name: reason} if reason else {}
            if not failed:
                row["seconds"] = clock.seconds(ground.prepared(name)) / rung.repeats
        yield row | ({"reason": failed[name]} if failed else {})
    for name, idea in of.methods.items():
        failed = {}
        with leaving_out(name, failed):
            seconds = clock.seconds(ground.method(name)) / of.made
            number += 1
            yield {"method": name, "number": number, "idea": idea, "seconds": seconds}
    yield _best_of_cpu(of, number + 1, ground.arrays)


def _row(step: Any) -> Row:
    """What a table says of a rung or a loop."""
    return {"method": step.name} | {n: getattr(step, n) for n in ("number", "idea", "adds", "seed")}


def _best_of_cpu(of: Family, number: int, arrays: Arrays) -> Row:
    """hetero's own call on the CPU, from host to host."""
    call = partial(of.call, {**arrays, "host": arrays}, device=CPU)
    seconds = Clock(None).seconds(lambda turn: call()) / of.made
    idea = "hetero's own call on the host"
    return {"method": f"{CPU}'s best", "number": number, "idea": idea, "seconds": seconds}


def _loops(
    of: Family, dims: Dims, dtype: str, clock: Clock, limit: float, threads: Sequence[int]
) -> Iterator[Row]:
    """The rows of a size on the CPU."""
    loops, arrays = load("hetero.kernels.cpu.ladder").LADDERS.get(of.ladder.family, ()), None
    if not loops:
        raise ValueError(f"{of.ladder.family} has no loops on {CPU!r}: its kernels are a device's")
    for loop in loops:

        def once(small: Dims, loop: Any = loop) -> float:
            return clock.once(running.on_cpu(of, of.arrays(dtype, small), loop))

        if reason := compiled.obstacle() or running.too_long(dims, limit, of, once):
            yield _row(loop) | {"reason": reason}
            continue
        arrays = arrays or of.arrays(dtype, dims)
        for count in threads if loop.threads and threads else (None,):
            seconds = clock.seconds(running.on_cpu(of, arrays, loop, count))
            yield _row(loop) | {"threads": count, "seconds": seconds}
    yield _best_of_cpu(of, loops[-1].number + 1, arrays or of.arrays(dtype, dims))


def _compare(rows: list[Row], of: Family, item: int, above: Any) -> None:
    """Add rates, gains, and how near the roof and how far from the CPU each row is."""
    before: dict[Any, float] = {}
    best = {row["size"]: row["seconds"] for row in rows if row["method"].startswith(CPU)}
    for row in rows:
        if "seconds" not in row:
            continue
        seconds, size, branch = row["seconds"], row["size"], row.get("instead_of", "")
        flops, elements = of.work(*row["dims"])
        row |= {"flops_per_second": flops / seconds, "bytes_per_second": elements * item / seconds}
        rates = "flops_per_second", "bytes_per_second"
        row["share"] = max(row[rate] / above[rate] for rate in rates)
        row["over_cpu"] = best[size] / seconds
        last = None if row["method"].startswith(CPU) else before.get((size, branch))
        row["gain"] = None if last is None else last / seconds
        before[size, row["method"]] = seconds
        if not branch:
            before[size, ""] = seconds


def text(found: dict[str, Any]) -> str:
    """The ladder as tables, one for each size."""
    above = found["roof"]
    lines = [
        f"{found['operation']} {found['dtype']} on {found['device']} ({found['name']}), one "
        f"{found['what']}",
        f"roof: {prefixed(above['flops_per_second'])}FLOP/s ({above['how']}), "
        f"{prefixed(above['bytes_per_second'])}B/s (a copy)",
    ]
    head = ("", "method", "time", "GFLOP/s", "GB/s", "gain", "of the roof", "over the CPU")
    for dims in dict.fromkeys(tuple(row["dims"]) for row in found["rows"]):
        rows = [row for row in found["rows"] if tuple(row["dims"]) == dims]
        timed = [row for row in rows if "seconds" in row]
        lines += ["", by(dims), *markdown((*head, "what is new"), [_cells(row) for row in timed])]
        lines += [f"{_label(row)} is left out: {row['reason']}" for row in rows if "reason" in row]
    return "\n".join(lines)


def _label(row: Row) -> str:
    return row["method"] + (f", {row['threads']} threads" if row.get("threads") else "")


def _cells(row: Row) -> list[str]:
    gain = "" if row["gain"] is None else f"{row['gain']:.2f}"
    if gain and row.get("instead_of"):
        gain += f" of {row['instead_of']}"
    return [
        "or" if row.get("instead_of") else str(row["number"]),
        _label(row),
        readable(row["seconds"]),
        rounded(1e-9 * row["flops_per_second"]),
        rounded(1e-9 * row["bytes_per_second"]),
        gain,
        f"{rounded(100 * row['share'], 2)} %",
        f"{row['over_cpu']:.2f}",
        row["idea"],
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
    draw_curves(picture.subplots(), title, "size", curves, unit="GFLOP/s")
