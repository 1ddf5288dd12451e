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


def test_a_table_is_made_of_what_a_command_prints(tmp_path, monkeypatch):
    figures = module("figures")
    monkeypatch.setattr(figures, "FOLDER", tmp_path)
    one = {"case": "kmeans 9x2x3, operands on host, float32", "chosen": "lloyd on cpu"}
    one["seconds"] = {"automatic": 1.26781e-3, "lloyd on cpu": 1.2e-3, "scikit-learn": 2.5}
    two = {"case": "kmeans 9x2x3, operands on cuda:0, float32", "chosen": "lloyd on cuda:0"}
    two["seconds"] = {"lloyd on cuda:0": 1e-5, "library on cuda:0": 2e-5, "CuPy": 4e-4}
    two |= {"flops": 1.0, "failed": {}}
    printed = {"bench kmeans": [one, two]}
    for number, name in enumerate(figures.OPERATIONS):
        over = {"geometric_mean": 1.02345 + number, "p95": 6.1, "worst": 7.0 + number, "p99": 6.2}
        printed[f"verify {name}"] = {"problems": number, "chosen_over_best": over}
    printed["info"] = {"cpu": {"cores": 2, "name": "a CPU", "blas": "b", "blas_version": "1"}}
    printed["info"]["devices"] = {"cuda:0": {"kind": "cuda", "name": "a GPU"}}

    def run(command, **how):
        assert command[1:3] == ["-m", "hetero"]
        assert command[-1] == "--json"
        known = next(found for name, found in printed.items() if name in " ".join(command[3:]))
        return SimpleNamespace(stdout=json.dumps(known))

    monkeypatch.setattr(figures.subprocess, "run", run)
    for name in ("kmeans", *(f"verify-{name}" for name in figures.OPERATIONS)):
        figures.measure(name)
    about = json.loads((tmp_path / "kmeans.json").read_text("utf-8"))
    where = "2 cores, a CPU, BLAS b 1, 1 x a GPU"
    assert (about["command"], about["machine"]) == ("hetero bench kmeans", where)
    assert about["rows"][0] == one | {"seconds": one["seconds"] | {"automatic": 1.268e-3}}
    assert "flops" not in about["rows"][1]
    page = "Before.\n<!-- table kmeans -->\nold\n<!-- end -->\nAfter.\n"
    assert figures.printed(page).splitlines() == [
        *("Before.", "<!-- table kmeans -->"),
        "| n x d x k, ms | operands | automatic | chosen | CPU | GPU | scikit-learn | CuPy |",
        "|---|---|---|---|---|---|---|---|",
        "| 9x2x3 | NumPy | 1.27 | lloyd on cpu | 1.2 | | 2500 | |",
        "| 9x2x3 | GPU | | lloyd on cuda:0 | | 0.01 | | 0.4 |",
        "",
        f"`hetero bench kmeans`: {where}, {about['date']}.",
        *("<!-- end -->", "After."),
    ]
    assert "| `kmeans` | 5 | 6.023 | 12 |" in figures.TABLES["verify"]()
    monkeypatch.setattr(figures, "DOCS", tmp_path)
    (tmp_path / "page.md").write_text("<!-- table pair -->\n<!-- end -->\n", "utf-8")
    for number, name in enumerate(figures.OPERATIONS, 1):
        seconds = {"lloyd on cuda:0": 3e-3 * number, "lloyd on cuda:*": 2e-3}
        printed[f"bench {name}"] = [one | {"seconds": seconds, "chosen": name}]
    printed["info"]["devices"]["cuda:1"] = {"kind": "cuda", "name": "a GPU"}
    figures.main(["all"])
    assert len(list(tmp_path.glob("pair-*.json"))) == 5
    table = (tmp_path / "page.md").read_text("utf-8").splitlines()[1:4]
    assert table[0] == "| call, ms | one GPU | gain | chosen |"  # two GPUs take 2 ms for all
    assert table[2] == "| `matmul` 9x2x3 | 6 | 3.00 | matmul |"
    variants = {"NumPy": 0.5, "hetero": 0.25, "CuPy": 0.1}
    runs = [
        {"program": name, "variant": variant, "first": 1.0 + at, "later": at + seconds}
        for at, name in enumerate(("heat", "power"))
        for variant, seconds in variants.items()
    ]
    runs[-1] = {"program": "power", "variant": "CuPy", "failed": "it has no such function"}
    known = {figures.COMMANDS["programs"]: runs, "hetero info": printed["info"]}
    monkeypatch.setattr(figures, "run", lambda line: json.dumps(known[line]))
    figures.measure("programs")
    assert figures.TABLES["programs"]()[:4] == [
        "| program, ms | NumPy | hetero | CuPy | first run |",
        "|---|---|---|---|---|",
        "| `heat` | 500 | 250 | 100 | 1000 |",
        "| `power` | 1500 | 1250 | | 2000 |",
    ]


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
