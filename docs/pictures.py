"""The pictures of README and site: ``make pictures``. Each says where its numbers come from.

Those of `measured` are read from docs/benchmarks and from a table of movement.md, that of
`predicted` is priced by the shipped profile of an H100's host; `gallery` shows what the scripts of
docs/examples compute. Nothing is timed here.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from html import escape
from pathlib import Path
from typing import Any

import figures
import numpy as np

from hetero import registry
from hetero.calling.planner import Machine
from hetero.evaluation import calls

DOCS = Path(__file__).parent
FOLDER = DOCS / "pictures"
# Letters of 14 in a width of 440 can still be read where a phone shows it in 330.
WIDE, LEFT, RIGHT, TOP, UNDER, LINE = 440, 66, 104, 46, 56, 19
# A picture brings its own ground, so that it can be read on any page.
STYLE = """
:root{--ground:#fff;--ink:#1f2328;--faint:#d0d7de;--0:#57606a;--1:#1a7f37;--2:#0969da;--3:#bc4c00}
@media(prefers-color-scheme:dark){:root{--ground:#161b22;--ink:#e6edf3;--faint:#30363d;--0:#9198a1;
--1:#3fb950;--2:#58a6ff;--3:#f0883e}}
rect.ground{fill:var(--ground)}text{font:14px system-ui,sans-serif;fill:var(--ink)}
text.title{font-weight:600;font-size:15px}path{fill:none}.grid{stroke:var(--faint)}
.band{stroke:var(--3);stroke-opacity:.35;stroke-width:13;stroke-linecap:round}
.mark{stroke:var(--ink);stroke-dasharray:3 4}
"""
STYLE += "".join(
    f".l{i}{{stroke:var(--{i});stroke-width:2.5}}.f{i}{{fill:var(--{i})}}" for i in range(4)
)
STYLE += ".l0{stroke-dasharray:8 4}.l1{stroke-dasharray:2 4}"
UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def text(content: str, x: float, y: float, more: str = "") -> str:
    """One line of letters."""
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(content)}</text>'


def save(name: str, title: str, note: str, high: float, parts: Sequence[str]) -> None:
    """Write a picture with a title above and the source of its numbers below."""
    titles, notes = textwrap.wrap(title, 48), textwrap.wrap(note, 58)
    down = LINE * (len(titles) - 1)
    foot = high + down - 12
    high = foot + LINE * (len(notes) - 1) + 12
    size = f'width="{WIDE}" height="{high:g}" viewBox="0 0 {WIDE} {high:g}"'
    first = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    head = [first, f"<title>{escape(title)}. {escape(note)}</title>", f"<style>{STYLE}</style>"]
    head.append(f'<rect class="ground" width="{WIDE}" height="{high:g}" rx="8"/>')
    head += [text(t, 16, 26 + LINE * i, 'class="title"') for i, t in enumerate(titles)]
    head += [text(t, 16, foot + LINE * i) for i, t in enumerate(notes)]
    drawn = [*head, f'<g transform="translate(0 {down})">', *parts, "</g></svg>"]
    (FOLDER / f"{name}.svg").write_text("\n".join(drawn) + "\n", "utf-8")


def seconds(value: float) -> str:
    """A tick of a time axis."""
    unit = next((u for u in ("us", "ms") if value < 999 * UNITS[u]), "s")
    return f"{value / UNITS[unit]:g} {unit}"


def lines(
    name: str,
    title: str,
    note: str,
    series: dict[str, list[tuple[float, float]]],
    mark: tuple[float, str] | None = None,
) -> None:
    """Seconds over a size, on logarithmic axes; the series "hetero" is a band under the others."""
    every = [point for points in series.values() for point in points]
    xs, ys = ([p[i] for p in every] for i in (0, 1))
    low, top = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))
    begin, end = math.log2(min(xs)), math.log2(max(xs))
    floor = 270

    def at(x: float, y: float) -> tuple[float, float]:
        across = (math.log2(x) - begin) / (end - begin) * (WIDE - LEFT - RIGHT)
        return LEFT + across, floor - (math.log10(y) - low) / (top - low) * (floor - TOP)

    parts = []
    for power in range(low, top + 1):
        y = at(2**begin, 10.0**power)[1]
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDE - RIGHT}"/>')
        parts.append(text(seconds(10.0**power), LEFT - 8, y + 4, 'text-anchor="end"'))
    step = math.ceil((end - begin) / 4.5)
    for power in range(math.ceil(begin), math.floor(end) + 1, step):
        parts.append(text(str(2**power), at(2**power, 1)[0], floor + 20, 'text-anchor="middle"'))
    ends: list[float] = []
    order = sorted(series.items(), key=lambda item: item[0] != "hetero")
    for label, points in order:
        number = list(series).index(label)
        kind = "band" if label == "hetero" else f"l{number}"
        path = "L".join("{:.1f} {:.1f}".format(*at(*point)) for point in points)
        parts.append(f'<path class="{kind}" d="M{path}"/>')
    for label, points in sorted(series.items(), key=lambda item: item[1][-1][1]):
        x, y = at(*points[-1])
        y = min([y + 4, *(other - 17 for other in ends)])
        ends.append(y)
        number = 3 if label == "hetero" else list(series).index(label)
        parts.append(text(label, x + 12, y, f'class="f{number}" font-weight="600"'))
    if mark is not None:
        x = at(mark[0], 10.0**low)[0]
        parts.append(f'<path class="mark" d="M{x:.1f} {TOP}V{floor}"/>')
        parts += [
            text(line, x - 8, TOP + 14 + 17 * i, 'text-anchor="end"')
            for i, line in enumerate(mark[1].split("\n"))
        ]
    save(name, title, note, floor + UNDER, parts)


def bars(name: str, title: str, note: str, rows: Sequence[tuple[str, float]]) -> None:
    """How many times as fast, on a logarithmic axis: right of 1 a gain, left of it a loss."""
    left, room = 188, WIDE - 188 - 56
    values = [value for _, value in rows]
    low, top = min(math.log2(min(values)), -1), max(math.log2(max(values)), 1)
    middle = left - low / (top - low) * room
    parts = [f'<path class="mark" d="M{middle:.1f} {TOP}V{TOP + 24 * len(rows)}"/>']
    for i, (label, value) in enumerate(rows):
        y, long = TOP + 24 * i, math.log2(value) / (top - low) * room
        kind, x = ("f2", middle) if long > 0 else ("f3", middle + long)
        parts.append(text(label, left - 24, y + 16, 'text-anchor="end"'))
        parts.append(
            f'<rect class="{kind}" x="{x:.1f}" y="{y + 4}" width="{abs(long):.1f}" height="16"/>'
        )
        parts.append(
            text(
                f"{value:.2f}" if value < 9.9 else f"{value:.0f}",
                max(middle, middle + long) + 6,
                y + 16,
            )
        )
    save(name, title, note, TOP + 24 * len(rows) + UNDER - 10, parts)


def table(page: str, first: str, number: int = 0) -> list[dict[str, str]]:
    """The rows of a table of a page, found by how its first line begins."""
    blocks = re.findall(r"(?:^\|.*\n)+", (DOCS / page).read_text("utf-8"), re.M)
    block = [b for b in blocks if b.startswith(first)][number].splitlines()
    cut = [[cell.strip() for cell in line.strip("|").split("|")] for line in block]
    return [dict(zip(cut[0], row, strict=True)) for row in cut[2:]]


def from_numpy(name: str) -> dict[str, dict[str, Any]]:
    """The rows of a bench by extents, of operands on the host."""
    rows = figures.by_case(name).items()
    return {case: row for (case, place), row in rows if place == "NumPy"}


def square(cell: str) -> float:
    """The side of "4096^2", or of "4096x4096x4096"."""
    return float(re.match(r"\d+", cell)[0])


def predicted() -> None:
    """matmul from NumPy to NumPy on an H100's host, by its shipped profile."""
    constants, devices = calls.known("h100")
    operation, machine = registry.operation("matmul"), Machine(constants, devices)

    def best(n: int, device: str) -> float:
        call = calls.Call(operation, (n, n, n), "float32")
        rows = call.plan(machine).to_dict()["candidates"]
        return min(r["seconds"] for r in rows if r["device"] == device and r["seconds"] is not None)

    sizes = [round(2 ** (k / 2)) for k in range(14, 29)]
    cpu, gpu = ([(n, best(n, device)) for n in sizes] for device in ("cpu", "cuda:0"))
    least = [(n, min(a, b)) for (n, a), (_, b) in zip(cpu, gpu, strict=True)]
    turn = 1 + max(n for n in range(600, 1200) if best(n, "cpu") < best(n, "cuda:0"))
    lines(
        "crossover",
        "matmul, n x n, float32, from NumPy to NumPy",
        "Predicted by the profile h100 (16 cores, one H100), copies included",
        {"CPU": cpu, "GPU": gpu, "hetero": least},
        (turn, f"GPU from\nn = {turn} on"),
    )


def measured() -> None:
    """Pictures of the tables."""
    host = "Measured, H200 host with 16 cores"
    grids = from_numpy("solve_poisson")
    names = {"SciPy": "SciPy", "dst": "dst on cuda", "multigrid": "multigrid on cuda"}
    names["hetero"] = "automatic"
    lines(
        "poisson",
        "solve_poisson, n x n, float64, from the host",
        "Measured, H200 host; SciPy on 16 threads, dst and multigrid on the GPU",
        {
            k: [(square(n), figures.least(r, of)) for n, r in grids.items()]
            for k, of in names.items()
        },
    )
    rows = table("movement.md", "| product | plain")[:3]
    lines(
        "movement",
        "n x n product, float32, from NumPy to NumPy",
        "Measured, H100 host with 16 cores",
        {
            "CuPy": [(square(r["product"]), float(r["CuPy"]) / 1e3) for r in rows],
            "not in tiles": [(square(r["product"]), float(r["plain"]) / 1e3) for r in rows],
            "hetero": [
                (square(r["product"]), float(r["streamed, predicted"].split(",")[0]) / 1e3)
                for r in rows
            ],
        },
    )
    rows = from_numpy("convolve2d")
    bars(
        "convolution",
        "convolve2d: the best of SciPy and OpenCV over hetero",
        f"{host}, float32. Right of the line hetero is faster.",
        [
            (
                "{0}^2 by {2}^2".format(*case.split("x")),
                figures.least(r, "SciPy|OpenCV") / figures.least(r, "automatic"),
            )
            for case, r in rows.items()
        ],
    )
    runs: dict[str, dict[str, float]] = {}
    for row in figures.kept("programs")["rows"]:
        runs.setdefault(row["program"], {})[row["variant"]] = row["later"]
    bars(
        "programs",
        "Whole programs: NumPy, SciPy, scikit-learn over hetero",
        f"{host}. Right of the line hetero is faster.",
        [(name, r["NumPy"] / r["hetero"]) for name, r in runs.items()],
    )
    bars(
        "ports",
        "The same programs: a port to CuPy over hetero",
        f"{host}. Left of the line the port is faster.",
        [(name, r["CuPy"] / r["hetero"]) for name, r in runs.items() if "CuPy" in r],
    )
    rows = figures.by_case("matmul-float32")
    bars(
        "kernels",
        "matmul, float32, on the GPU: cuBLAS over hetero's kernel",
        "Measured, H200. Left of the line cuBLAS is faster.",
        [
            (case, figures.least(r, "library|CuPy|torch") / figures.least(r, "tiled"))
            for (case, _), r in rows.items()
        ],
    )


# -- What the examples compute ---------------------------------------------------------------------


def computed(name: str, *smaller: str) -> dict[str, Any]:
    """The names of an example that ran with other sizes than its own: "from -> to" in its text."""
    source = (DOCS / "examples" / f"{name}.py").read_text("utf-8")
    for change in smaller:
        before, after = change.split(" -> ")
        assert before in source, before
        source = source.replace(before, after)
    names: dict[str, Any] = {"__name__": name}
    with redirect_stdout(io.StringIO()):
        exec(source, names)
    return names


def gallery() -> None:
    """A picture of each example, in docs/pictures/gallery."""
    from matplotlib.figure import Figure

    def draw(name: str, drawn: Callable[[Any], object], number: int = 1, **how: Any) -> None:
        picture = Figure(figsize=(2.4, 2.0), dpi=100, layout="constrained")
        axes = picture.subplots(1, number)
        drawn(axes)
        for one in [axes] if number == 1 else axes:
            one.set(**how)
        picture.savefig(FOLDER / "gallery" / f"{name}.png", metadata={"Software": None})

    def images(*shown: Any, **how: Any) -> Callable[[Any], object]:
        return lambda axes: [
            one.imshow(image, **how)
            for one, image in zip([axes] if len(shown) == 1 else axes, shown, strict=True)
        ]

    bare: dict[str, Any] = {"xticks": [], "yticks": []}
    found = computed("deblurring", "2048, 40 -> 160, 40")
    shown = [found[one][20:-20, 20:-20] for one in ("blurred", "restored")]
    draw("deblurring", images(*shown, cmap="gray", vmin=0, vmax=1), 2, **bare)
    found = computed("heat", "512, 15 -> 128, 6")
    draw("heat", images(found["u"].reshape(128, 128), cmap="inferno"), **bare)
    found = computed("colours", "1024, 48 -> 200, 8")
    shown = [(x - x.min()) / np.ptp(x) for x in (found["image"], found["painted"])]
    draw("colours", images(*shown), 2, **bare)
    found = computed("spectral", "6000, 100 -> 600, 300")
    draw(
        "spectral",
        lambda axes: axes.scatter(*found["points"].T, 3, found["found"].labels_, cmap="brg"),
        **bare,
        aspect="equal",
    )
    found = computed("pagerank", "7000, 150 -> 700, 100")
    ranks = np.sort(found["rank"])[::-1] * found["n"]
    draw("pagerank", lambda axes: axes.plot(ranks), xlabel="page", ylabel="rank times n")
    found = computed("pca", "40000, 1000, 60 -> 2000, 200, 20")
    rows = (found["X"] @ found["Q"][:, :2]).T
    draw("pca", lambda axes: axes.plot(*rows, ".", ms=1), xlabel="first", ylabel="second")
    found = computed("logistic", "200000, 256, 150 -> 4000, 20, 100")
    score, right = found["X"] @ found["w"], found["y"] > 0
    draw(
        "logistic",
        lambda axes: axes.hist([score[right], score[~right]], 30, alpha=0.6),
        xlabel="score",
        ylabel="rows",
    )
    found = computed("network", "8192, 2048, 12 -> 2000, 256, 1")
    surest = found["p"].max(axis=1)
    draw("network", lambda axes: axes.hist(surest, 30), xlabel="surest class", ylabel="images")


if __name__ == "__main__":
    (FOLDER / "gallery").mkdir(exist_ok=True, parents=True)
    predicted()
    measured()
    gallery()
