"""`hetero report`: the whole page, what is kept for it, and the command; without a browser."""

from __future__ import annotations

import itertools
import json
import re
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest
from kept_results import LADDER, VERIFIED

import hetero.ops  # noqa: F401  # registers them
from hetero import cli, profile, registry
from hetero.evaluation import ladder
from hetero.evaluation.page import answers, compared, last, page
from hetero.ops import benchmark, over_sizes
from hetero.ops.over_sizes import Axis, Line

VOID = {"meta", "link", "br"}
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
    data = profile.shipped("tesla-t10").data
    models = {key: model for key, model in data["models"].items() if "|matvec|" in key}
    return {**data, "models": models}


@pytest.fixture(scope="module")
def made():
    return page("tesla-t10")


@pytest.fixture(scope="module")
def outline(made):
    return Outline(made.html)


def test_nothing_is_loaded(made, outline):
    """No script, no address but of the page's own parts."""
    tags = {tag for tag, _ in outline.found}
    assert not tags & {"script", "img", "iframe", "object", "use", "image"}
    for _, given in outline.found:
        for name in LOADING & given.keys():
            assert not re.search(r"//|url\((?!#)", given[name] or ""), given
    assert "@import" not in made.html
    assert len(made.html) < 2_000_000


def test_pictures_can_be_read_out(made, outline):
    """Each has a title and a description of its own; names are unique, and links lead somewhere."""
    pictures = [given for tag, given in outline.found if given.get("role") == "img"]
    names = [given["id"] for _, given in outline.found if "id" in given]
    assert len(pictures) == made.pictures > 10
    assert len(names) == len(set(names))
    for given in pictures:
        assert set(given["aria-labelledby"].split()) <= set(names)
    titles = outline.text["title"][1:]
    assert len(titles) == len(set(titles)) == len(pictures)
    assert all(len(text) > 10 for text in outline.text["desc"])
    targets = {given["href"][1:] for tag, given in outline.found if tag == "a"}
    filled = re.findall(r"url\(#(\w+)\)", made.html)
    assert targets | set(filled) <= set(names)


def test_headings_skip_no_level(outline):
    levels = [int(tag[1]) for tag, _ in outline.found if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_every_operation_with_constants_has_a_section(outline):
    known = profile.shipped("tesla-t10").dtypes()
    expected = {o.function for o in registry.operations() if o.name in known}
    headings = set(outline.text["h2"])
    assert expected <= headings
    assert not {o.function for o in registry.operations() if o.name not in known} & headings


def test_names_from_a_profile_are_text(tmp_path):
    """Whatever a machine calls itself."""
    data = small()
    bad = '<script>alert("x")</script>'
    data["devices"] = {name: {**info, "name": bad} for name, info in data["devices"].items()}
    file = profile.Profile(data).save(tmp_path / "bad.json")
    found = page(str(file))
    assert "<script" not in found.html
    assert "&lt;script&gt;" in found.html


# -- What it opens with ----------------------------------------------------------------------------


def words(html):
    """The page's tiles as plain text."""
    tiles = html[html.index('<div class="tiles">') : html.index("<nav")]
    return " ".join(re.sub(r"<[^>]+>", " ", tiles).split())


def test_it_opens_with_where_a_gpu_pays(made):
    """With the crossovers that `hetero transfer` finds, and a command that takes this profile."""
    opens = words(made.html)
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
    key = "matmul, n x n by n x n, float32"
    kept[last.COMPARED] = {key: {"seconds": {"NumPy": [[16, 1e-6], [1024, 1.0]]}}}
    file = profile.Profile(alone).save(tmp_path / "cpu.json")
    last.file_of(file).write_text(json.dumps(kept), "utf-8")
    html = page(str(file)).html
    opens = words(html)
    assert "No GPU here: the fastest on the CPU matvec, A of n x n, float32 blas" in opens
    assert "40% in the mean of 4 random calls of a, b, measured; 200% at worst" in opens
    # (1.01^3 2)^(1/4)
    assert "1.198 geometric mean of 4 random calls of a, b; 9 at worst" in opens
    assert "where one would pay: hetero report --profile h200 h200.html" in opens
    assert re.search(r"NumPy, measured: [\d.]+ to [\d.]+ times as long", html)
    assert html.count(">NumPy</text>") == 1
    assert "A of n x n, float32: blas, cpu alone" in html  # a single line is a sentence


BAD = {
    "chosen_error": {"mean": 1.0, "p95": 1.0, "worst": 2.0},
    "chosen_over_best": {**VERIFIED["chosen_over_best"], "geometric_mean": 2.0, "worst": 9.0},
}


def test_what_comes_next(monkeypatch):
    """The first thing that is missing, or wrong."""
    good = profile.shipped("h100").data
    known = {"a": VERIFIED}

    def command(data, verified=known, is_compared=True):
        return answers.advice(profile.Profile(data), None, verified, is_compared)[0]

    monkeypatch.setattr(answers.loops, "is_ready", lambda name: True)
    assert command(profile.shipped("conservative").data) == "hetero calibrate"
    assert command({**good, "load": {**good["load"], "left": 5000}}) == "hetero calibrate"
    key = next(key for key in good["models"] if "|matvec|" in key)
    off = {**good["models"][key], "residuals": {"mean": 2.0, "p95": 2.0, "worst": 2.0}}
    wrong = {**good, "models": {**good["models"], key: off}}
    assert command(wrong) == "hetero calibrate --only matvec"
    key = next(key for key in good["models"] if "|poisson|" in key)
    wrong = {**good, "models": {**good["models"], key: off}}
    assert command(wrong) == "hetero calibrate --only solve_poisson", "the function's name"
    assert command(good, {"a": {**VERIFIED, "problems": 10**12}}) == command(good)
    assert command(good, {}) == "hetero verify"
    assert command(good, {"a": {**VERIFIED, **BAD}}) == "hetero calibrate"
    assert command(good, known, False) == "hetero report --compare report.html"
    assert command(good) == "python -m hetero.accel script.py"
    monkeypatch.setattr(answers.loops, "is_ready", lambda name: False)
    assert command(good) == "hetero compile"


def test_other_libraries_are_measured_on_every_line(tmp_path, monkeypatch):
    """The faster of a library's functions; one that is slow is not called at larger sizes."""
    monkeypatch.setenv("HETERO_PROFILE", str(tmp_path / "here.json"))
    line = Line("n x n", Axis("n", 4, 64), lambda n: (n, n))
    monkeypatch.setattr(compared.over_sizes, "lines", lambda operation: (line,))
    monkeypatch.setattr(compared, "DEVICE_DTYPES", ("float32",))
    monkeypatch.setattr(compared.registry, "operations", lambda: (registry.operation("matvec"),))
    called = []

    def peers(dims, dtype):
        def slow(turn):
            called.append(dims[0])
            time.sleep(0.06)

        return {"SciPy slow": slow, "SciPy fast": lambda turn: None, "Other": lambda turn: None}

    monkeypatch.setattr(compared.benchmark, "of", lambda operation, name, default=None: peers)
    compared.compare()
    (kept,) = last.read(tmp_path / "here.json")[last.COMPARED].values()
    assert [size for size, _ in kept["seconds"]["SciPy"]] == [4, 16, 64]
    assert max(seconds for _, seconds in kept["seconds"]["SciPy"]) < 0.01
    assert kept["seconds"].keys() == {"SciPy", "Other"}
    assert set(called) == {4}


@pytest.mark.parametrize("operation", ["matvec", "matmul", "convolve2d", "cg", "poisson", "kmeans"])
def test_every_operation_has_others_for_its_first_line(operation):
    """Whose calls run, on the smallest of its problems."""
    one = registry.operation(operation)
    line = over_sizes.lines(one)[0]
    calls = benchmark.of(one, "peers")(line.dims(line.axis.least), "float64")
    assert calls
    for call in calls.values():
        call(0)


# -- What is kept, and the command -----------------------------------------------------------------


def test_the_last_verification_is_kept_beside_the_profile(tmp_path, monkeypatch):
    file = profile.Profile(small()).save(tmp_path / "here.json")
    monkeypatch.setenv("HETERO_PROFILE", str(file))
    assert last.read(file) == {}
    last.keep(last.VERIFY, "matmul, on host", {"problems": 1})
    last.keep(last.VERIFY, "matmul, on host", VERIFIED)
    last.keep("other", "x", {})
    last.keep(last.LADDER, "matmul", LADDER)
    assert last.read(file)[last.VERIFY]["matmul, on host"]["problems"] == 3
    assert profile.read(file).name == "tesla-t10"  # which is as it was
    found = page(str(file)).html
    assert "geometric mean 1.010" in found
    assert "matmul float32 on cuda:0" in found
    assert "1.30x a &lt; b" in found
    assert "Left out: cuda:1: broken" in found


@pytest.mark.parametrize("content", [b"", b"[]", b'{"verify": 1}', b"\xff"])
def test_what_is_kept_and_cannot_be_read_is_nothing(tmp_path, content):
    (tmp_path / "p.json.latest").write_bytes(content)
    assert last.read(tmp_path / "p.json") == {}


@pytest.mark.parametrize(
    "seconds", [[1], {"Else": [], "a<b": [[64, 1e-4]], "Odd": [[1e400, 1.0], [64, -1.0]]}]
)
def test_what_is_kept_in_another_form_is_said(seconds, tmp_path):
    file = profile.Profile(small()).save(tmp_path / "p.json")
    other = {last.VERIFY: {"x": {"problems": 3}}, last.LADDER: {"x": {"rows": [1]}}}
    other[last.COMPARED] = {"matvec, A of n x n, float32": {"seconds": seconds}}
    last.file_of(file).write_text(json.dumps(other), "utf-8")
    html = page(str(file)).html
    assert html.count("of another form") == 2
    assert not any(name in html for name in ("Odd", "Else"))
    assert ("a&lt;b, measured" in html) == isinstance(seconds, dict)


def test_what_cannot_be_kept_is_not(tmp_path, monkeypatch):
    monkeypatch.setenv("HETERO_PROFILE", str(tmp_path))  # a folder
    last.keep(last.VERIFY, "x", {})
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def quick(monkeypatch, made):
    """A page that was made before."""
    import hetero.evaluation.page as module

    monkeypatch.setattr(module, "page", lambda named, progress: made)


def test_the_command(tmp_path, capsys, quick):
    file = tmp_path / "report.html"
    assert cli.main(["report", str(file), "--profile", "tesla-t10", "--json"]) == cli.DONE
    told = json.loads(capsys.readouterr().out)
    assert told["profile"] == "tesla-t10"
    assert file.read_text("utf-8").count('role="img"') == told["pictures"]
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
    assert cli.main(["report", file, "--compare", "--profile", "h100"]) == cli.USAGE
    assert "--compare measures this machine" in capsys.readouterr().err
    assert cli.main(["report", file, "--ladder", "matmul", "--ladder", "nothing"]) == cli.USAGE
    assert "'convolve2d'" in capsys.readouterr().err


def test_a_profile_that_is_not_there(tmp_path, capsys):
    assert cli.main(["report", str(tmp_path / "x.html"), "--profile", "mars"]) == cli.USAGE
    assert "'tesla-t10'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "none/x.html"])
def test_a_file_that_cannot_be_written(tmp_path, capsys, name):
    assert cli.main(["report", str(Path(tmp_path, name))]) == cli.FAILED
    assert str(tmp_path) in capsys.readouterr().err
