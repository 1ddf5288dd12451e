"""`hetero ladder`: the kernels of an operation from the first idea to the best, side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from hetero import registry
from hetero.calibration.measure.candidates import leaving_out
from hetero.evaluation import climbing, report
from hetero.evaluation.causes import binding
from hetero.evaluation.causes.roof import Roof, roof
from hetero.evaluation.climbing import Ground
from hetero.evaluation.report import by, gained, prefixed, rounded
from hetero.kernels.common.rungs import Rung
from hetero.ops import benchmark
from hetero.ops.cases import Place
from hetero.pricing.plan import CPU
from hetero.registry import Implementation, Operation, thread_counts
from hetero.times import readable

PICTURE = (11.0, 5.5)  # inches
_MARKS = "osv^D<>pP*Xhd"  # which differ without colours too
_SIZES = {"cuda": (256, 1024, 4096)}
_SIZES_OTHERS = (64, 256, 512)
_TIMES = 3  # that the roof is measured at most
_RATES = ("flops_per_second", "bytes_per_second")


def ladder(
    operation: Operation,
    dtype: str | None = None,
    sizes: Sequence[int] | None = None,
    *,
    device: str | None = None,
    threads: Sequence[int] = (),
    limit: float | None = None,
    filter: int | None = None,
    curve: bool = False,
    progress: Callable[[float, str], None] | None = None,
) -> dict[str, Any]:
    """Time every rung, and the methods above them, on operands that lie on the device.

    Parameters
    ----------
    operation : Operation
    dtype : str, optional
        Default: as for `hetero bench`.
    sizes : sequence of int, optional
        Extents of squares, or what the operation makes of them. Default: the operation's.
    device : str, optional
        Default: the first GPU, without one the first OpenCL device.
    threads : sequence of int, optional
        Numbers of threads, on each of which methods that have several are timed; of the CPU.
    limit : float, optional
        Seconds of a call above which none is made. Default: 1 on a GPU, else 0.5.
    filter : int, optional
        Extent of a convolution's filter. Default: the operation's.
    curve : bool
        By default as many sizes as double from the least to the largest of the operation's.
    progress : callable, optional
        As in `hetero.calibrate`.

    Returns
    -------
    dict
        operation, device, name (the device's), dtype, what (is timed: "call", "iteration"), roof
        (the fields of `Roof`, and times: how often it was measured), rows: size, dims, number,
        device, method, threads (None where they were not limited), rung (whether it is one),
        instead_of (of a branch the rung that it is compared with; it has that one's number), idea,
        gain_expected, seed (where in which document it comes from); seconds, flops_per_second,
        bytes_per_second, gain (over the row before of that size that is no branch; of a branch
        over its rung), measured_share (of what flops and bytes take at the roof), share (the same,
        of the fastest row of that size where it exceeds the roof), launches, wavefronts and
        in_flight where they are known (`hetero.evaluation.causes.binding.counts`), needs (seconds
        of each resource alone), limited_by, over_cpu; or reason. Where there are equal devices,
        their sharing is a row more, its gain over one of them. The last row of a size is the best
        method of the CPU; ``over_cpu`` is how many times as fast as that a device's row is; it has
        neither gain nor shares.

    Raises
    ------
    ValueError
        If the operation has no rungs there, or no filter where one is given, a size, a filter or a
        number of threads is less than 1, or threads are given for a device.
    DeviceNotAvailable
    """
    if sizes is not None and min(sizes, default=0) < 1:
        raise ValueError(f"sizes must be 1 or more, got {', '.join(map(str, sizes))}")
    if filter is not None and filter < 1:
        raise ValueError(f"filter must be 1 or more, got {filter}")
    if min(threads, default=1) < 1:
        raise ValueError(f"threads must be 1 or more, got {', '.join(map(str, threads))}")
    place = climbing.place_of(device)
    if threads and place.kind != CPU:
        raise ValueError(f"threads are of device {CPU!r}, got {place.name!r}")
    usual = benchmark.of(operation, "CLIMBED", {})
    if not sizes:
        sizes = usual.get(place.kind) or _SIZES.get(place.kind, _SIZES_OTHERS)
        if curve:
            least = min(sizes)
            sizes = [least << i for i in range((max(sizes) // least).bit_length())]
    sizes = [*dict.fromkeys(sizes)]
    with climbing.ground(operation, place, dtype, limit, filter) as ground:
        methods = climbing.rows(operation, ground)
        above, times = roof(place, ground.dtype), 2
        found: list[dict[str, Any]] = []
        for at, size in enumerate(sizes):
            before: float | None = None
            number, taken = 0, {}
            for turn, row in enumerate(methods, 1):
                if progress is not None:
                    done = (at + turn / len(methods)) / len(sizes)
                    progress(done, f"{operation.function} {size} {row.method}")
                branch = row.rung.instead_of if row.rung is not None else ""
                number += not branch
                for count in _counts(row, threads):
                    last = taken.get(branch) if branch else before
                    one = _measured(ground, row, size, last, count)
                    found.append({"number": number, **one})
                    taken[row.method] = one.get("seconds")
                    before = before if branch else one.get("seconds", before)
        above = above.raised(roof(place, ground.dtype))
        while _compare(found, above) > 1.0 and times < _TIMES:  # other load may have disturbed all
            above, times = above.raised(roof(place, ground.dtype)), times + 1
        alone = [row.method for row in methods if row.rung is not None and not row.rung.threads]
        _limit(found, above, place, ground.dtype, alone if place.kind == CPU else ())
        if not benchmark.rungs(operation, place.kind):
            _in_order(found)
    if (several := climbing.together(place)) is not None:
        found += _shared(operation, several, ground, sizes, above, found)
    if place.kind != CPU:
        found += _of_the_cpu(ground, limit, found)
    found.sort(key=lambda row: sizes.index(row["size"]))
    return {
        "operation": operation.function,
        "device": place.name,
        "name": place.info.get("name", place.name),
        "dtype": ground.dtype,
        "what": ground.what,
        "roof": {**above._asdict(), "times": times},
        "rows": found,
    }


def _shared(
    operation: Operation,
    several: Place,
    alone: Ground,
    sizes: Sequence[int],
    above: Roof,
    rows: Sequence[dict[str, Any]],
) -> list[dict[str, Any]]:
    """The rung above all: the first method that all equal devices can share, by all of them."""
    there = {i.method: i for i in climbing.rows(operation, alone) if i.shared is not None}
    row = next((there[method] for method in operation.ladder if method in there), None)
    if row is None:
        return []
    number = len(several.devices)
    all_of_them = above._replace(
        flops_per_second=number * above.flops_per_second,
        bytes_per_second=number * above.bytes_per_second,
    )
    found = []
    with climbing.ground(operation, several, alone.dtype, alone.limit, alone.filter) as ground:
        for size in sizes:
            if not row.shared(ground.problem(row, size)):
                continue
            timed = [one for one in rows if one["size"] == size and one["method"] == row.method]
            one = _measured(ground, row, size, timed[0].get("seconds"))
            one["method"], one["idea"] = f"{row.method} by {number}", "several devices share it"
            found.append({"number": max(row["number"] for row in rows) + 1, **one})
    _compare(found, all_of_them)
    _limit(found, all_of_them, several, alone.dtype)
    return found


def _of_the_cpu(
    of: Ground, limit: float | None, rows: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The CPU's best method at each size; a device's rows get how many times as fast they are."""
    operation = of.operation
    there = {row.method for row in registry.considered(operation.name) if row.kind == CPU}
    if there.isdisjoint(operation.ladder):
        return []
    lines = []
    with climbing.ground(operation, climbing.place_of(CPU), of.dtype, limit, of.filter) as ground:
        best = climbing.rows(operation, ground)[-1]
        for size in dict.fromkeys(row["size"] for row in rows):
            one, above = _measured(ground, best, size, None), [r for r in rows if r["size"] == size]
            for row in above:
                if "seconds" in row and "seconds" in one:
                    row["over_cpu"] = one["seconds"] / row["seconds"]
            lines.append({"number": max(row["number"] for row in above) + 1, **one})
    return lines


def _counts(row: Implementation, threads: Sequence[int]) -> Sequence[int | None]:
    """The numbers of threads that a method is timed on; None: as it is."""
    if not threads:
        return (None,)
    if thread_counts.pool(row) is None:
        return (1 if row.rung is not None else None,)
    return threads


def _measured(
    ground: Ground, row: Implementation, size: int, before: float | None, threads: int | None = None
) -> dict[str, Any]:
    own = row.rung or Rung(ground.operation.ladder.get(row.method, ""), "")
    found: dict[str, Any] = {"size": size, "dims": ground.shown(size), "device": ground.place.name}
    found |= {"method": row.method, "threads": threads}
    found |= {
        "rung": row.rung is not None,
        "instead_of": own.instead_of,
        "idea": own.idea,
        "gain_expected": own.gain,
        "seed": own.seed,
    }
    if threads is not None and thread_counts.pool(row) is not None:
        limited = climbing.on_threads(row, threads)
        if isinstance(limited, str):
            return {**found, "reason": limited}
        row = limited
    failed: dict[str, str] = {}
    with leaving_out(row.method, failed):
        reason = ground.obstacle(row, size)
        if reason is not None:
            return {**found, "reason": reason}
        seconds = ground.seconds(row, size)
        work = row.work(ground.problem(row, size), ground.place.info)
        return {
            **found,
            "seconds": seconds,
            "flops_per_second": work.flops / seconds,
            "bytes_per_second": work.bytes / seconds,
            "gain": None if before is None else before / seconds,
            **binding.counts(ground, row, size, work),
        }
    return {**found, "reason": failed[row.method]}


def _compare(rows: list[dict[str, Any]], measured: Roof) -> float:
    """Add what part of the roof each row reached; what exceeds the measured one is the roof.

    Returns the largest share of the measured one.
    """
    timed = [row for row in rows if "seconds" in row]
    for row in timed:  # at the roof a second's work takes a second
        row["measured_share"] = measured.seconds(row["flops_per_second"], row["bytes_per_second"])
    for row in timed:
        of_size = [one["measured_share"] for one in timed if one["size"] == row["size"]]
        row["share"] = row["measured_share"] / max(1.0, *of_size)
    return max((row["measured_share"] for row in timed), default=0.0)


def _limit(
    rows: list[dict[str, Any]], above: Roof, place: Place, dtype: str, alone: Sequence[str] = ()
) -> None:
    """Add what limits each row, on as many threads as it has; ``alone``: methods that have one."""
    roofs: dict[int | None, Roof] = {None: above}
    groups: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        if "seconds" in row:
            threads = 1 if row["method"] in alone else row["threads"]
            groups.setdefault((row["size"], threads), []).append(row)
    for (_, threads), group in groups.items():
        if threads not in roofs:
            roofs[threads] = roof(place, dtype, threads)
        raised = roofs[threads]
        for row in group:  # what is reached is there
            raised = raised.raised(raised._replace(**{rate: row[rate] for rate in _RATES}))
        for row in group:
            binding.add(row, raised)


def _in_order(rows: list[dict[str, Any]]) -> None:
    """Methods without rungs are no ladder: the slowest first, and gains over that one before."""
    rows.sort(key=lambda row: (row["size"], -row.get("seconds", 0.0)))
    before: dict[int, float] = {}
    for number, row in enumerate(rows):
        row["number"] = number % len({r["method"] for r in rows}) + 1
        if "seconds" in row:
            last = before.get(row["size"])
            row["gain"] = None if last is None else last / row["seconds"]
            before[row["size"]] = row["seconds"]


def text(found: dict[str, Any], why: bool = False) -> str:
    """The ladder as tables, one for each size; ``why``: one more, of what limits each row."""
    above, device = found["roof"], found["device"]
    lines = [
        f"{found['operation']} {found['dtype']} on {device} ({found['name']}), one {found['what']}",
        f"roof: {prefixed(above['flops_per_second'])}FLOP/s ({above['how']}), "
        f"{prefixed(above['bytes_per_second'])}B/s (a copy), both the best of "
        f"{above['times']} measurements now",
    ]
    for size in dict.fromkeys(row["size"] for row in found["rows"]):
        rows = [row for row in found["rows"] if row["size"] == size]
        timed = [row for row in rows if "seconds" in row]
        lines += ["", by(rows[0]["dims"])]
        head = ["", "method", "time", "GFLOP/s", "GB/s", "gain", "of the roof", "limited by"]
        head.append("what is new")
        if more := any("over_cpu" in row for row in timed):
            head.insert(-2, "over the CPU")
        cells = [_cells(row, device, more) for row in timed]
        lines += report.markdown(head, cells) if timed else []
        if why and (known := [row for row in timed if "needs" in row]):
            labels = [_label(row, device) for row in known]
            lines += ["", "what each resource alone would need", *binding.table(known, labels)]
        lines += [
            f"{_label(row, device)} is left out: {row['reason']}" for row in rows if "reason" in row
        ]
        timed = [row for row in timed if "share" in row]
        lines += _better(timed)
        most, method = max(((r["measured_share"], r["method"]) for r in timed), default=(0.0, ""))
        if most > 1.0:
            lines.append(
                f"100 % is what {method} reached, {most:.2f} times the measured roof: other load "
                "disturbed that one, or caches spared the memory; it is raised to that here"
            )
    return "\n".join(lines)


def _label(row: dict[str, Any], device: str) -> str:
    """A method with its number of threads, and with its device where that is another one."""
    count, elsewhere = row["threads"], CPU == row["device"] != device
    threads = "" if count is None else f", {count} thread{'s' * (count > 1)}"
    return row["method"] + threads + f" on {CPU}" * elsewhere


def _cells(row: dict[str, Any], device: str, more: bool) -> list[str]:
    raised = ", raised" * (row.get("share") == 1.0 < row["measured_share"])
    return [
        "or" if row["instead_of"] else str(row["number"]),
        _label(row, device),
        readable(row["seconds"]),
        rounded(row["flops_per_second"] * 1e-9),
        rounded(row["bytes_per_second"] * 1e-9),
        "" if row["gain"] is None else gained(row, f"{row['gain']:.2f}"),
        f"{rounded(100 * row['share'], 2)} %{raised}" if "share" in row else "",
        *([f"{row['over_cpu']:.3g}" if "over_cpu" in row else ""] if more else []),
        binding.cell(row),
        row["idea"],
    ]


def _better(timed: list[dict[str, Any]]) -> list[str]:
    """A line where a rung is faster than the method that stands above the rungs."""
    own = next((row for row in timed if not row["rung"]), None)
    best = min((r for r in timed if r["rung"]), key=lambda r: r["seconds"], default=None)
    if own is None or best is None or best["seconds"] >= own["seconds"]:
        return []
    ratio = own["seconds"] / best["seconds"]
    return [f"{best['method']} is {ratio:.2f} times as fast as {own['method']} here"]


def draw(found: dict[str, Any], picture: Any) -> None:
    """Draw each row's FLOP/s over the size, below the roof, and how many times as fast it is as the
    CPU's best method (on the CPU, as the first row), on a figure of matplotlib's."""
    rates, gains = picture.subplots(1, 2)
    device = found["device"]
    timed = [row for row in found["rows"] if "seconds" in row]
    of_cpu = {row["size"]: row["seconds"] for row in timed if CPU == row["device"] != device}
    first = {row["size"]: row["seconds"] for row in reversed(timed)}
    roofs = {r["size"]: r["flops_per_second"] / r["share"] for r in timed if r.get("share")}
    curves: dict[str, list[dict[str, Any]]] = {}
    for row in timed:
        curves.setdefault(_label(row, device), []).append(row)
    for number, (name, rows) in enumerate(curves.items()):
        style = {"marker": _MARKS[number % len(_MARKS)], "label": name}
        if CPU == rows[0]["device"] != device:
            style |= {"color": "black", "linewidth": 3.0}
        sizes = [row["size"] for row in rows]
        rates.plot(sizes, [row["flops_per_second"] * 1e-9 for row in rows], **style)
        over = [(of_cpu or first).get(row["size"], math.nan) / row["seconds"] for row in rows]
        gains.plot(sizes, over, **style)
    rates.plot([*roofs], [rate * 1e-9 for rate in roofs.values()], "k--", label="roof")
    rates.set_ylabel("GFLOP/s")
    gains.set_ylabel(f"times as fast as {'the best of the CPU' if of_cpu else next(iter(curves))}")
    for axes in (rates, gains):
        axes.set(xscale="log", yscale="log", xlabel="size")
        axes.set_xticks([*first], [*map(str, first)])
        axes.minorticks_off()
        axes.grid(linewidth=0.3)
    title = f"{found['operation']} {found['dtype']} on {found['name']}, one {found['what']}"
    picture.suptitle(title)
    picture.legend(*rates.get_legend_handles_labels(), loc="outside lower center", ncols=5)
