"""The page of reports' figures: written from its data, complete, and its commands run."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from runtimes import opencl_device

from hetero.evaluation.causes import probe
from hetero.kernels.procedure import metrics
from hetero.kernels.procedure.card import CARDS, T10

DOCS = Path(__file__).parent.parent / "docs"
SCRIPT = runpy.run_path(str(DOCS / "seeds.py"))
DATA = SCRIPT["read"]()
ROWS = [(title, row) for title, _, row in SCRIPT["rows"](DATA)]
# What each report has: of A. White by chapters, as "chapter.last".
HAVE = {
    "A. White": {
        "figure": ["2.5", "3.14", "4.25", "5.25"],
        "table": ["3.2"],
        "listing": ["3.2", "4.18", "5.5"],
    },
    "M. Jensen": {"figure": ["8"], "table": ["1"]},
    "T. Ehlinger": {"figure": ["3"]},
    "A project": {"figure": ["3"], "table": ["4"]},
}


def small():
    """Every command that needs no GPU, as it is run here."""
    found = {}
    for _, row in ROWS:
        for command, here in row.get("commands", ()):
            if here is not None:
                found[here or command] = None
    return [*found]


def test_the_page_is_what_the_script_writes():
    assert (DOCS / "seeds.md").read_text("utf-8") == SCRIPT["page"](DATA)


def test_every_row_has_a_command_or_says_why_not():
    for _, row in ROWS:
        assert row.get("commands") or row.get("python") or row.get("remark"), row


def ends(text):
    """Chapter, first and last number of "4.1 to 4.3"."""
    first, _, last = text.partition(" to ")
    chapter, _, begin = first.rpartition(".")
    return chapter, int(begin), int((last or first).rpartition(".")[2])


@pytest.mark.parametrize("author", HAVE)
def test_every_figure_and_table_is_there(author):
    text = "; ".join(row["what"] for title, row in ROWS if title.startswith(author))
    for kind, lasts in HAVE[author].items():
        numbers = rf"{kind}s? ((?:\d[\d.]*(?: to |, )?)+)"
        named = {
            (chapter, number)
            for part in re.findall(numbers, text)
            for one in re.findall(r"[\d.]+(?: to [\d.]+)?", part)
            for chapter, begin, end in [ends(one)]
            for number in range(begin, end + 1)
        }
        for last in lasts:
            chapter, _, end = last.rpartition(".")
            missing = {(chapter, n) for n in range(1, int(end) + 1)} - named
            assert not missing, (kind, missing)


@pytest.mark.parametrize(
    "row", [row for _, row in ROWS if "python" in row], ids=lambda r: r["shows"]
)
def test_python(row):
    names = {"metrics": metrics, "CARDS": CARDS, "T10": T10}
    assert eval(row["python"], names) == row["gives"]


@pytest.mark.parametrize("command", small())
def test_commands(command, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(probe, "_BYTES_OTHERS", 1 << 22)  # read by probes; else 64 MiB
    program, *words = shlex.split(command)
    if "opencl:0" in words:
        opencl_device()  # or the test is skipped
    if program == "python":
        script = DOCS.parent / words[0]
        done = subprocess.run([sys.executable, script, *words[1:]], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    else:
        code, out, err = run(*words)
        assert code == 0, err
        assert out
    pictures = [word for word in words if word.endswith((".svg", ".html"))]
    assert all((tmp_path / picture).stat().st_size > 1000 for picture in pictures)
