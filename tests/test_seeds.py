"""The page of reports' figures: complete, its commands understood, its figures as printed."""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path

import pytest

from hetero.kernels.cpu.ladder import LADDERS
from hetero.ladder.families import FAMILIES

PAGE = (Path(__file__).parent.parent / "docs" / "seeds.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
DOCUMENTS = ("White", "Jensen", "The book", "Ehlinger and Herb", "18-645")


def commands(document):
    """Its commands, by their numbers."""
    return dict(re.findall(r"^    ([A-Z]\d)  hetero (.*)$", SECTIONS[document], re.MULTILINE))


def rows(document):
    """The cells of its first table."""
    lines = SECTIONS[document].partition("| there |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_names_in_a_row_are_rungs_of_its_commands(document):
    """A row is marked; one that hetero makes has a command, Python lines or the code it names."""
    known = commands(document)
    for there, numbers, said, mark in rows(document):
        used = [known[number] for number in re.findall(r"\b[A-Z]\d\b", f"{numbers} {said}")]
        assert mark in ("same", "analogous", "not")
        assert bool(used or "Python" in numbers or "ladder.cu" in said) == (mark != "not"), there
        names = set()
        for command in (c for c in used if c.startswith(("ladder", "sweep"))):
            of = FAMILIES[command.split()[1]]
            names |= {*of.ladder.rungs, *of.methods}
            names |= {loop.name for loop in LADDERS.get(of.ladder.family, ())}
        if names or "ladder" in numbers:
            assert set(re.findall(r"`([a-z][a-z0-9-]*)`", said)) <= names | {"constant"}, there


# Command -> what its output says: figures that follow from constants, without a GPU.
T10 = "--dtype float32 --profile tesla-t10"
FIGURES = {
    f"explain matvec 2048 2048 {T10}": ["-> blas on cpu", "3.91 ms"],
    f"explain matvec 4096 4096 {T10}": [
        "-> tiled on cuda:0",
        "blas on cpu                 31.2 ms",
    ],
    f"explain matmul 4096 4096 4096 --device cpu {T10}": ["-> blas on cpu", "10 s"],
    f"explain convolve2d 4096 4096 63 63 --mode same --device cpu {T10}": [
        "direct on cpu",
        "2.9 min",
    ],
    "transfer 64MiB 16KiB --profile tesla-t10": ["18.2 ms", "28.1 us"],
    f"transfer --work matvec 4096 4096 {T10}": ["from n = 2535 on"],
    f"transfer --work matmul 4096 4096 4096 {T10}": ["from n = 95 on"],
    f"transfer --work convolve2d 4096 4096 3 3 --mode same {T10}": ["from h = 70 on"],
    f"transfer --work convolve2d 4096 4096 63 63 --mode same {T10}": ["at every size", "2.9 min"],
    f"transfer --work convolve2d 4096 4096 513 513 --mode same {T10}": ["3.5 h", "21.9 s"],
    # Section 5.1.6, a filter as large as the image: the CPU up to 11.
    f"explain convolve2d 11 11 11 11 --mode same {T10}": ["-> direct on cpu"],
    f"explain convolve2d 12 12 12 12 --mode same {T10}": ["-> direct on cuda:0"],
    f"explain solve_cg 4096 --iterations 8 {T10}": ["-> hybrid on cuda:0", "24.3 ms"],
    f"explain solve_cg 4096 --iterations 256 {T10}": ["-> hybrid on cuda:0", "212 ms"],
    f"transfer --work solve_cg 4096 --iterations 256 {T10}": ["by hybrid", "8.01 s"],
    "transfer --case blog --profile h100": ["20,800,000 bytes up", "from m = 1192 on"],
    "explain matmul 8192 8192 8192 --device cuda:* --profile h100x2": [
        "rows 0:4096",
        "rows 4096:8192",
    ],
    "explain solve_poisson 8192 8192 --profile h200x2": ["-> multigrid on cuda:*", "40 ms"],
}


@pytest.mark.parametrize("command", FIGURES)
def test_figures(command, run):
    code, out, err = run(*shlex.split(command))
    assert code == 0, err
    for figure in FIGURES[command]:
        assert figure in out


def test_figures_of_the_page_are_those_that_are_tested():
    """Each crossover, choice and time that a table gives of a command on a profile."""
    tested = " ".join(figure for figures in FIGURES.values() for figure in figures)
    for document in DOCUMENTS:
        for there, numbers, said, _ in rows(document):
            known = [commands(document)[n] for n in re.findall(r"\b[A-Z]\d\b", numbers)]
            if known and all("--profile" in command for command in known):
                for figure in re.findall(r"`([^`]*[\d>][^`]*)`", said):
                    if not figure.startswith(("--", "ladder")):
                        assert figure in tested, (there, figure)


@pytest.mark.parametrize("name", ["h100", "h200"])
def test_hybrid_is_taken_on_no_card_of_today(name, data):
    for n in (512, 2048, 4096, 16384):
        for count in (8, 256):
            asked = (str(n), "--iterations", str(count), "--dtype", "float32", "--profile", name)
            assert data("explain", "solve_cg", *asked)["chosen"]["method"] != "hybrid"


def test_python_lines():
    """The occupancies that the project read off NVIDIA's calculator."""
    found = doctest.testfile(str(Path(__file__).parent.parent / "docs" / "seeds.md"), False)
    assert found.attempted >= 6
    assert not found.failed
