"""`hetero sweep`: one kernel with every legal shape of a block, and how far from the best its own
shape is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from hetero import registry
from hetero.calibration.measure.candidates import leaving_out
from hetero.errors import one_of
from hetero.evaluation import climbing
from hetero.evaluation.climbing import Ground
from hetero.evaluation.report import by, markdown
from hetero.ops import benchmark
from hetero.registry import Arguments, Implementation, Operation, Shaping
from hetero.times import readable

PICTURE = (8.0, 6.5)  # inches
_SIZE = {"cuda": 4096}
_SIZE_OTHERS = 128
_FAR = 1.5  # times the best: what takes longer is timed once
_SHOWN = 8  # shapes in the table


def sweep(
    operation: Operation,
    method: str,
    size: int | None = None,
    dtype: str | None = None,
    *,
    device: str | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> dict[str, Any]:
    """Time a method with each legal shape of its blocks; others are never launched.

    Parameters
    ----------
    operation : Operation
    method : str
        One whose blocks can have other shapes: most rungs.
    size : int, optional
        As for `hetero.evaluation.ladder.ladder`. Default: 4096 on a GPU, else 128.
    dtype, device, progress
        As there.

    Returns
    -------
    dict
        operation, method, device, name (the device's), dtype, size, dims, shapes (each with shape:
        threads along x, along y, and perhaps results of a thread; and seconds, or the reason why it
        does not run), best, chosen (the shape that the method takes by itself), distance (by how
        much it takes longer than the best: 0.02 is 2 %).

    Raises
    ------
    MethodNotAvailable, ValueError
        If there is no such method, or its blocks have one shape only.
    DeviceNotAvailable
    """
    if size is not None and size < 1:
        raise ValueError(f"size must be 1 or more, got {size}")
    with climbing.ground(operation, climbing.place_of(device), dtype) as ground:
        row = _row(operation, method, ground.place.kind)
        usual = benchmark.of(operation, "SWEPT", {})
        kind = ground.place.kind
        size = size or usual.get(kind) or _SIZE.get(kind, _SIZE_OTHERS)
        if (reason := ground.obstacle(row, size)) is not None:
            raise ValueError(f"{method} cannot be swept at size {size}: {reason}")
        shaping = row.shaping(ground.place.devices[0], ground.problem(row, size))
        found = _timed(ground, row, size, shaping, progress)
        timed = {one["shape"]: one["seconds"] for one in found if "seconds" in one}
        best = min(timed, key=lambda shape: timed[shape])
        own = timed.get(shaping.chosen)
        return {
            "operation": operation.function,
            "method": method,
            "device": ground.place.name,
            "name": ground.place.info.get("name", ground.place.name),
            "dtype": ground.dtype,
            "size": size,
            "dims": ground.shown(size),
            "shapes": found,
            "best": best,
            "chosen": shaping.chosen,
            "distance": None if own is None else own / timed[best] - 1.0,
        }


def _row(operation: Operation, method: str, kind: str) -> Implementation:
    shaped = [i for i in registry.lookup(operation.name) if i.kind == kind and i.shaping]
    row = next((i for i in shaped if i.method == method), None)
    if row is None:
        names = [i.method for i in shaped]
        raise ValueError(
            one_of(f"--method for {operation.function} on {kind}", names, method)
            if names
            else f"no method of {operation.function} on {kind} has blocks of other shapes"
        )
    return row


def _timed(
    ground: Ground,
    row: Implementation,
    size: int,
    shaping: Shaping,
    progress: Callable[[float, str], None] | None,
) -> list[dict[str, Any]]:
    """Each shape once, then those again that are not far from the best."""
    found: list[dict[str, Any]] = []
    if shaping.launches is not None:
        launches = [one for shape in shaping.shapes for one in shaping.launches(shape)]
        wanted = [(launch.source, launch.defines) for launch in launches]
        ground.place.devices[0].compile_ahead(wanted)
    for at, shape in enumerate(shaping.shapes):
        if progress is not None:
            progress(0.8 * at / len(shaping.shapes), f"{row.method} {by(shape)}")
        failed: dict[tuple[int, ...], str] = {}
        one: dict[str, Any] = {"shape": shape}
        with leaving_out(shape, failed):
            one["seconds"] = ground.once(_with(row, shaping, shape), size)
        found.append(one if not failed else {**one, "reason": failed[shape]})
    timed = [one for one in found if "seconds" in one]
    if not timed:
        raise ValueError(f"no block of {row.method} runs: {found[0]['reason']}")
    near = _FAR * min(one["seconds"] for one in timed)
    again = [one for one in timed if one["seconds"] <= near or one["shape"] == shaping.chosen]
    for at, one in enumerate(again):
        if progress is not None:
            progress(0.8 + 0.2 * at / len(again), f"{row.method} {by(one['shape'])}")
        one["seconds"] = ground.seconds(_with(row, shaping, one["shape"]), size)
    return found


def _with(row: Implementation, shaping: Shaping, shape: tuple[int, ...]) -> Implementation:
    """The method as it is with one shape."""

    def run(devices: tuple[Any, ...], problem: Any, arguments: Arguments) -> Any:
        return shaping.run(shape, arguments)

    return dataclasses.replace(row, run=run)


def text(found: dict[str, Any]) -> str:
    """The fastest shapes, the method's own, and how far apart they are."""
    timed = sorted((o for o in found["shapes"] if "seconds" in o), key=lambda o: o["seconds"])
    best = timed[0]["seconds"]
    own = [one for one in timed[_SHOWN:] if one["shape"] == found["chosen"]]
    cells = [
        [
            f"{by(one['shape'])}{', its own' * (one['shape'] == found['chosen'])}",
            readable(one["seconds"]),
            f"{one['seconds'] / best:.3f}",
        ]
        for one in timed[:_SHOWN] + own
    ]
    lines = [
        f"{_title(found, found['device'])} ({found['name']}): {len(timed)} of "
        f"{len(found['shapes'])} blocks run",
        *markdown(("threads along x, y and results of each", "time", "of the best"), cells),
    ]
    if found["distance"] is not None:
        lines.append(
            f"its own block takes {100 * found['distance']:.1f} % longer than the best, "
            f"the slowest {timed[-1]['seconds'] / best:.1f} times as long"
        )
    else:
        lines.append(f"its own block, {by(found['chosen'])}, does not run")
    return "\n".join(lines)


def _title(found: dict[str, Any], device: str) -> str:
    dims = by(found["dims"])
    return f"{found['operation']} {dims} {found['dtype']} by {found['method']} on {device}"


def draw(found: dict[str, Any], picture: Any) -> None:
    """Draw a heat map over threads along x and y, the fastest of those that differ in the rest, on
    a figure of matplotlib's; the method's own shape is framed."""
    least: dict[tuple[int, int], dict[str, Any]] = {}
    for one in found["shapes"]:
        where = one["shape"][:2]
        if "seconds" in one and one["seconds"] < least.get(where, one)["seconds"] * 1.000001:
            least[where] = one
    xs, ys = (sorted({where[axis] for where in least}) for axis in (0, 1))
    best = min(one["seconds"] for one in least.values())
    values = [
        [least[x, y]["seconds"] / best if (x, y) in least else float("nan") for x in xs] for y in ys
    ]
    axes = picture.subplots()
    image = axes.imshow(values, origin="lower", aspect="auto", cmap="viridis_r", norm="log")
    for (x, y), one in least.items():
        own = one["shape"][:2] == found["chosen"][:2]
        ratio = one["seconds"] / best
        frame = {"boxstyle": "square", "facecolor": "white", "edgecolor": "black", "pad": 0.2}
        axes.text(
            *(xs.index(x), ys.index(y), f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"),
            ha="center",
            va="center",
            size=8,
            weight="bold" if own or ratio == 1.0 else "normal",
            bbox={**frame, "linewidth": 2.0 if own else 0.0},
        )
    axes.set_xticks(range(len(xs)), xs)
    axes.set_yticks(range(len(ys)), ys)
    axes.set_xlabel("threads of a block along x")
    axes.set_ylabel("threads along y")
    far = "" if found["distance"] is None else f", framed: +{100 * found['distance']:.1f} %"
    axes.set_title(
        f"{_title(found, found['name'])}\n"
        f"time over that of the best block, {by(found['best'])}{far}"
    )
    picture.colorbar(image, label="times the best")
