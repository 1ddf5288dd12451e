"""The site builds without a warning, and lists everything."""

from __future__ import annotations

import importlib
import json
import re
from types import SimpleNamespace

import processes
import pytest
import release

import hetero
from hetero import errors
from hetero.cli.parser import parser

ROOT, DOCS = release.ROOT, release.ROOT / "docs"
PAGES = sorted(p.relative_to(DOCS).with_suffix("").as_posix() for p in DOCS.glob("*.md"))


def module(name):
    """One of the scripts in docs/."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS))
        return importlib.import_module(name)


generate = module("generate")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site; any warning fails."""
    for package in ("sphinx", "numpydoc", "myst_parser", "pydata_sphinx_theme"):
        pytest.importorskip(package)
    folder = tmp_path_factory.mktemp("site")
    command = ["-m", "sphinx", "-W", "--keep-going", "-q", "-c", "docs", "."]
    processes.python(*command, folder / "html", "-d", folder / "doctrees", cwd=ROOT, timeout=None)
    return folder / "html"


def test_every_page_is_there(site):
    for page in PAGES:
        assert (site / "docs" / f"{page}.html").exists(), page
    for folder in (ROOT / "kernels").glob("*/README.md"):
        assert (site / folder.relative_to(ROOT).with_suffix(".html")).exists()
    assert "docs/index.html" in (site / "index.html").read_text("utf-8")
    assert (site / "searchindex.js").stat().st_size > 50_000


def test_nothing_is_loaded_from_elsewhere(site):
    for page in site.rglob("*.html"):
        text = page.read_text("utf-8")
        found = re.findall(r"<(?:script|img|link|iframe)[^>]*(?:src|href)=.(?:https?:)?//", text)
        assert not found, page


def test_every_public_name_is_in_the_reference(site):
    shown = (site / "docs" / "functions.html").read_text("utf-8")
    assert {name for _, names in generate.groups() for name in names} >= set(hetero.__all__)
    for name in set(hetero.__all__) - {"errors"}:
        assert f'id="hetero.{name}"' in shown, name
    assert shown.count("<details>") >= len(hetero.__all__) - 1  # to unfold, without `errors`
    messages = (site / "docs" / "messages.html").read_text("utf-8")
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, errors.HeteroError):
            assert name in messages
    text = re.sub("<[^>]+>", "", messages)
    for line in ("taking conservative constants", "RuntimeWarning"):  # of the log, of warnings
        assert line in text


def test_every_command_and_option_is_in_the_reference():
    shown = generate.commands()
    for name in parser()[1]:
        assert f"### hetero {name}\n" in shown
    assert "--profile NAME|FILE" in shown


def test_every_environment_variable_is_in_the_reference():
    """Names in the sources that look like one, and every name that os.environ is asked for."""
    sources = "\n".join(
        file.read_text("utf-8")
        for folder in generate.SOURCES
        for file in (ROOT / folder).rglob("*.py")
    )
    found = set(re.findall(r"\bHETERO_[A-Z_]+|\b[A-Z]+_NUM_THREADS\b|\w+_VENDORS\b", sources))
    found |= set(re.findall(r"""environ(?:\.get\(|\[)\s*["'](\w+)["']""", sources))
    found |= set(re.findall(r"""["'](\w+)["'] (?:not )?in os\.environ""", sources))
    shown = set(re.findall(r"`([A-Z][A-Z_]+)`", (DOCS / "environment.md").read_text("utf-8")))
    assert {"HETERO_PROFILE", "XDG_CACHE_HOME", "CUDA_VISIBLE_DEVICES"} <= found
    assert found <= shown, "docs/environment.md lists them"
    for name in shown - found:
        assert name in sources or name.startswith(("NUMBA_", "OPENBLAS_")), name


def test_tables_are_those_of_their_files():
    """Where this fails: python docs/figures.py."""
    figures, known = module("figures"), set()
    for page in DOCS.glob("*.md"):
        text = page.read_text("utf-8")
        known |= set(re.findall(r"<!-- table (\S+) -->", text))
        assert figures.printed(text) == text, page
    assert known >= {"matvec", "matmul", "solve_poisson", "convolve2d", "verify"}
    assert set(figures.COMMANDS) >= {f.stem for f in figures.FOLDER.glob("*.json")}


def test_what_commands_print_is_kept_and_made_a_table(tmp_path, monkeypatch):
    """On a host with two GPUs; what files have that are kept is on the pages."""
    figures = module("figures")
    for name in ("FOLDER", "DOCS"):
        monkeypatch.setattr(figures, name, tmp_path)
    gpus = {f"cuda:{number}": {"kind": "cuda", "name": "a GPU"} for number in range(2)}
    cpu = {"cores": 2, "name": "a CPU", "blas": "b", "blas_version": "1"}
    printed = {"hetero info": {"cpu": cpu, "devices": gpus}}
    for number, name in enumerate(figures.OPERATIONS, 1):
        row = {"case": "f 9x2x3, operands on host, float32", "chosen": name, "flops": 1.0}
        row["seconds"] = {"lloyd on cuda:0": 3.00006e-3 * number, "lloyd on cuda:*": 2e-3}
        printed[f"hetero bench {name}"] = [row]
    over = {"geometric_mean": 1.02345, "p95": 6.1, "worst": 7.0, "p99": 6.2}
    printed[figures.COMMANDS["verify-kmeans"]] = {"problems": 3, "chosen_over_best": over}
    known = {"program": "heat", "variant": "NumPy", "first": 1.0, "later": 0.5}
    lacking = {"program": "heat", "variant": "CuPy", "failed": "it has no such function"}
    printed[figures.COMMANDS["programs"]] = [known, lacking]

    def run(command, **how):
        assert command[-1] == "--json"
        words = command[3:-1] if command[1:3] == ["-m", "hetero"] else command[1:-1]
        name = " ".join(["hetero" if len(words) < len(command) - 2 else "python", *words])
        return SimpleNamespace(stdout=json.dumps(printed[name]))

    monkeypatch.setattr(figures.subprocess, "run", run)
    (tmp_path / "page.md").write_text("<!-- table pair -->\n<!-- end -->\n", "utf-8")
    figures.main(["all"])
    table = (tmp_path / "page.md").read_text("utf-8").splitlines()[1:4]
    assert table[0] == "| call, ms | one GPU | gain | chosen |"  # two GPUs take 2 ms for all
    assert table[2] == "| `matmul` 9x2x3 | 6 | 3.00 | matmul |"
    assert len(list(tmp_path.glob("pair-*.json"))) == 5
    found = figures.kept("pair-kmeans")
    assert (found["command"], found["machine"]) == (
        "hetero bench kmeans", "2 cores, a CPU, BLAS b 1, 2 x a GPU",
    )  # fmt: skip
    seconds = {"lloyd on cuda:0": 0.018, "lloyd on cuda:*": 2e-3}
    assert found["rows"] == [{"case": row["case"], "chosen": "kmeans", "seconds": seconds}]
    for name, rows in (
        ("verify-kmeans", [{"problems": 3, "geometric_mean": 1.023, "p95": 6.1, "worst": 7.0}]),
        ("programs", [known]),
    ):
        figures.measure(name)
        assert figures.kept(name)["rows"] == rows


def test_pictures_are_what_the_script_draws(tmp_path, monkeypatch):
    """Where this fails: make pictures."""
    pictures = module("pictures")
    monkeypatch.setattr(pictures, "FOLDER", tmp_path)
    pictures.predicted()
    pictures.measured()
    drawn = sorted(tmp_path.glob("*.svg"))
    assert len(drawn) == 7
    for file in drawn:
        kept = DOCS / "pictures" / file.name
        assert kept.read_text("utf-8") == file.read_text("utf-8"), f"{file.name}: make pictures"
