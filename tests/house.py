"""How large the house is, room by room, and whether it keeps within its limits: ``make house``.

The limits are in house.toml. Exit code 1 where one is exceeded.
"""

from __future__ import annotations

import functools
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMITS = tomllib.loads(Path(__file__).with_name("house.toml").read_text("utf-8"))
SOURCE = ("hetero", "kernels", "calibration")
# Files of the package that functions run in while a process makes its first product on a device.
FIRST_PRODUCT = """
import sys
import numpy as np
import hetero
from hetero import devices, profile

A = np.random.default_rng(0).random((300, 300))
device = next((d for d in devices.available() if d != "cpu"), None)
profile.current()
seen = set()


def note(frame, event, argument):
    if event == "call" and frame.f_code.co_name != "<module>":
        file = frame.f_code.co_filename
        if any(f"/{part}/" in file for part in ("hetero", "kernels", "calibration")):
            seen.add(file)


if device is not None:
    sys.setprofile(note)
    hetero.matmul(A, A, device=device)
    sys.setprofile(None)
seen = {file for file in seen if "site-packages" not in file}
print("\\n".join(sorted(seen)))
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


def glossary() -> list[str]:
    """The words that docs/architecture.md explains."""
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    table = text.partition("## Words")[2].partition("## ")[0]
    return re.findall(r"^\| (?!word )([^|-][^|]*) \|", table, re.M)


def pages() -> list[Path]:
    """What users and contributors read."""
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("kernels/*/*.md")])


def long_lines() -> int:
    """Lines of prose that are wider than they may be; tables and code are not prose."""
    number = 0
    for page in pages():
        text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.M | re.S)
        text = re.sub(r"(?<=\n\n)(    .*\n|\n(?=    ))+", "", text)  # code by indentation
        number += sum(
            len(line) > LIMITS["prose"]["width"] and not line.startswith("|")
            for line in text.splitlines()
        )
    return number


def words() -> Counter[str]:
    """How often each word that is to go stands in sources and pages."""
    text = "\n".join(file.read_text("utf-8") for file in (*python(*SOURCE), *pages()))
    return Counter({word: len(re.findall(rf"\b{word}\b", text)) for word in LIMITS["words"]})


@functools.cache
def first_product() -> list[str]:
    """The files that a first product passes through; none where there is no device."""
    done = subprocess.run(
        [sys.executable, "-c", FIRST_PRODUCT], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def measured() -> dict[str, tuple[int, int]]:
    """What is limited -> how much it is, and how much it may be."""
    known, limits = rooms(), LIMITS["lines"]
    found = {
        "lines of source": (lines_of(python(*SOURCE)), limits["source"]),
        "lines of tests": (lines_of(python("tests")), limits["tests"]),
        "modules": (len(python(*SOURCE)), limits["modules"]),
        "words of the glossary": (len(glossary()), LIMITS["ideas"]["glossary"]),
        "long lines of prose": (long_lines(), LIMITS["prose"]["long"]),
    }
    for room, files in known.items():
        most = LIMITS["rooms"].get(room, LIMITS["rooms"]["most"])
        found[f"modules in {room}"] = len([f for f in files if f.name != "__init__.py"]), most
    found |= {f"{word!r}": (n, LIMITS["words"][word]) for word, n in words().items()}
    if passed := first_product():
        found["modules of a first product"] = len(passed), LIMITS["path"]["product"]
    return found


def main() -> int:
    """Print the rooms, and what is limited."""
    for room, files in rooms().items():
        print(f"{room:<36} {len(files):>4} modules {lines_of(files):>7} lines")
    print()
    exceeded = 0
    for name, (now, most) in measured().items():
        exceeded += now > most
        if not name.startswith("modules in ") or now > most:
            print(f"{name:<36} {now:>7} of {most}{'  TOO MANY' * (now > most)}")
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main())
