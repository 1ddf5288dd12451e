"""How large the house is, room by room: ``make house``.

What may enter it says the rule of admission in CONTRIBUTING.md; this prints figures to judge by.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ("hetero", "kernels", "calibration")
SECONDS = ROOT / ".venv" / "test-seconds"  # of the last `make test`
WIDTH = 100  # columns of prose
KERNEL = re.compile(r"^KERNEL\(.*\)\s+(\w+)\(", re.M)
# How many files of the package functions run in during calls, of a process that has made none.
ENTERED = """
import json, sys
import numpy as np
import hetero
from hetero import devices

A = np.random.default_rng(0).random((300, 300))


def entered(**options):
    seen = set()

    def note(frame, event, argument):
        file = frame.f_code.co_filename
        if event == "call" and frame.f_code.co_name != "<module>" and "site-packages" not in file:
            if any(f"/{part}/" in file for part in ("hetero", "kernels", "calibration")):
                seen.add(file)

    sys.setprofile(note)  # of this thread: what imports in one of its own is no call
    hetero.matmul(A, A, **options)
    sys.setprofile(None)
    return len(seen)


found = {"a first product": entered(), "the second one": entered()}
device = next(iter(devices.available()), None)
if device is not None:
    found[f"a first product on {device}"] = entered(device=device)
print(json.dumps(found))
"""


def python(*folders: str) -> list[Path]:
    """The modules below some folders."""
    return sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py"))


def lines_of(files: list[Path]) -> int:
    """How many lines they have together."""
    return sum(len(file.read_text("utf-8").splitlines()) for file in files)


def rooms() -> dict[str, list[Path]]:
    """Folder of the sources -> its modules."""
    found: dict[str, list[Path]] = {}
    for file in python(*SOURCE):
        found.setdefault(file.parent.relative_to(ROOT).as_posix(), []).append(file)
    return found


def code(text: str) -> tuple[int, int]:
    """Lines of a module without blank ones, comments and docstrings; and its statements."""
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)]
    docstrings = [n for n in nodes if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)]
    out = {line for n in docstrings for line in range(n.lineno, n.end_lineno + 1)}
    kept = [
        number
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.strip().startswith("#") and number not in out
    ]
    return len(kept), len(nodes) - len(docstrings)


def pages() -> list[Path]:
    """What users and contributors read."""
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("kernels/*/*.md")])


def long_lines() -> int:
    """Lines of prose that are wider than they may be; tables and code are not prose."""
    number = 0
    for page in pages():
        text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.M | re.S)
        text = re.sub(r"(?<=\n\n)(    .*\n|\n(?=    ))+", "", text)  # code by indentation
        number += sum(len(line) > WIDTH and not line.startswith("|") for line in text.splitlines())
    return number


def only_tested() -> list[str]:
    """Functions, classes, kernels and modules of the sources that tests alone name."""

    def words(files: list[Path]) -> Counter[str]:
        return Counter(re.findall(r"\w+", "\n".join(file.read_text("utf-8") for file in files)))

    files, kernels = python(*SOURCE), sorted((ROOT / "kernels").rglob("*.cu"))
    used, tested = words([*files, *kernels]), words(python("tests"))
    defined = [name for file in kernels for name in KERNEL.findall(file.read_text("utf-8"))]
    for file in files:
        nodes = ast.parse(file.read_text("utf-8")).body
        defined += [n.name for n in nodes if isinstance(n, (ast.FunctionDef, ast.ClassDef))]
    # pytest calls its hooks; some modules are loaded by the last word of their name.
    alone = {n for n in defined if used[n] == 1 and tested[n] and not n.startswith("pytest_")}
    modules = (file.stem for file in files if file.stem[0] != "_")
    return sorted(alone.union(m for m in modules if not used[m.rpartition("_")[2]]))


def measured() -> dict[str, int]:
    """What is counted -> how much it is."""
    files = python(*SOURCE)
    lines, statements = zip(*(code(file.read_text("utf-8")) for file in files), strict=True)
    done = subprocess.run(
        [sys.executable, "-c", ENTERED], capture_output=True, text=True, check=True
    )
    found = {
        "lines of source": lines_of(files),
        "of code": sum(lines),
        "statements": sum(statements),
        "modules": len(files),
        "lines of tests": lines_of(python("tests")),
        "words of pages": sum(len(page.read_text("utf-8").split()) for page in pages()),
        **{f"files entered by {name}": n for name, n in json.loads(done.stdout).items()},
    }
    if SECONDS.exists():
        found["seconds of the last make test"] = int(SECONDS.read_text("utf-8"))
    return found


def main() -> None:
    """Print the rooms, and the whole."""
    for room, files in rooms().items():
        print(f"{room:<36} {len(files):>4} modules {lines_of(files):>7} lines")
    print()
    for name, number in measured().items():
        print(f"{name:<44} {number:>7}")
    print("named by tests alone:", ", ".join(only_tested()) or "nothing")


if __name__ == "__main__":
    main()
