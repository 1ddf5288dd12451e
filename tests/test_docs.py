"""What the documentation shows, runs: docstrings and the README."""

from __future__ import annotations

import dataclasses
import doctest
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import numpy as np
import pytest

import hetero
from hetero import cli
from hetero.calibration import efforts

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def examples():
    """Every docstring with an example, of every module."""
    found = []
    finder = doctest.DocTestFinder(exclude_empty=True)
    for info in pkgutil.walk_packages(hetero.__path__, "hetero."):
        if info.name.endswith("__main__"):
            continue
        module = importlib.import_module(info.name)
        found += [t for t in finder.find(module, info.name, module=module) if t.examples]
    names = [t.name for t in found]
    for name in ("calibration", "kernels"):  # elsewhere on disk, so perhaps not walked
        if not any(n.startswith(f"hetero.{name}") for n in names):
            module = importlib.import_module(f"hetero.{name}")
            for info in [None, *pkgutil.iter_modules(module.__path__, f"hetero.{name}.")]:
                part = module if info is None else importlib.import_module(info.name)
                found += [t for t in finder.find(part, part.__name__, module=part) if t.examples]
    return found


EXAMPLES = examples()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.name)
def test_docstrings(example, monkeypatch):
    hasty = {"budget": 1e-4, "longest": 1e-3, "step": 16.0, "device_step": 16.0, "total": 0.5}
    monkeypatch.setattr(efforts, "QUICK", dataclasses.replace(efforts.QUICK, **hasty))
    output = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    failed = runner.run(example, out=output.append).failed
    assert not failed, "".join(output)


def test_docstrings_were_found():
    names = {e.name for e in EXAMPLES}
    for name in ("hetero.ops.matmul.matmul", "hetero.ops.matvec.matvec", "hetero.ops.plan"):
        assert name in names
    assert any(name.endswith(".machine") for name in names)
    assert any(name.endswith(".calibrate") for name in names)


@pytest.mark.parametrize("name", hetero.__all__)
def test_public_names_are_documented(name):
    """Every function with an example that runs; see `hetero.spec` for a class behind one."""
    value = getattr(hetero, name)
    text = inspect.getdoc(value)
    assert text
    if inspect.isfunction(value):
        assert ">>>" in text, f"hetero.{name} shows no example"
        for parameter in inspect.signature(inspect.unwrap(value)).parameters:
            if "Parameters\n" in text:
                assert re.search(rf"\b{parameter}\b", text), f"{name}: {parameter}"


def blocks(language):
    if not README.exists():
        return []
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text("utf-8"), re.M | re.S)


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_readme_python(number, capsys):
    names = {}
    exec(compile(blocks("python")[number], f"README block {number}", "exec"), names)
    A, B, x = names["A"], names["B"], names["x"]
    np.testing.assert_allclose(names["C"], A @ B)
    np.testing.assert_allclose(names["y"], A @ x)
    printed = capsys.readouterr().out
    assert "->" in printed, "the plans"
    assert "blas" in printed


def test_readme_commands_exist(capsys):
    named = set(re.findall(r"`hetero (\w+)", README.read_text("utf-8")))
    assert {"info", "calibrate", "explain", "verify", "demo"} <= named
    for command in named:
        with pytest.raises(SystemExit) as stop:
            cli.main([command, "--help"])
        assert stop.value.code == 0
    capsys.readouterr()


def test_readme_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in set(re.findall(r"^make (\w+)", README.read_text("utf-8"), re.M)):
        assert re.search(rf"^{target}:", makefile, re.M), target


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text("utf-8")):
        assert (page.parent / target).exists(), f"{page.name} points to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_files_that_are_named_exist(page):
    """Paths in backquotes, as far as they look like ones of this repository."""
    for path in re.findall(
        r"`((?:hetero|kernels|calibration|tests|docs)/[\w/]+\.(?:py|cu|md))`", page.read_text()
    ):
        assert (ROOT / path).exists(), f"{page.name} names {path}"
