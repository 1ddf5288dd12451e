"""`hetero report`: the whole page, what is kept for it, and the command."""

from __future__ import annotations

import base64
import json
import re

import pytest

import hetero.ops  # noqa: F401  # registers them
from hetero import cli, profile, registry
from hetero.evaluation import report
from hetero.ladder import ladder


@pytest.fixture(scope="module")
def made():
    return report.page("tesla-t10")


def plain(html):
    """The page's text."""
    return " ".join(re.sub(r"<[^>]+>", " ", html[html.index("<h1>") :]).split())


def test_nothing_is_loaded_and_pictures_are_named(made):
    """No script, and all that is linked is a picture in the page itself."""
    assert not re.search(r"<(script|iframe|object|image)|@import|url\(", made)
    linked = re.findall(r'(?:href|src|data|action|style)="([^"]*)"', made)
    pictures = [one.removeprefix("data:image/svg+xml;base64,") for one in linked]
    assert all(base64.b64decode(one, validate=True).endswith(b"</svg>\n") for one in pictures)
    titles = re.findall(r'<img alt="([^"]*)"', made)
    assert titles == re.findall("<figcaption>([^<]*)</figcaption>", made)
    assert len(titles) == len(set(titles)) >= 5
    assert "prefers-color-scheme:dark" in made
    headings, known = re.findall("<h2>([^<]*)</h2>", made), profile.shipped("tesla-t10").dtypes()
    for operation in registry.operations():
        assert (operation.function in headings) == (operation.name in known)


def test_without_matplotlib_there_are_the_answers(made, monkeypatch):
    monkeypatch.setattr(report, "figure", lambda *size: None)
    found = report.page("tesla-t10")
    assert "<figure" not in found
    assert plain(found).partition("Profile")[0] == plain(made).partition("Profile")[0]
    assert "pip install matplotlib" in found
    assert "pip install matplotlib" not in made


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
    found = report.page(str(file))
    assert "<script" not in found  # whatever a machine calls itself
    assert "&lt;script&gt;" in found
    opens = plain(found)
    assert "No GPU here: the fastest on the CPU matvec, A of n x n, float32 blas" in opens
    assert "where one would pay hetero report --profile h200 h200.html" in opens
    assert "convolve2d, n x n with a filter of 63 x 63, float32 direct to fft" in opens


def test_the_command(tmp_path, capsys, monkeypatch, made):
    monkeypatch.setattr(report, "page", lambda named, ladders: made + "".join(ladders))
    monkeypatch.setattr(ladder, "ladder", lambda operation, progress: operation)
    monkeypatch.setattr(ladder, "text", lambda found: f"the ladder of {found}")
    file = tmp_path / "report.html"
    assert cli.main(["report", str(file), "--profile", "tesla-t10", "--json"]) == cli.DONE
    assert json.loads(capsys.readouterr().out) == {"file": str(file)}
    assert file.read_text("utf-8") == made
    assert cli.main(["report", str(file), "--ladder", "matmul"]) == cli.DONE
    assert file.read_text("utf-8").endswith("the ladder of matmul")
    for wrong in (["--profile", "h100"], ["--ladder", "nothing"]):
        assert cli.main(["report", str(file), "--ladder", "matmul", *wrong]) == cli.USAGE
    capsys.readouterr()
    monkeypatch.undo()
    assert cli.main(["report", str(tmp_path / "x.html"), "--profile", "mars"]) == cli.USAGE
    assert "'tesla-t10'" in capsys.readouterr().err


def test_rates_of_a_calibrated_machine():
    rates = "\n".join(report.rates(profile.named("h100")))
    assert re.search(r"cpu BLAS, float64: \d+ GFLOP/s \(2048 x 2048 x 2048\)", rates)
    for way in ("upload", "download"):
        line = rf"cuda:0 {way}, pinned: set-up .* us, 5\d\.\d GB/s; T_x = .* c0 = .* c1 = "
        assert re.search(line, rates)
