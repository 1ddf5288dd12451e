"""The examples in the documentation, in small: they print the same with hetero.accel."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

import hetero
from hetero.host import loops

EXAMPLES = sorted((Path(__file__).parents[2] / "docs" / "examples").glob("*.py"))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_example(file, monkeypatch, capsys):
    pytest.importorskip("sklearn")
    if "skimage" in file.read_text():
        pytest.importorskip("skimage")
    monkeypatch.setenv("HETERO_ACCEL_LEAST", "0")
    monkeypatch.setattr(sys, "argv", [str(file), "small"])

    def printed():
        runpy.run_path(str(file), run_name="__main__")
        return list(map(float, re.findall(r"\d\S*", capsys.readouterr().out)))

    plain = printed()
    with hetero.install(recording=True) as installed:
        ours = printed()
    assert plain
    assert ours == pytest.approx(plain, rel=1e-6)
    assert installed.session.book.rows()


def test_the_notebook(tmp_path, monkeypatch):
    """Its cells run one after the other, and it draws its picture."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    monkeypatch.setenv("HETERO_PROFILE", str(tmp_path / "profile.json"))
    loops.ensure(loops.every())  # which takes minutes on a slow machine
    file = EXAMPLES[0].with_name("first_steps.ipynb")
    notebook = nbformat.read(file, as_version=4)
    nbclient.NotebookClient(notebook, timeout=100).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    printed = "".join(output.get("text", "") for output in shown)
    assert "-> " in printed
    assert "(profile: measured" in printed  # or disturbed by other load
    assert any("image/png" in output.get("data", ()) for output in shown)
