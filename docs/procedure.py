"""Draws the pictures of procedure.md from procedure.json, what was measured.

    python docs/procedure.py
    python docs/procedure.py FILE.svg [PROFILE]

The second draws White's figures 5.24 and 5.25, conjugate gradients, by the constants of a profile,
or of this machine where none is named.

`card` in it is the device; `blocks` are sweeps: operation, dtype, problem, the derived shape, the
least time of all shapes, and [x, y, elements, microseconds] of those with the derived `elements`;
`steps` are ladders: title, unit, and for each method its rate by size.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hetero import registry
from hetero.evaluation import calls
from hetero.pricing import pricing

HERE = Path(__file__).parent
CELL, LINE = 46, 18  # pixels
DARK = "@media(prefers-color-scheme:dark){svg{filter:invert(.9) hue-rotate(180deg)}}"
DASHES = (
    "",
    "7 3",
    "2 3",
    "9 3 2 3",
    "4 2",
    "1 4",
    "12 4",
    "6 2 1 2",
)  # a curve each, without colour
LEFT, LOW, NAMES = 62, 44, 90
WIDTH, HEIGHT = 520, 330
ITERATIONS, SIZES = (8, 256), (512, 1024, 2048, 4096, 8192, 16384)


def blocks(sweep: Mapping[str, Any]) -> tuple[list[str], int, int]:
    """A map of a sweep: time of each block over the least; the parts of a picture, and its size."""
    times = {(x, y): time / sweep["best"] for x, y, _, time in sweep["times"]}
    across, down = (sorted({place[axis] for place in times}) for axis in (0, 1))
    parts, chosen = [_text(0, 14, _title(sweep))], ""
    for row, y in enumerate(down):
        top = 2 * LINE + row * CELL // 2
        parts.append(_text(LEFT - 8, top + 16, str(y), "end"))
        for column, x in enumerate(across):
            ratio = times.get((x, y))
            if ratio is None:
                continue
            light = round(255 - 150 * min(math.log2(ratio) / 3, 1))
            box = f'x="{LEFT + column * CELL}" y="{top}" width="{CELL}" height="{CELL // 2}"'
            parts += [
                f'<rect {box} fill="rgb({light},{light},255)" stroke="black" stroke-width="0.3"/>',
                _text(LEFT + column * CELL + CELL / 2, top + 16, f"{ratio:.2f}", "middle"),
            ]
            if [x, y] == sweep["derived"][:2]:
                chosen = f'<rect {box} fill="none" stroke="black" stroke-width="3"/>'
    foot = 2 * LINE + len(down) * CELL // 2 + LINE
    for column, x in enumerate(across):
        parts.append(_text(LEFT + column * CELL + CELL / 2, foot, str(x), "middle"))
    parts += [
        _text(LEFT + len(across) * CELL / 2, foot + LINE, "threads along x", "middle"),
        _text(0, 2 * LINE + 16, "along y"),
    ]
    parts.append(chosen)
    return parts, LEFT + max(len(across), 9) * CELL + 20, foot + 2 * LINE


def _title(sweep: Mapping[str, Any]) -> str:
    elements = sweep["derived"][2]
    sizes = sweep["problem"]
    words = " x ".join(map(str, sizes[:3] if len(sizes) < 4 else sizes[:2]))
    words += f", filter {sizes[2]} x {sizes[3]}" if len(sizes) == 4 else ""
    words += f", {elements} results a thread" if elements > 1 else ""
    return f"{sweep['operation']} {sweep['dtype']} {words}"


def curves(step: Mapping[str, Any]) -> tuple[list[str], int, int]:
    """Rates of each method over the size, both axes logarithmic, as `blocks` returns it."""
    series: Mapping[str, Mapping[str, float]] = step["series"]
    sizes = sorted({int(size) for values in series.values() for size in values})
    every = [value for values in series.values() for value in values.values()]
    low, high = 2 ** math.floor(math.log2(min(every))), 2 ** math.ceil(math.log2(max(every)))
    right, foot = WIDTH - NAMES, HEIGHT - LOW

    def place(size: int, value: float) -> tuple[float, float]:
        along = math.log(size / sizes[0], sizes[-1] / sizes[0])
        up = math.log(value / low, high / low)
        return LEFT + along * (right - LEFT), foot - up * (foot - 2 * LINE)

    parts = [_text(0, 14, f"{step['title']}: {step['unit']} over n")]
    for power in range(0, round(math.log2(high / low)) + 1, 2):
        y = place(sizes[0], low * 2**power)[1]
        parts.append(_text(LEFT - 6, y + 4, f"{low * 2**power:g}", "end"))
        parts.append(f'<path d="M{LEFT} {y:.1f}H{right}" stroke="#ccc" stroke-width="0.5"/>')
    parts += [_text(place(size, low)[0], foot + LINE, str(size), "middle") for size in sizes]
    taken = -math.inf
    ends = []
    for number, (name, values) in enumerate(series.items()):
        points = [place(int(size), value) for size, value in values.items()]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dashes = DASHES[number % len(DASHES)]
        parts.append(
            f'<polyline points="{line}" fill="none" stroke="black" stroke-width="1.5" '
            f'stroke-dasharray="{dashes}"/>'
        )
        ends.append((points[-1][1], name))
    for y, name in sorted(ends):
        taken = max(y + 4, taken + 13)
        parts.append(_text(right + 5, taken, name))
    return parts, WIDTH, HEIGHT


def solves(named: str | None) -> Iterable[Mapping[str, Any]]:
    """Seconds of 8 and of 256 iterations with a dense float32 matrix on the host, over n: always on
    the CPU, always on a device, and what is chosen; for `curves`."""
    constants, devices = calls.known(named)
    for count in ITERATIONS:
        series: dict[str, dict[int, float]] = {"CPU": {}, "GPU": {}, "chosen": {}}
        for n in SIZES:
            problem = registry.operation("solve_cg").from_dims(
                (n,), "float32", "host", iterations=count
            )
            plan = pricing.price(problem, constants, devices)
            for c in plan.candidates[::-1]:  # the cheapest last
                if c.seconds is not None and not c.implementation.from_host:
                    series["CPU" if c.device == "cpu" else "GPU"][n] = 1e3 * c.seconds
            series["chosen"][n] = 1e3 * plan.chosen.seconds
        title = f"solve_cg float32, {count} iterations, {constants.name}"
        series = {name: values for name, values in series.items() if values}
        yield {"title": title, "unit": "ms", "series": series}


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    words = words.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>'


def stacked(pictures: Iterable[tuple[Sequence[str], int, int]]) -> str:
    """One picture of several, one below the other."""
    parts, width, height = [], 0, 10
    for inside, wide, high in pictures:
        parts.append(f'<g transform="translate(10 {height})">{"".join(inside)}</g>')
        width, height = max(width, wide + 20), height + high + 10
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="12">'
        f"<style>{DARK}</style>"
        f'<rect width="{width}" height="{height}" fill="white"/>{"".join(parts)}</svg>\n'
    )


def pictures(measured: Mapping[str, Any]) -> dict[str, str]:
    """The pictures by the names of their files."""
    return {
        "procedure-steps.svg": stacked(curves(step) for step in measured["steps"]),
        "procedure-blocks.svg": stacked(blocks(sweep) for sweep in measured["blocks"]),
        "procedure-cg.svg": stacked(curves(step) for step in solves("tesla-t10")),
    }


if __name__ == "__main__":
    if sys.argv[1:]:
        file, *profile = sys.argv[1:]
        drawn = stacked(curves(step) for step in solves(*profile or [None]))
        sys.exit(Path(file).write_text(drawn, "utf-8") == 0)
    measured = json.loads((HERE / "procedure.json").read_text("utf-8"))
    for name, picture in pictures(measured).items():
        (HERE / name).write_text(picture, "utf-8")
