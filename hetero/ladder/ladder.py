"""`hetero ladder`: the kernels of an operation from the first idea to the best, side by side; and
`hetero sweep`: one of them with every legal block, and how far from the best its own block is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np

from hetero.errors import one_of, readable
from hetero.evaluation.comparing import leaving_out
from hetero.evaluation.report import by, draw_curves, markdown, rounded
from hetero.imports import load
from hetero.ladder import families, probe
from hetero.ladder.families import Dims, Family, OnCpu, OnDevice
from hetero.ladder.probe import Clock
from hetero.pricing.plan import CPU
from hetero.terminal import Progress, silent

_SIZES, _SIZES_OTHERS = {"cuda": (256, 1024, 4096)}, (64, 256, 512)
_SWEPT, _SWEPT_OTHERS = {"cuda": (4096,)}, (128,)
_LIMIT, _LIMIT_OTHERS = 1.0, 0.5  # seconds of a call
_CHECKED = 29  # extent at which results are checked: no block divides it
_OF_ROW = ("number", "idea", "adds", "seed", "instead_of")  # what a row says of a rung or a loop
_SHOWN = 8  # blocks in the table
_PARAMETERS = ("grid x", "grid y", "block x", "block y")  # White's four (2013, section 3.3)
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


# -- A rung with every legal block ---------------------------------------------------------------


def sweep(
    function: str,
    method: str,
    dtype: str | None = None,
    sizes: Sequence[int] | None = None,
    *,
    dims: Sequence[int] | None = None,
    device: str | None = None,
    filter: int | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Time a rung with each legal block; others are never launched. Parameters are the command's
    options.

    Returns
    -------
    dict
        operation, method, device, name (the device's), dtype, sizes: each with dims, blocks (each
        with block: threads along x, y and results of a thread; grid: blocks along x and y; seconds
        and flops_per_second, or the reason why it does not run), best, chosen (the block that the
        rung takes by itself), distance (by how much it takes longer than the best: 0.02 is 2 %);
        groups: what `groups` gives.

    Raises
    ------
    ValueError, DeviceNotAvailable
        If there is no such rung, or it has one block only; for such a device.
    """
    of, place = families.family(function), probe.place_of(device)
    if place is None:
        raise ValueError("blocks are of a device's kernels, and 'cpu' runs none")
    shaped = [name for name, rung in of.ladder.rungs.items() if rung.tile is not None]
    if method not in shaped:
        raise ValueError(one_of(f"--method for {function}", shaped, method))
    usual = _SWEPT.get(place.kind, _SWEPT_OTHERS)
    every, dtype = families.problems(of, sizes, dims, filter, usual), dtype or of.dtype
    with place.active():
        clock, found = Clock(place), []
        for at, size in enumerate(every):
            progress(at / len(every), f"{method} {by(size)}")
            found.append(_swept(OnDevice(place, of, dtype, size), method, clock))
    known = {"operation": function, "method": method, **probe.named(place), "dtype": dtype}
    return known | {"sizes": found, "groups": groups(found)}


def _swept(ground: OnDevice, method: str, clock: Clock) -> dict[str, Any]:
    """Each block timed."""
    if (reason := ground.obstacle(method)) is not None:
        raise ValueError(f"{method} cannot be swept at {by(ground.dims)}: {reason}")
    blocks = ground.of.ladder.blocks(method, ground.dtype, ground.card)
    repeats, (flops, _) = ground.rungs[method].repeats, ground.of.work(*ground.dims)
    ground.compile_ahead(*((method, block) for block in blocks))
    rows: list[dict[str, Any]] = []
    for block in blocks:
        wide, _ = ground.rungs[method].tile(block)
        along = 1 if wide == 1 else -(-ground.dims[1] // wide)
        grid = [along, ground.steps(method, block).launches[-1].launch.grid // along]
        rows.append({"block": list(block), "grid": grid})
        with leaving_out("reason", rows[-1]):
            seconds = clock.seconds(ground.prepared(method, block)) / repeats
            rows[-1] |= {"seconds": seconds, "flops_per_second": flops / seconds}
    timed = {tuple(one["block"]): one["seconds"] for one in rows if "seconds" in one}
    if not timed:
        raise ValueError(f"no block of {method} runs: {rows[0]['reason']}")
    best, own = min(timed, key=timed.__getitem__), ground.chosen(method)
    distance = timed[own] / timed[best] - 1.0 if own in timed else None
    found = {"dims": list(ground.dims), "blocks": rows, "best": list(best), "chosen": list(own)}
    return found | {"distance": distance}


def groups(sizes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """How well input parameters describe the times, by and percent: White's figure 3.7.

    All times are grouped by n, then also by the one of his four input parameters that leaves the
    smallest difference, and so on until three of them are used. percent: by how much the slowest
    time of a group is above the fastest, the mean of all groups.
    """
    rows = [
        (one["seconds"], {"n": size["dims"], **dict(zip(_PARAMETERS, given, strict=True))})
        for size in sizes
        for one in size["blocks"]
        if "seconds" in one
        for given in [(*one["grid"], *one["block"][:2])]
    ]

    def difference(*names: str) -> float:
        grouped: dict[str, list[float]] = {}
        for seconds, given in rows:
            grouped.setdefault(str([given[name] for name in names]), []).append(seconds)
        return 100 * fmean(max(times) / min(times) - 1.0 for times in grouped.values())

    used, found = ["n"], [{"by": ["n"], "percent": difference("n")}]
    while len(used) < len(_PARAMETERS):
        left = [name for name in _PARAMETERS if name not in used]
        used.append(min(left, key=lambda name: difference(*used, name)))
        found.append({"by": [*used], "percent": difference(*used)})
    return found


def text_of_blocks(found: dict[str, Any], every: bool = False) -> str:
    """The fastest blocks, or ``every`` one in their order, and how far apart they are."""
    lines = ["{operation} {dtype} by {method} on {device} ({name})".format_map(found)]
    head = ("x", "y", "results of a thread", "threads in all", "time", "of the best", "GFLOP/s", "")
    for size in found["sizes"]:
        timed = [one for one in size["blocks"] if "seconds" in one]
        order = sorted(timed, key=lambda one: one["seconds"])
        best, own = order[0]["seconds"], size["chosen"]
        shown = timed if every else order[:_SHOWN]
        shown = shown + [one for one in order if one["block"] == own and one not in shown]
        cells = [
            [*map(str, one["block"]), str(_threads(one)), readable(one["seconds"])]
            + [f"{one['seconds'] / best:.3f}", rounded(1e-9 * one["flops_per_second"])]
            + ["its own" * (one["block"] == own)]
            for one in shown
        ]
        ran = f"{len(timed)} of {len(size['blocks'])} blocks run"
        lines += ["", f"{by(size['dims'])}: {ran}", *markdown(head, cells)]
        far = size["distance"]
        own = "does not run" if far is None else f"takes {100 * far:.1f} % longer than the best"
        slowest = f"the slowest {order[-1]['seconds'] / best:.1f} times as long"
        lines.append(f"its own block {own}, {slowest}")
    steps = [f"{one['percent']:.0f} % by {', '.join(one['by'])}" for one in found["groups"]]
    return "\n".join([*lines, "", f"slowest over fastest of a group, mean: {'; '.join(steps)}"])


def _threads(one: dict[str, Any]) -> int:
    return one["grid"][0] * one["grid"][1] * one["block"][0] * one["block"][1]


def draw_blocks(found: dict[str, Any], picture: Any) -> None:
    """Draw the last size on a figure of matplotlib's: a map of x and y for each number of results
    of a thread; where y is 1, the mean time over all threads."""
    size = found["sizes"][-1]
    timed = [one for one in size["blocks"] if "seconds" in one]
    title = f"{found['operation']} {by(size['dims'])} by {found['method']}, time / best"
    best = min(one["seconds"] for one in timed)
    if {one["block"][1] for one in timed} == {1}:
        times: dict[int, list[float]] = {}
        for one in sorted(timed, key=_threads):
            times.setdefault(_threads(one), []).append(one["seconds"] / best)
        curves = {"mean of all blocks": {n: fmean(some) for n, some in times.items()}}
        draw_curves(picture, title, "threads in all", curves, unit="time / best")
        return
    picture.suptitle(title)
    each = sorted({one["block"][2] for one in timed})
    panes = picture.subplots(1, len(each), squeeze=False, sharey=True)[0]
    for axes, results in zip(panes, each, strict=True):
        here = {tuple(o["block"][:2]): o["seconds"] for o in timed if o["block"][2] == results}
        xs, ys = (sorted({place[axis] for place in here}) for axis in (0, 1))
        values = [[here.get((x, y), float("nan")) / best for x in xs] for y in ys]
        picture.colorbar(axes.imshow(values, origin="lower", aspect="auto", norm="log"), ax=axes)
        axes.set_xticks(range(len(xs)), xs)
        axes.set_yticks(range(len(ys)), ys)
        axes.set(xlabel="threads along x", ylabel="along y", title=f"{results} a thread")
