"""Draws the picture of procedure.md from procedure.json, what was measured.

    python docs/procedure.py

`card` in it is the device; `blocks` are sweeps: operation, dtype, problem, the derived shape, the
least time of all shapes, and [x, y, elements, microseconds] of those with the derived `elements`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CELL, LINE = 46, 18  # pixels
LEFT = 62


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


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    words = words.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>'


def beside(pictures: Iterable[tuple[Sequence[str], int, int]]) -> str:
    """One picture of several, one below the other."""
    parts, width, height = [], 0, 10
    for inside, wide, high in pictures:
        parts.append(f'<g transform="translate(10 {height})">{"".join(inside)}</g>')
        width, height = max(width, wide + 20), height + high + 10
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="12">'
        f'<rect width="{width}" height="{height}" fill="white"/>{"".join(parts)}</svg>\n'
    )


if __name__ == "__main__":
    measured = json.loads((HERE / "procedure.json").read_text("utf-8"))
    picture = beside(blocks(sweep) for sweep in measured["blocks"])
    (HERE / "procedure-blocks.svg").write_text(picture, "utf-8")
