"""`hetero report`: the whole page, what is kept for it, and the command."""

from __future__ import annotations

import copy
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from kept_results import LADDER, VERIFIED

import hetero.ops  # noqa: F401  # registers them
from hetero import cli, profile, registry
from hetero.evaluation import last, page, report
from hetero.ladder import ladder
from hetero.registry.models import ModelKey

VOID = {"meta", "br"}
LOADING = {"src", "href", "srcset", "data", "action", "xlink:href", "poster", "style"}


class Outline(HTMLParser):
    """The elements of a page, properly nested or an error."""

    def __init__(self, text):
        super().__init__()
        self.open, self.found, self.text = [], [], {}
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open:
            self.text.setdefault(self.open[-1], []).append(data)


def small():
    """A profile's content, of one operation."""
    data = copy.deepcopy(profile.shipped("tesla-t10").data)
    models = {key: model for key, model in data["models"].items() if "|matvec|" in key}
    return {**data, "models": models}


@pytest.fixture(scope="module")
def made():
    return page.page("tesla-t10")


@pytest.fixture(scope="module")
def outline(made):
    return Outline(made)


def plain(html):
    """The page's text."""
    return " ".join(re.sub(r"<[^>]+>", " ", html[html.index("<h1>") :]).split())


def test_nothing_is_loaded(made, outline):
    """No script, no address but of the page's own parts, which are there once."""
    tags = {tag for tag, _ in outline.found}
    assert not tags & {"script", "img", "iframe", "object", "image"}
    for _, given in outline.found:
        for name in LOADING & given.keys():
            assert not re.search(r"//|url\((?!#)", given[name] or ""), given
    assert "@import" not in made
    names = [given["id"] for _, given in outline.found if "id" in given]
    wanted = re.findall(r'(?:url\(#|href="#)([^")]+)', made)
    assert wanted
    assert all(names.count(name) == 1 for name in wanted)


def test_pictures_are_drawn_and_named(made, outline):
    pictures = [given for tag, given in outline.found if given.get("role") == "img"]
    titles = [given["aria-label"] for given in pictures]
    assert titles == outline.text["figcaption"]
    assert len(titles) == len(set(titles)) > 8
    assert all("viewbox" in given for given in pictures)
    assert "matmul, m x 1024 by 1024 x n, float32: what is chosen" in titles
    assert "prefers-color-scheme:dark" in made


def test_every_operation_with_constants_has_a_section(outline):
    known = profile.shipped("tesla-t10").dtypes()
    expected = {o.function for o in registry.operations() if o.name in known}
    headings = set(outline.text["h2"])
    assert expected <= headings
    assert not {o.function for o in registry.operations() if o.name not in known} & headings


def test_without_matplotlib_there_are_the_answers(made, monkeypatch):
    monkeypatch.setattr(report, "figure", lambda *size: None)
    found = page.page("tesla-t10")
    assert "<figure" not in found
    assert plain(found).partition("Profile")[0] == plain(made).partition("Profile")[0]
    assert "pip install matplotlib" in found
    assert "pip install matplotlib" not in made


def test_names_from_a_profile_are_text(tmp_path):
    """Whatever a machine calls itself."""
    data = small()
    bad = '<script>alert("x")</script>'
    data["devices"] = {name: {**info, "name": bad} for name, info in data["devices"].items()}
    found = page.page(str(profile.Profile(data).save(tmp_path / "bad.json")))
    assert "<script" not in found
    assert "&lt;script&gt;" in found


# -- What it opens with ----------------------------------------------------------------------------


def test_it_opens_with_where_a_gpu_pays(made):
    """With the crossovers that `hetero transfer` finds, and a command that takes this profile."""
    opens = plain(made)
    assert "From where a GPU pays matvec, A of n x n, float32 from n = 2535," in opens
    assert "63 x 63, float32 at every size," in opens
    assert "3% in the median of 3 models" in opens
    assert "not measured" in opens
    assert "hetero advise --on tesla-t10 script.py" in opens


def test_without_a_gpu_it_opens_with_the_cpus_methods(tmp_path):
    data = profile.shipped("h100").data
    models = {key: model for key, model in data["models"].items() if key.startswith("cpu|")}
    alone = {**data, "models": models, "links": {}}
    alone["devices"] = {"cpu": data["devices"]["cpu"]}
    kept = {last.VERIFY: {"a, on host": VERIFIED, "b, on host": {**VERIFIED, "problems": 1, **BAD}}}
    file = profile.Profile(alone).save(tmp_path / "cpu.json")
    last.file_of(file).write_text(json.dumps(kept), "utf-8")
    opens = plain(page.page(str(file)))
    assert "No GPU here: the fastest on the CPU matvec, A of n x n, float32 blas" in opens
    assert "40% in the mean of 4 random calls of a, b; 200% at worst" in opens
    # (1.01^3 2)^(1/4)
    assert "1.198 geometric mean of 4 random calls of a, b; 9 at worst" in opens
    assert "where one would pay hetero report --profile h200 h200.html" in opens
    assert "convolve2d, n x n with a filter of 63 x 63, float32 direct to fft" in opens


BAD = {
    "chosen_error": {"mean": 1.0, "p95": 1.0, "worst": 2.0},
    "chosen_over_best": {**VERIFIED["chosen_over_best"], "geometric_mean": 2.0, "worst": 9.0},
}


def test_what_comes_next(monkeypatch):
    """The first thing that is missing, or wrong."""
    good = profile.shipped("h100").data

    def command(data, calls=3, ratio=1.01):
        constants = profile.Profile(data)
        residuals = constants.residuals().items()
        errors = {
            ModelKey.parse(key): error["mean"] for key, error in residuals if key.count("|") == 4
        }
        return page.advice(constants, None, errors, calls, ratio)[0]

    monkeypatch.setattr(page.loops, "is_ready", lambda name: True)
    assert command(profile.shipped("conservative").data) == "hetero calibrate"
    assert command({**good, "load": {**good["load"], "left": 5000}}) == "hetero calibrate"
    for operation, function in (("matvec", "matvec"), ("poisson", "solve_poisson")):
        key = next(key for key in good["models"] if f"|{operation}|" in key)
        off = {**good["models"][key], "residuals": {"mean": 2.0, "p95": 2.0, "worst": 2.0}}
        wrong = {**good, "models": {**good["models"], key: off}}
        assert command(wrong) == f"hetero calibrate --only {function}"
    assert command(good, calls=0) == "hetero verify"
    assert command(good, ratio=2.0) == "hetero calibrate"
    assert command(good) == "python -m hetero.accel script.py"
    monkeypatch.setattr(page.loops, "is_ready", lambda name: False)
    assert command(good) == "hetero compile"


# -- What is kept, and the command -----------------------------------------------------------------


def test_the_last_verification_is_kept_beside_the_profile(tmp_path, monkeypatch):
    file = profile.Profile(small()).save(tmp_path / "here.json")
    monkeypatch.setenv("HETERO_PROFILE", str(file))
    assert last.read(file) == {}
    last.keep(last.VERIFY, "matmul, on host", {"problems": 1})
    last.keep(last.VERIFY, "matmul, on host", VERIFIED)
    last.keep("other", "x", {})
    last.keep_ladder(LADDER)
    assert last.read(file)[last.VERIFY]["matmul, on host"]["problems"] == 3
    assert profile.read(file).name == "tesla-t10"  # which is as it was
    found = page.page(str(file))
    assert "geometric mean 1.010" in found
    assert "matmul float32 on cuda:0" in found
    assert "library is left out: it is not here" in found
    assert "1.30x a &lt; b" in found
    assert "left out: cuda:1: broken" in found


@pytest.mark.parametrize("content", [b"", b"[]", b'{"verify": 1}', b"\xff"])
def test_what_is_kept_and_cannot_be_read_is_nothing(tmp_path, content):
    (tmp_path / "p.json.latest").write_bytes(content)
    assert last.read(tmp_path / "p.json") == {}


def test_what_is_kept_in_another_form_is_said(tmp_path):
    file = profile.Profile(small()).save(tmp_path / "p.json")
    other = {last.VERIFY: {"x": {"problems": 3}}, last.LADDER: {"x": {"rows": [1]}}}
    last.file_of(file).write_text(json.dumps(other), "utf-8")
    found = page.page(str(file))
    assert found.count("kept in another form") == 2
    assert "not measured" in found


def test_what_cannot_be_kept_is_not(tmp_path, monkeypatch):
    monkeypatch.setenv("HETERO_PROFILE", str(tmp_path))  # a folder
    last.keep(last.VERIFY, "x", {})
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def quick(monkeypatch, made):
    """A page that was made before."""
    monkeypatch.setattr(page, "page", lambda named: made)


def test_the_command(tmp_path, capsys, quick, made):
    file = tmp_path / "report.html"
    assert cli.main(["report", str(file), "--profile", "tesla-t10", "--json"]) == cli.DONE
    assert json.loads(capsys.readouterr().out) == {"file": str(file)}
    assert file.read_text("utf-8") == made
    assert cli.main(["report", str(file)]) == cli.DONE
    assert str(file) in capsys.readouterr().out


def test_a_ladder_is_measured_first(tmp_path, capsys, quick, monkeypatch):
    """Of this machine, and kept where the page finds it."""
    monkeypatch.setenv("HETERO_PROFILE", str(tmp_path / "here.json"))
    monkeypatch.setattr(ladder, "ladder", lambda operation, progress: LADDER)
    file = str(tmp_path / "report.html")
    assert cli.main(["report", file, "--ladder", "matmul"]) == cli.DONE
    assert list(last.read(tmp_path / "here.json")[last.LADDER]) == ["matmul float32 on cuda:0"]
    for wrong in (["--profile", "h100"], ["--ladder", "nothing"]):
        assert cli.main(["report", file, "--ladder", "matmul", *wrong]) == cli.USAGE
    assert "'convolve2d'" in capsys.readouterr().err


def test_a_profile_that_is_not_there(tmp_path, capsys):
    assert cli.main(["report", str(tmp_path / "x.html"), "--profile", "mars"]) == cli.USAGE
    assert "'tesla-t10'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "none/x.html"])
def test_a_file_that_cannot_be_written(tmp_path, capsys, name):
    assert cli.main(["report", str(Path(tmp_path, name))]) == cli.FAILED
    assert str(tmp_path) in capsys.readouterr().err


def test_what_info_says_of_a_calibrated_machine():
    constants = profile.named("h100")
    rates = "\n".join(report.rates(constants))
    assert re.search(r"cpu BLAS, float64: \d+ GFLOP/s \(2048 x 2048 x 2048\)", rates)
    for way in ("upload", "download"):
        line = rf"cuda:0 {way}, pinned: set-up .* us, 5\d\.\d GB/s; T_x = .* c0 = .* c1 = "
        assert re.search(line, rates)
    pays = dict(page.pays(constants, constants.machine()))
    assert pays["matmul, n x n by n x n, float32"].startswith("from n = ")
    assert len(pays) >= len(registry.operations())
