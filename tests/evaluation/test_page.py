"""`hetero report`: the whole page, what is kept for it, and the command."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

import hetero.ops  # noqa: F401  # registers them
from hetero import cli, profile, registry
from hetero.evaluation import page, report

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
    assert len(titles) == len(set(titles)) >= 8
    assert all("viewbox" in given for given in pictures)
    assert "matvec, A of n x n, float32" in titles
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


# -- What it opens with ----------------------------------------------------------------------------


def test_it_opens_with_where_a_gpu_pays(made):
    """With the crossovers that `hetero transfer` finds."""
    opens = plain(made)
    assert "From where a GPU pays matvec, A of n x n, float32 from n = 2535," in opens
    assert "63 x 63, float32 at every size," in opens
    assert "3% in the median of 3 models" in opens


def test_without_a_gpu_it_opens_with_the_cpus_methods(tmp_path):
    data, bad = profile.shipped("h100").data, '<script>alert("x")</script>'
    models = {key: model for key, model in data["models"].items() if key.startswith("cpu|")}
    alone = {**data, "models": models, "links": {}}
    alone["devices"] = {"cpu": {**data["devices"]["cpu"], "name": bad}}
    file = profile.Profile(alone).save(tmp_path / "cpu.json")
    found = page.page(str(file))
    assert "<script" not in found  # whatever a machine calls itself
    assert "&lt;script&gt;" in found
    opens = plain(found)
    assert "No GPU here: the fastest on the CPU matvec, A of n x n, float32 blas" in opens
    assert "where one would pay hetero report --profile h200 h200.html" in opens
    assert "convolve2d, n x n with a filter of 63 x 63, float32 direct to fft" in opens


# -- The command -----------------------------------------------------------------------------------


def test_the_command(tmp_path, capsys, monkeypatch, made):
    monkeypatch.setattr(page, "page", lambda named: made)
    file = tmp_path / "report.html"
    assert cli.main(["report", str(file), "--profile", "tesla-t10", "--json"]) == cli.DONE
    assert json.loads(capsys.readouterr().out) == {"file": str(file)}
    assert file.read_text("utf-8") == made
    for name in ("", "none/x.html"):
        assert cli.main(["report", str(tmp_path / name)]) == cli.FAILED
        assert str(tmp_path) in capsys.readouterr().err
    monkeypatch.undo()
    assert cli.main(["report", str(tmp_path / "x.html"), "--profile", "mars"]) == cli.USAGE
    assert "'tesla-t10'" in capsys.readouterr().err


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
