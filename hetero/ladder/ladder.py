"""`hetero ladder`: the kernels of an operation from the first idea to the best, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np

from hetero.calibration.measure.candidates import leaving_out
from hetero.evaluation import report
from hetero.evaluation.report import by, gained, prefixed, rounded
from hetero.host import limits
from hetero.ladder import families, running
from hetero.ladder.families import REPEATS, Dims, Family
from hetero.ladder.roof import roof
from hetero.ladder.running import Clock, OnCpu, OnDevice
from hetero.pricing.plan import CPU
from hetero.times import readable

PICTURE = (11.0, 5.5)  # inches
_MARKS = "osv^D<>pP*Xhd"  # which differ without colours too
_SIZES = {"cuda": (256, 1024, 4096)}
_SIZES_OTHERS = (64, 256, 512)
_LIMIT, _LIMIT_OTHERS = 1.0, 0.5  # seconds of a call


def ladder(
    function: str,
    dtype: str = "float32",
    sizes: Sequence[int] | None = None,
    *,
    dims: Sequence[int] | None = None,
    device: str | None = None,
    threads: Sequence[int] = (),
    limit: float | None = None,
    filter: int | None = None,
    curve: bool = False,
    progress: Callable[[float, str], None] | None = None,
) -> dict[str, Any]:
    """Check every rung against NumPy, and time it and the methods above on operands on the device.

    Parameters
    ----------
    function : str
        One of `families.FAMILIES`.
    dtype : {"float32", "float64"}
    sizes : sequence of int, optional
        Extents of squares; of k-means rows. Default: three.
    dims : sequence of int, optional
        The dimensions of one size, in place of ``sizes``.
    device : str, optional
        Default: the first GPU, without one the first OpenCL device.
    threads : sequence of int, optional
        Numbers of threads that the CPU's loops with several are timed on.
    limit : float, optional
        Seconds of a call above which none is made. Default: 1 on a GPU, else 0.5.
    filter : int, optional
        Extent of a convolution's filter. Default: 15.
    curve : bool
        By default as many sizes as double from the least to the largest.
    progress : callable, optional
        As in `hetero.calibrate`.

    Returns
    -------
    dict
        operation, device, name (the device's), dtype, what (is timed), roof (the fields of `Roof`),
        rows: size (the first dimension), dims, number, method, block, threads, rung (whether it is
        one), instead_of, idea, gain_expected, seed; seconds, flops_per_second, bytes_per_second,
        gain (over the row before of that size that is no branch; of a branch over its rung), share
        (of what the roof allows), over_cpu (how many times as fast as the CPU's best); or reason.

    Raises
    ------
    ValueError
        For what is none of these, or a rung whose result is wrong.
    DeviceNotAvailable
    """
    of = families.family(function)
    place = running.place_of(device)
    usual = _SIZES.get(CPU if place is None else place.kind, _SIZES_OTHERS)
    if curve:
        usual = tuple(usual[0] << i for i in range((usual[-1] // usual[0]).bit_length()))
    every = problems(of, sizes or (None if dims else usual), dims, filter)
    if threads and place is not None:
        raise ValueError(f"threads are of device {CPU!r}, got {place.name!r}")
    if min(threads, default=1) < 1:
        raise ValueError(f"threads must be 1 or more, got {', '.join(map(str, threads))}")
    own = place is not None and place.traits.own_clock
    most = limit or (_LIMIT if own else _LIMIT_OTHERS)
    rows: list[dict[str, Any]] = []
    with place.active() if place is not None else nullcontext():
        above, clock = roof(place, dtype), Clock(place)
        if place is not None:
            _check(of, place, dtype)
        for at, size in enumerate(every):
            if place is None:
                found = _loops(of, size, dtype, clock, most, threads)
            else:
                found = _rungs(of, place, size, dtype, clock, most)
            for number, row in enumerate(found):
                rows.append({"size": size[0], "dims": list(size), **row})
                if progress is not None:
                    share = number / (len(of.ladder.rungs) + len(of.methods) + 1)
                    progress((at + min(share, 1.0)) / len(every), f"{function} {row['method']}")
        above = above.raised(roof(place, dtype))
    _compare(rows, of, np.dtype(dtype).itemsize, above)
    return {
        "operation": function,
        "device": CPU if place is None else place.name,
        "name": CPU if place is None else place.describe()["name"],
        "dtype": dtype,
        "what": of.what,
        "roof": above._asdict(),
        "rows": rows,
    }


def problems(
    of: Family, sizes: Sequence[int] | None, dims: Sequence[int] | None, filter: int | None
) -> list[Dims]:
    """The dimensions of some sizes, or those that are given, checked."""
    for name, given in (("sizes", sizes), ("dims", dims), ("filter", filter and [filter])):
        if given is not None and min(given, default=0) < 1:
            raise ValueError(f"{name} must be 1 or more, got {', '.join(map(str, given))}")
    if filter is not None and of.name != "convolution":
        raise ValueError(f"--filter is of a convolution, not of {of.name}")
    if dims is not None:
        if sizes or filter or len(dims) != len(of.dims):
            raise ValueError(f"--dims are {' '.join(of.dims)}, alone, got {by(dims)}")
        return [tuple(dims)]
    return [of.of_size(size, *([filter] if filter else [])) for size in dict.fromkeys(sizes)]


def _check(of: Family, place: Any, dtype: str) -> None:
    """Compile every rung, and compare its result at a small size with NumPy's."""
    dims = tuple(
        size // 3 + 7 for size in of.of_size(64, *([9] if of.name == "convolution" else []))
    )
    ground = OnDevice(place, of, dims, dtype)
    place.compile_ahead([one for name in of.ladder.rungs for one in ground.wanted(name)])
    for name, rung in of.ladder.rungs.items():
        ground = OnDevice(place, of, dims, dtype)
        if ground.obstacle(name) is None:
            running.check(
                name, ground.results(name), of.expected(ground.arrays, rung.repeats), dtype
            )


def _rungs(
    of: Family, place: Any, dims: Dims, dtype: str, clock: Clock, limit: float
) -> Iterator[dict[str, Any]]:
    """The rows of a size on a device: rungs, hetero's methods, the best of the CPU."""
    ground = OnDevice(place, of, dims, dtype)
    number = 0
    for name, rung in of.ladder.rungs.items():
        number, failed = rung.number, {}
        row = {"number": number, "method": name, "rung": True, "instead_of": rung.instead_of}
        row |= {"idea": rung.idea, "gain_expected": rung.adds, "seed": rung.seed}
        with leaving_out(name, failed):

            def once(small: Dims, name: str = name) -> float:
                return clock.once(OnDevice(place, of, small, dtype).prepared(name))

            reason = ground.obstacle(name) or running.too_long(dims, limit, of, once)
            if reason is None:
                seconds = clock.seconds(ground.prepared(name)) / rung.repeats
                row |= {"block": list(ground.chosen(name)), "seconds": seconds}
            else:
                row["reason"] = reason
        yield row | ({"reason": failed[name]} if failed else {})
    for name, idea in of.methods.items():
        number, failed = number + 1, {}
        with leaving_out(name, failed):
            seconds = clock.seconds(ground.method(name)) / REPEATS.get(name, 1)
            yield _own(number, name, idea, seconds)
        number -= bool(failed)
    yield _best_of_cpu(of, number + 1, ground.arrays)


def _own(number: int, method: str, idea: str, seconds: float) -> dict[str, Any]:
    """A row of a method of hetero's."""
    return {"number": number, "method": method, "rung": False, "idea": idea, "seconds": seconds}


def _best_of_cpu(of: Family, number: int, arrays: dict[str, Any]) -> dict[str, Any]:
    """hetero's own call on the CPU, from host to host."""
    where: dict[str, Any] = {"device": CPU}
    where |= {"method": "jacobi"} if of.name == "jacobi" else {}
    call = partial(of.call, {**arrays, "host": arrays}, **where)
    seconds = Clock(None).seconds(lambda turn: call()) / REPEATS.get(where.get("method"), 1)
    return _own(number, f"{CPU}'s best", "hetero's own call on the host", seconds)


def _loops(
    of: Family, dims: Dims, dtype: str, clock: Clock, limit: float, threads: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """The rows of a size on the CPU."""
    number = 0
    for loop in families.loops(of):
        number = loop.number
        row = {"number": number, "method": loop.name, "rung": True, "idea": loop.idea}
        row |= {"gain_expected": loop.adds, "seed": loop.seed}

        def once(small: Dims, loop: Any = loop) -> float:
            return clock.once(OnCpu(of, small, dtype).prepared(loop))

        if (reason := running.too_long(dims, limit, of, once)) is not None:
            yield row | {"reason": reason}
            continue
        ground = OnCpu(of, dims, dtype)
        for count in threads if loop.threads and threads else (None,):
            most = limits.most(limits.LOOPS)
            if count is not None and count > most:
                yield row | {"threads": count, "reason": f"it has {most} threads, not {count}"}
                continue
            seconds = clock.seconds(ground.prepared(loop, count))
            yield row | {"threads": count, "seconds": seconds}
    yield _best_of_cpu(of, number + 1, of.operands(np.random.default_rng(0), dtype, *dims))


def _compare(rows: list[dict[str, Any]], of: Family, item: int, above: Any) -> None:
    """Add rates, gains, and how near the roof and how far from the CPU each row is."""
    before: dict[Any, float] = {}
    best = {row["size"]: row["seconds"] for row in rows if row["method"].startswith(CPU)}
    for row in rows:
        if "seconds" not in row:
            continue
        seconds, size, dims = row["seconds"], row["size"], row["dims"]
        row["flops_per_second"] = of.flops(*dims) / seconds
        row["bytes_per_second"] = of.elements(*dims) * item / seconds
        row["share"] = above.seconds(row["flops_per_second"], row["bytes_per_second"])
        row["over_cpu"] = best[size] / seconds if size in best else None
        branch = row.get("instead_of", "")
        last = before.get((size, branch))
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
    head = ["", "method", "time", "GFLOP/s", "GB/s", "gain", "of the roof", "over the CPU"]
    for dims in dict.fromkeys(tuple(row["dims"]) for row in found["rows"]):
        rows = [row for row in found["rows"] if tuple(row["dims"]) == dims]
        timed = [row for row in rows if "seconds" in row]
        lines += ["", by(dims), *report.markdown([*head, "what is new"], list(map(_cells, timed)))]
        lines += [f"{_label(row)} is left out: {row['reason']}" for row in rows if "reason" in row]
        if any(row["share"] > 1.0 for row in timed):
            lines.append("more than 100 %: caches spared the memory what its rows count")
    return "\n".join(lines)


def _label(row: dict[str, Any]) -> str:
    count = row.get("threads")
    return row["method"] + ("" if count is None else f", {count} threads")


def _cells(row: dict[str, Any]) -> list[str]:
    gain = "" if row["gain"] is None else gained(row, f"{row['gain']:.2f}")
    return [
        "or" if row.get("instead_of") else str(row["number"]),
        _label(row),
        readable(row["seconds"]),
        rounded(1e-9 * row["flops_per_second"]),
        rounded(1e-9 * row["bytes_per_second"]),
        gain,
        f"{rounded(100 * row['share'], 2)} %",
        "" if row["over_cpu"] is None else f"{row['over_cpu']:.2f}",
        row["idea"],
    ]


def draw(found: dict[str, Any], picture: Any) -> None:
    """Draw the rates of each method over the size on a figure of matplotlib's."""
    axes = picture.subplots()
    rows = [row for row in found["rows"] if "seconds" in row]
    for at, name in enumerate(dict.fromkeys(_label(row) for row in rows)):
        points = [(r["size"], 1e-9 * r["flops_per_second"]) for r in rows if _label(r) == name]
        mark = _MARKS[at % len(_MARKS)]
        axes.plot(*zip(*points, strict=True), marker=mark, linewidth=0.9, label=name)
    axes.axhline(
        1e-9 * found["roof"]["flops_per_second"], color="0.4", linestyle="--", label="roof"
    )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set(xlabel="size", ylabel="GFLOP/s")
    axes.set_title(f"{found['operation']} {found['dtype']} on {found['name']}")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", ncols=2)
