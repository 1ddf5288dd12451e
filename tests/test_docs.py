"""What the documentation shows, runs: docstrings and pages."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import inspect
import re

import pytest
from release import ROOT, SETUP, text
from test_imports import MODULES

import hetero.ops
from hetero import cli, registry
from hetero.cli import commands

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
OPERATIONS = registry.operations()
INSTALLING = text("docs/install.md") + text("README.md")


def examples():
    """Every docstring with an example, of every module."""
    found = []
    finder = doctest.DocTestFinder(exclude_empty=True)
    without_dask = importlib.util.find_spec("dask") is None
    for name in MODULES:
        if not name.endswith("__main__") and not (without_dask and "hetero.dask" in name):
            module = importlib.import_module(name)
            found += [t for t in finder.find(module, name, module=module) if t.examples]
    return found


EXAMPLES = examples()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.name)
def test_docstrings(example, monkeypatch, hasty):
    if example.name.endswith(".calibrate"):  # the kernels of all take a minute to compile
        monkeypatch.setattr(registry, "operations", lambda: OPERATIONS[:1])
    output = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    failed = runner.run(example, out=output.append).failed
    assert not failed, "".join(output)


RUN = {example.name.rpartition(".")[2] for example in EXAMPLES}


@pytest.mark.parametrize("name", hetero.__all__)
def test_public_names_are_documented(name):
    """Every function with an example that was run; see `hetero.spec` for a class behind one."""
    value = getattr(hetero, name)
    shown = inspect.getdoc(value)
    assert shown
    if inspect.isfunction(value):
        assert name in RUN, f"hetero.{name} shows no example"
        for parameter in inspect.signature(inspect.unwrap(value)).parameters:
            if "Parameters\n" in shown:
                assert re.search(rf"\b{parameter}\b", shown), f"{name}: {parameter}"


# Run by tests/contract, by test_dask.py and mpi/, where what they need is installed.
ELSEWHERE = {"dask.md", "several.md"}
SHOWING = [p for p in PAGES if p.name not in ELSEWHERE and "```python" in p.read_text("utf-8")]


@pytest.mark.parametrize("page", SHOWING, ids=lambda p: p.name)
def test_python_of_pages_runs_and_prints_what_is_shown(page, capsys):
    """A page's blocks are one program; a block of "text" after one is what that one prints."""
    parts = re.findall(r"^```(python|text)\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)
    names = {"__name__": "shown"}
    printed = ""
    for number, (language, block) in enumerate(parts):
        if language == "python":
            exec(compile(block, f"{page.name}, block {number}", "exec"), names)
            printed = capsys.readouterr().out
        else:
            assert printed == block, f"{page.name}, block {number}"


def shown_commands(page):
    """Every command line of hetero's that a page shows: in backquotes, or in a block of code.

    What stands in brackets may be left out; lines with '...' are no whole commands.
    """
    whole = page.read_text("utf-8")
    found = re.findall(r"`(hetero [^`]+)`", re.sub(r"^```.*?^```", "", whole, flags=re.M | re.S))
    for block in re.findall(r"^```\w*\n(.*?)^```", whole, re.M | re.S):
        for line in block.splitlines():
            line = re.sub(r"\s+#.*", "", line).removeprefix("$ ")
            found += [c for c in line.split("&&") if re.match(r"\s*hetero [a-z]", c)]
    return {" ".join(re.sub(r"[][]", "", c).split()) for c in found if "..." not in c}


@pytest.mark.parametrize("command", sorted(set().union(*map(shown_commands, PAGES))))
def test_commands_that_are_shown_are_ones(command, monkeypatch, capsys):
    """The command, its options and their values are accepted; explain is run."""
    _, *words = (word.strip("'") for word in command.split())
    if words[0] != "explain":
        name = {"compile": "compile_loops"}.get(words[0], words[0])
        monkeypatch.setattr(commands, name, lambda arguments: None)
    if len(words) == 1:
        words.append("--help")  # a mere mention
    try:
        code = cli.main(words)
    except SystemExit as stop:
        code = stop.code
    assert not code, capsys.readouterr().err


PRINTING = [page for page in PAGES if "```console\n" in page.read_text("utf-8")]


@pytest.mark.parametrize("page", PRINTING, ids=lambda p: p.name)
def test_what_is_shown_as_printed_is_printed(page, capsys):
    whole = page.read_text("utf-8")
    blocks = re.findall(r"^```console\n\$ hetero (.*)\n((?s:.)*?)^```", whole, re.M)
    assert len(blocks) == whole.count("```console\n"), "each begins with a command of hetero's"
    ended = [(cli.main(line.split()), capsys.readouterr().out) for line, _ in blocks]
    assert ended == [(cli.DONE, output) for _, output in blocks]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_what_a_page_names_exists(page):
    """`hetero.name` and dotted names below it; files of this repository; what a link leads to, and
    its heading as GitHub names it."""
    whole = page.read_text("utf-8")
    for name in set(re.findall(r"\bhetero((?:\.[A-Za-z_]\w*)+)", whole)):
        if name.split(".")[-1] in ("json", "py"):  # a file's name
            continue
        value = hetero
        for part in name[1:].split("."):
            try:
                value = getattr(value, part)
            except AttributeError:
                value = importlib.import_module(f"{value.__name__}.{part}")
    for path in re.findall(
        r"`((?:hetero|kernels|calibration|tests|docs)/[\w/]+\.(?:py|cu|md))`", whole
    ):
        assert (ROOT / path).exists(), path
    for target, heading in re.findall(r"\]\(([^)#:]*)#?([^):]*)\)", whole):
        file = page.parent / target if target else page
        assert file.exists(), target
        if heading:
            lines = re.findall(r"^#+ (.*)$", file.read_text("utf-8").lower(), re.M)
            names = {re.sub(r"[^\w -]", "", line).replace(" ", "-") for line in lines}
            assert heading in names, f"{target}#{heading}"


def test_requirements_are_those_of_the_package():
    python = SETUP["options"]["python_requires"].removeprefix(">=")
    assert f"Python {python} or newer" in INSTALLING
    for line in SETUP["options"]["install_requires"].split("\n")[1:]:
        name, _, version = line.partition(";")[0].partition(">=")
        assert re.search(rf"(?i)\b{name} {re.escape(version)}\b", INSTALLING), line
    for extra in set(re.findall(r"'\.\[(.*?)\]'", INSTALLING)):
        for name in extra.split(","):
            assert name in SETUP["options.extras_require"], name


def test_what_to_install_is_what_the_extras_hold():
    """The commands in messages name packages, and all that an extra has."""
    from hetero.imports import INSTALL

    for extra in ("cuda", "library", "mpi", "opencl", "dask"):
        command = INSTALL[extra].replace("'dask[array]'", "dask")
        wanted = SETUP["options.extras_require"][extra].strip().splitlines()
        assert command.split()[:2] == ["pip", "install"]
        assert command.split()[2:] == [re.match(r"[\w-]+", line)[0] for line in wanted]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.name)
def test_the_methods_of_the_table_are_those_registered(operation):
    """The table 'What runs where', the CPU's column; every method of a GPU is named too."""
    _, _, below = text("docs/operations.md").partition("## What runs where")
    table = below.partition("\n\nfloat32")[0]
    (row,) = re.findall(rf"^\| {operation.function} \|(.*)\|(.*)\|$", table, re.M)
    on_cpu, on_gpu = (set(re.findall(r"`(\w+)`", cell)) for cell in row)
    methods = {
        kind: {i.method for i in registry.lookup(operation.name) if i.kind == kind}
        for kind in ("cpu", "cuda")
    }
    assert on_cpu == methods["cpu"]
    assert (on_cpu if "the same" in row[1] else on_gpu) == methods["cuda"]


def test_make_targets_exist():
    for target in set(re.findall(r"(?:^|`)make (\w+)", INSTALLING, re.M)):
        assert re.search(rf"^{target}:", text("Makefile"), re.M), target
