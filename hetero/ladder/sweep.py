"""`hetero sweep`: one kernel with every legal block, and how far from the best its own block is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from hetero.calibration.measure.candidates import leaving_out
from hetero.errors import one_of
from hetero.evaluation.report import by, markdown, rounded
from hetero.ladder import families, running
from hetero.ladder.ladder import problems
from hetero.ladder.running import Clock, OnDevice
from hetero.times import readable

PICTURE = (8.0, 6.5)  # inches
_SIZE, _SIZE_OTHERS = {"cuda": (4096,)}, (128,)
_FAR = 1.5  # times the best: what takes longer is timed once
_SHOWN = 8  # blocks in the table
_PARAMETERS = ("grid x", "grid y", "block x", "block y")  # White's four (2013, section 3.3)


def sweep(
    function: str,
    method: str,
    sizes: Sequence[int] | None = None,
    dtype: str = "float32",
    *,
    dims: Sequence[int] | None = None,
    device: str | None = None,
    filter: int | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> dict[str, Any]:
    """Time a rung with each legal block; others are never launched.

    Parameters
    ----------
    function, dtype, dims, device, filter, progress
        As for `hetero.ladder.ladder.ladder`.
    method : str
        A rung.
    sizes : sequence of int, optional
        Default: 4096 on a GPU, else 128.

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
    ValueError
        If there is no such rung, or it has one block only.
    DeviceNotAvailable
    """
    of, place = families.family(function), running.place_of(device)
    if place is None:
        raise ValueError("blocks are of a device's kernels, and 'cpu' runs none")
    shaped = [name for name, rung in of.ladder.rungs.items() if rung.tile is not None]
    if method not in shaped:
        raise ValueError(one_of(f"--method for {function}", shaped, method))
    usual = _SIZE.get(place.kind, _SIZE_OTHERS)
    every = problems(of, sizes or (None if dims else usual), dims, filter)
    with place.active():
        clock = Clock(place)
        found = []
        for at, size in enumerate(every):

            def say(share: float, block: Any, at: int = at) -> None:
                if progress is not None:
                    progress((at + share) / len(every), f"{method} {by(block)}")

            found.append(_swept(OnDevice(place, of, size, dtype), method, clock, say))
    return {
        "operation": function,
        "method": method,
        "device": place.name,
        "name": place.describe()["name"],
        "dtype": dtype,
        "sizes": found,
        "groups": groups(found),
    }


def _swept(ground: OnDevice, method: str, clock: Clock, say: Callable[..., None]) -> dict[str, Any]:
    """Each block once, then those again that are not far from the best."""
    if (reason := ground.obstacle(method)) is not None:
        raise ValueError(f"{method} cannot be swept at {by(ground.dims)}: {reason}")
    rung, chosen, rows = ground.of.ladder.rungs[method], ground.chosen(method), []
    blocks = ground.blocks(method)
    ground.device.compile_ahead([w for b in blocks for w in ground.wanted(method, b)])
    for at, block in enumerate(blocks):
        say(0.8 * at / len(blocks), block)
        failed: dict[Any, str] = {}
        one: dict[str, Any] = {"block": list(block), "grid": _grid(ground, rung, block)}
        with leaving_out(block, failed):
            one["seconds"] = clock.once(ground.prepared(method, block)) / rung.repeats
        rows.append(one if not failed else {**one, "reason": failed[block]})
    timed = [one for one in rows if "seconds" in one]
    if not timed:
        raise ValueError(f"no block of {method} runs: {rows[0]['reason']}")
    near = _FAR * min(one["seconds"] for one in timed)
    again = [o for o in timed if o["seconds"] <= near or o["block"] == list(chosen)]
    for at, one in enumerate(again):
        say(0.8 + 0.2 * at / len(again), one["block"])
        call = ground.prepared(method, type(chosen)(*one["block"]))
        one["seconds"] = clock.seconds(call) / rung.repeats
    for one in timed:
        one["flops_per_second"] = ground.of.flops(*ground.dims) / one["seconds"]
    best = min(timed, key=lambda one: one["seconds"])
    own = next((one["seconds"] for one in timed if one["block"] == list(chosen)), None)
    return {
        "dims": list(ground.dims),
        "blocks": rows,
        "best": best["block"],
        "chosen": list(chosen),
        "distance": None if own is None else own / best["seconds"] - 1.0,
    }


def _grid(ground: OnDevice, rung: Any, block: Any) -> list[int]:
    """Blocks along x and y."""
    rows, columns = ground.of.results(*ground.dims)
    wide, high = rung.tile(block)
    return [-(-columns // wide), -(-rows // high)]


def groups(sizes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """How well input parameters describe the times: White's figure 3.7.

    All times are grouped by n, then also by the one of his four input parameters that leaves the
    smallest difference, and so on until three of them are used.

    Returns
    -------
    list of dict
        by (what times are grouped by), percent: by how much the slowest time of a group is above
        the fastest, the mean of all groups.
    """
    rows = [
        (one["seconds"], (*size["dims"],), dict(zip(_PARAMETERS, (*one["grid"], *one["block"]))))
        for size in sizes
        for one in size["blocks"]
        if "seconds" in one
    ]

    def difference(names: Sequence[str]) -> float:
        grouped: dict[Any, list[float]] = {}
        for seconds, dims, given in rows:
            grouped.setdefault((dims, *(given[name] for name in names)), []).append(seconds)
        return 100 * fmean(max(times) / min(times) - 1.0 for times in grouped.values())

    used: list[str] = []
    found = [{"by": ["n"], "percent": difference(used)}]
    while len(used) < len(_PARAMETERS) - 1:
        left = [name for name in _PARAMETERS if name not in used]
        used.append(min(left, key=lambda name: difference([*used, name])))
        found.append({"by": ["n", *used], "percent": difference(used)})
    return found


def text(found: dict[str, Any], every: bool = False) -> str:
    """The fastest blocks, or ``every`` one in their order, and how far apart they are."""
    lines = [
        f"{found['operation']} {found['dtype']} by {found['method']} on {found['device']} "
        f"({found['name']})"
    ]
    head = ("x", "y", "results of a thread", "threads in all", "time", "of the best", "GFLOP/s", "")
    for size in found["sizes"]:
        timed = [one for one in size["blocks"] if "seconds" in one]
        order = sorted(timed, key=lambda one: one["seconds"])
        best, worst = order[0]["seconds"], order[-1]["seconds"]
        shown = timed if every else order[:_SHOWN]
        shown += [one for one in order if one["block"] == size["chosen"] and one not in shown]
        cells = [
            [
                *map(str, one["block"]),
                str(_threads(one)),
                readable(one["seconds"]),
                f"{one['seconds'] / best:.3f}",
                rounded(1e-9 * one["flops_per_second"]),
                "its own" * (one["block"] == size["chosen"]),
            ]
            for one in shown
        ]
        ran = f"{len(timed)} of {len(size['blocks'])} blocks run"
        lines += ["", f"{by(size['dims'])}: {ran}", *markdown(head, cells)]
        if size["distance"] is None:
            lines.append(f"its own block, {by(size['chosen'])}, does not run")
        else:
            lines.append(
                f"its own block takes {100 * size['distance']:.1f} % longer than the best, the "
                f"slowest {worst / best:.1f} times as long"
            )
    steps = ", ".join(
        f"{one['percent']:.0f} % by {' and '.join(one['by'])}" for one in found["groups"]
    )
    return "\n".join([*lines, "", f"slowest over fastest of a group, in the mean: {steps}"])


def _threads(one: dict[str, Any]) -> int:
    return one["grid"][0] * one["grid"][1] * one["block"][0] * one["block"][1]


def draw(found: dict[str, Any], picture: Any) -> None:
    """Draw the last size on a figure of matplotlib's: a map of x and y for each number of results
    of a thread, the rung's own block framed; where y is 1, the mean time over all threads."""
    size = found["sizes"][-1]
    timed = [one for one in size["blocks"] if "seconds" in one]
    title = f"{found['operation']} {by(size['dims'])} by {found['method']} on {found['name']}"
    picture.suptitle(title)
    if {one["block"][1] for one in timed} == {1}:
        axes = picture.subplots()
        totals = sorted({_threads(one) for one in timed})
        means = [fmean(o["seconds"] for o in timed if _threads(o) == n) for n in totals]
        axes.plot(totals, means, "ko-")
        axes.set_xscale("log", base=2)
        axes.set(xlabel="threads in all", ylabel="seconds, mean of all blocks")
        return
    best = min(one["seconds"] for one in timed)
    each = sorted({one["block"][2] for one in timed})
    panes = picture.subplots(1, len(each), squeeze=False, sharey=True)[0]
    for axes, results in zip(panes, each, strict=True):
        here = {tuple(o["block"][:2]): o for o in timed if o["block"][2] == results}
        xs, ys = (sorted({place[axis] for place in here}) for axis in (0, 1))
        values = [
            [here[x, y]["seconds"] / best if (x, y) in here else float("nan") for x in xs]
            for y in ys
        ]
        axes.imshow(values, origin="lower", aspect="auto", cmap="viridis_r", norm="log")
        for (x, y), one in here.items():
            own = one["block"] == size["chosen"]
            box = {"facecolor": "white", "linewidth": 2.0 * own, "pad": 1.0}
            where = xs.index(x), ys.index(y)
            ratio = f"{one['seconds'] / best:.3g}"
            axes.text(*where, ratio, ha="center", va="center", size=7, bbox=box)
        axes.set_xticks(range(len(xs)), xs)
        axes.set_yticks(range(len(ys)), ys)
        axes.set(xlabel="x", ylabel="y", title=f"{results} a thread: time over the best")
