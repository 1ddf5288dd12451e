"""The measured tables of the pages, each made of the JSON that commands printed.

    python docs/figures.py          prints the tables anew
    python docs/figures.py NAME...  runs the commands of these before; "all": those for the host's
                                    number of GPUs, one or a pair

docs/benchmarks/NAME.json has the command, its date, the machine and the rows. A table lies between
``<!-- table NAME -->`` and ``<!-- end -->`` in a page. ``make figures`` does it all on a GPU host.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

from hetero.errors import one_of

DOCS = Path(__file__).parent
FOLDER = DOCS / "benchmarks"
OPERATIONS = ("matvec", "matmul", "convolve2d", "solve_cg", "solve_poisson", "kmeans")
PAIR = "pair-"  # the names of what is measured with two GPUs
COMMANDS = {
    "matvec-float32": "hetero bench matvec --dtype float32",
    "matvec-float64": "hetero bench matvec --dtype float64",
    "matmul-float32": "hetero bench matmul --dtype float32",
    "matmul-float64": "hetero bench matmul --dtype float64",
    "matmul-tensor": "hetero bench matmul --cases tensor",
    **{name: f"hetero bench {name}" for name in OPERATIONS[2:]},
    **{f"verify-{name}": f"hetero verify {name} --seconds 30" for name in OPERATIONS},
    "programs": "python docs/benchmarks/programs.py",
    **{f"{PAIR}{name}": f"hetero bench {name}" for name in OPERATIONS[1:]},
}
OVER = {"geometric_mean": "geometric mean", "p95": "95th percentile", "worst": "worst"}
KEPT = "case", "chosen", "seconds", "program", "variant", "first", "later", "problems", *OVER
Row = dict[str, Any]
Lines = list[str]


# -- Measuring -------------------------------------------------------------------------------------


def machine() -> tuple[str, int]:
    """This machine, in words, and its number of GPUs."""
    known = json.loads(run("hetero info"))
    cpu, gpus = known["cpu"], [d for d in known["devices"].values() if d["kind"] == "cuda"]
    words = f"{cpu['cores']} cores, {cpu['name']}, BLAS {cpu['blas']} {cpu['blas_version']}"
    return words + (f", {len(gpus)} x {gpus[0]['name']}" if gpus else ""), len(gpus)


def run(command: str) -> str:
    """What a command prints as JSON."""
    name, *rest = command.split()
    start = [sys.executable, *(["-m", "hetero"] if name == "hetero" else [])]
    line = [*start, *rest, "--json"]
    return subprocess.run(
        line, cwd=DOCS.parent, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def measure(name: str) -> None:
    """Run a command, and keep what it prints."""
    found = json.loads(run(COMMANDS[name]))
    if isinstance(found, dict):  # of verify
        found = [found | found["chosen_over_best"]]
    found = [row for row in found if "program" not in row or "later" in row]  # CuPy lacks some
    rows = [{key: rounded(value) for key, value in row.items() if key in KEPT} for row in found]
    save(name, COMMANDS[name], date.today().isoformat(), machine()[0], rows)


def save(name: str, command: str, day: str, where: str, rows: list[Row]) -> None:
    """Write a file of docs/benchmarks, a line for each row."""
    head = json.dumps({"command": command, "date": day, "machine": where})[:-1]
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    (FOLDER / f"{name}.json").write_text(f'{head}, "rows": [\n{lines}\n]}}\n', "utf-8")


def rounded(value: Any) -> Any:
    """Numbers to four digits."""
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


# -- Tables ----------------------------------------------------------------------------------------


def kept(name: str) -> dict[str, Any]:
    """What a command's file has."""
    return json.loads((FOLDER / f"{name}.json").read_text("utf-8"))


def by_case(name: str) -> dict[tuple[str, str], Row]:
    """The rows of a bench by extents, such as "512x512", and the place of the operands."""
    rows = {}
    for row in kept(name)["rows"]:
        extents, place = re.match(r"\S+ (\S+), operands on (\S+),", row["case"]).groups()
        rows[extents, "NumPy" if place == "host" else "GPU"] = row
    return rows


def least(row: Row, names: str) -> float:
    """The least seconds of what these names, a regular expression, match; NaN where none does."""
    return min(
        (s for name, s in row.get("seconds", {}).items() if re.match(names, name)), default=math.nan
    )


def time(row: Row, names: str, unit: float = 1e-3) -> str:
    """A cell with the least seconds of these names, in a unit."""
    return number(least(row, names) / unit)


def number(value: float) -> str:
    """Three digits, or all of a large number; nothing of NaN."""
    return "" if math.isnan(value) else f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def ratio(row: Row, names: str, others: str) -> str:
    """A cell with the seconds of some over those of others."""
    found = least(row, names) / least(row, others)
    return "" if math.isnan(found) else f"{found:.2f}"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Lines:
    """A table in Markdown; after the first one without columns that say the same of all rows."""
    first, *columns = zip(head, *rows, strict=True)
    columns = [first, *(column for column in columns if len({*column[1:]}) > 1)]
    lines = [f"| {' | '.join(cells)} |".replace("  ", " ") for cells in zip(*columns, strict=True)]
    return [lines[0], "|---" * len(columns) + "|", *lines[1:]]


def sources(*names: str) -> Lines:
    """Of a table, the commands, machine and date of each file."""
    by_place: dict[str, list[str]] = {}
    for name in names:
        found = kept(name)
        by_place.setdefault(f"{found['machine']}, {found['date']}", []).append(
            f"`{found['command']}`"
        )
    text = " ".join(f"{', '.join(commands)}: {where}." for where, commands in by_place.items())
    return wrapped(text)


def wrapped(text: str) -> Lines:
    """A paragraph."""
    return ["", *textwrap.wrap(text, 100, break_long_words=False, break_on_hyphens=False)]


def compared(name: str, first: str, columns: dict[str, str]) -> Lines:
    """Of each case what is chosen, and the least seconds of some names, a column each."""
    head = f"{first}, ms", "operands", "automatic", "chosen", *columns
    rows = [
        [
            extents,
            place,
            time(row, "automatic"),
            row["chosen"],
            *(time(row, n) for n in columns.values()),
        ]
        for (extents, place), row in by_case(name).items()
    ]
    return [*table(head, rows), *sources(name)]


def products(name: str, first: str) -> Lines:
    """Own kernels, and cuBLAS's time over theirs, in both dtypes; `tensor` where it is known."""
    files = [f"{name}-float32", f"{name}-float64"]
    files += [tensor] if (FOLDER / f"{(tensor := f'{name}-tensor')}.json").exists() else []
    one, two, *three = map(by_case, files)
    head = [f"{first}, us", "float32", "cuBLAS / it", "chosen", "float64", "cuBLAS / it"]
    head += ["`tensor`", "cuBLAS / it"] * len(three)
    rows = []
    for case in dict.fromkeys([*one, *two, *(three[0] if three else ())]):
        cells = [case[0]]
        for found, own in ((one, "tiled"), (two, "tiled"), *((each, "tensor") for each in three)):
            row = found.get(case, {})
            cells += [time(row, own, 1e-6), ratio(row, "library|CuPy|torch", own)]
            cells += [row.get("chosen", "").partition(" ")[0]] * (found is one)
        rows.append(cells)
    return [*table(head, rows), *sources(*files)]


def chosen_well() -> Lines:
    """What `hetero verify` finds."""
    rows = []
    for name in OPERATIONS:
        (row,) = kept(f"verify-{name}")["rows"]
        rows.append([f"`{name}`", str(row["problems"]), *(f"{row[key]:.4g}" for key in OVER)])
    source = " ".join(sources("verify-matvec")).strip().replace("matvec", "OPERATION")
    return [*table(("operation", "problems", *OVER.values()), rows), *wrapped(source)]


def pair() -> Lines:
    """What two GPUs gain over one, from NumPy to NumPy."""
    rows, names = [], OPERATIONS[1:]
    for name in names:
        for (extents, place), row in by_case(f"{PAIR}{name}").items():
            one, two = r".* cuda:0$", r".* cuda:\*$"
            if place == "NumPy" and (gain := ratio(row, one, two)):
                cells = time(row, one), time(row, two), gain, row["chosen"]
                rows.append([f"`{name}` {extents}", *cells])
    head = "call, ms", "one GPU", "two", "gain", "chosen"
    return [*table(head, rows), *sources(*(f"{PAIR}{name}" for name in names))]


def programs() -> Lines:
    """Later runs of whole programs, and hetero's first one."""
    found: dict[str, dict[str, Row]] = {}
    for row in kept("programs")["rows"]:
        found.setdefault(row["program"], {})[row["variant"]] = row
    variants = {"NumPy": "NumPy", "hetero": "hetero", "kept": "hetero, kept", "CuPy": "CuPy"}
    rows = [
        [
            f"`{name}`",
            *(number(row[v]["later"] * 1e3) if v in row else "" for v in variants.values()),
            number(row["hetero"]["first"] * 1e3),
        ]
        for name, row in found.items()
    ]
    return [*table(("program, ms", *variants, "first run"), rows), *sources("programs")]


METHODS = {  # table -> head of the first column, and of others with the names of what they show
    "solve_cg": (
        "grid or n",
        {"CPU": ".* cpu", "GPU": ".* cuda", "SciPy": "SciPy", "CuPy": "CuPy"},
    ),
    "solve_poisson": (
        "grid",
        {
            "dst, GPU": "dst on cuda",
            "multigrid, GPU": "multigrid on cuda",
            "dst, CPU": "dst on cpu",
            "multigrid, CPU": "multigrid on cpu",
            "`scipy.fft`": "SciPy",
        },
    ),
    "convolve2d": (
        "image and filter",
        {
            "direct": "direct",
            "fft": "fft|overlap_save",
            **{name: name for name in ("OpenCV", "torch", "SciPy", "CuPy")},
        },
    ),
    "kmeans": (
        "n x d x k",
        {"CPU": ".* cpu", "GPU": ".* cuda", "scikit-learn": "scikit", "CuPy": "CuPy"},
    ),
}
TABLES: dict[str, Callable[[], Lines]] = {
    "matvec": partial(products, "matvec", "m x k"),
    "matmul": partial(products, "matmul", "m x n x k"),
    **{name: partial(compared, name, *columns) for name, columns in METHODS.items()},
    "verify": chosen_well,
    "programs": programs,
    "pair": pair,
}


def printed(page: str) -> str:
    """A page with its tables made anew."""
    block = re.compile(r"(<!-- table (\S+) -->\n)(?:.*\n)*?(<!-- end -->\n)", re.M)
    return block.sub(lambda m: m[1] + "\n".join(TABLES[m[2]]()) + f"\n{m[3]}", page)


def main(names: list[str]) -> None:
    """Run commands, and print all tables anew."""
    if names == ["all"]:
        names = [name for name in COMMANDS if name.startswith(PAIR) == (machine()[1] > 1)]
    if unknown := sorted({*names} - {*COMMANDS}):
        sys.exit(one_of("NAME", ["all", *COMMANDS], unknown[0]))
    for name in names:
        print(f"{name}: {COMMANDS[name]}", file=sys.stderr, flush=True)
        measure(name)
    for page in DOCS.glob("*.md"):
        if (text := page.read_text("utf-8")) != (new := printed(text)):
            page.write_text(new, "utf-8")
            print(f"{page.name}: changed")


if __name__ == "__main__":
    main(sys.argv[1:])
