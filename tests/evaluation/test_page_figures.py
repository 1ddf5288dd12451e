"""The figures of `hetero report`: curves, samples and choices, and where they are drawn."""

from __future__ import annotations

import itertools
import re

import pytest
from kept_results import LADDER

import hetero.ops  # noqa: F401  # registers them
from hetero import profile, registry
from hetero.calling.planner import OtherMachine
from hetero.evaluation.page import (
    charts,
    choices,
    drawing,
    figures,
    last,
    links,
    machine,
    markup,
    methods,
)
from hetero.evaluation.page.figures import fastest
from hetero.ops import over_sizes
from hetero.registry.models import bind, bind_link

# -- Curves ----------------------------------------------------------------------------------------


def a_line(operation):
    return over_sizes.lines(registry.operation(operation))[0]


def sampled(form):
    """A profile of the CPU with a model that was measured on a coarse grid."""
    if form == "surface":
        axis = [16, 64, 256, 1024, 4096]
        seconds = [1e-6 + 1e-9 * a * b for a in axis for b in axis]
        constants = {"overhead": 1e-6, "axes": [axis, axis], "seconds": seconds}
        held = [[[128, 128], 5e-5], [[128, 256], 1.0]]
        samples = {"held_out": held, "extrapolated": [[4096, 4096]]}
        key, operation = "cpu|matvec|blas|float32|C", "matvec"
    elif form == "filter":
        axis, taps = [20800, 290 * 320], [9, 100]  # results of 130 x 160 and of 290 x 320 points
        constants = {"overhead": 1e-6, "axes": [axis, taps], "block": 32}
        constants["seconds"] = [1e-9 * points * k for points in axis for k in taps]
        samples = {"held_out": [], "extrapolated": []}
        key, operation = "cpu|convolve2d|direct|float32|*", "convolve2d"
    else:
        axis = [256, 4096, 65536]
        parts = {"axes": [axis], "seconds": [1e-9 * n for n in axis]}
        constants = {"setup": parts, "step": parts}
        samples = {"steps": [8, 40]}
        key, operation = "cpu|poisson|jacobi|float32|2d", "poisson"
    model = {"form": form, "constants": constants, "samples": samples}
    data = {**profile.shipped("tesla-t10").data, "models": {key: model}}
    return profile.Profile(data), registry.operation(operation), model


@pytest.mark.parametrize("form", ["surface", "solve", "filter"])
def test_samples_lie_where_they_were_measured(form):
    """Fitted ones on the curve, at the knots of the line's problems; what was not measured is
    not shown."""
    constants, operation, model = sampled(form)
    line = a_line(operation.name)
    (curve,) = methods.alone(operation, line, "float32", constants, constants.devices)
    points = dict(curve.points)
    expected = {"surface": [16, 64, 256, 1024], "solve": [16, 64, 256], "filter": [128, 288]}
    assert [n for n, _ in curve.fitted] == pytest.approx(expected[form], rel=0.01)
    for size, seconds in curve.fitted:
        if round(size) in points:
            assert seconds == pytest.approx(points[round(size)], rel=1e-6)
    assert [n for n, _ in curve.held_out] == pytest.approx([128] * (form == "surface"))
    assert all(seconds == 5e-5 for _, seconds in curve.held_out)
    info = constants.devices["cpu"]
    (row,) = [r for r in registry.lookup(operation.name) if r.method == curve.method][:1]
    problem = operation.from_dims(line.dims(1024), "float32", "host")
    assert points[1024] == pytest.approx(sum(bind(model)(row.work(problem, info))))


def test_a_profile_without_samples_has_lines_alone():
    constants = profile.shipped("h100")
    operation = registry.operation("matmul")
    found = methods.alone(operation, a_line("matmul"), "float32", constants, constants.machine())
    assert {one.device for one in found} == {"cpu", "cuda:0"}
    assert not any(one.fitted or one.held_out for one in found)
    assert all(one.error["mean"] > 0 for one in found)


def test_calls_from_the_host_are_priced_as_plans_are():
    constants = profile.shipped("tesla-t10")
    operation, line = registry.operation("matmul"), a_line("matmul")
    machine = OtherMachine(constants, constants.machine())
    found = methods.from_host(operation, line, "float32", machine)
    at = {one.name: one.at(1024) for one in found}
    plan = machine.plan(operation.from_dims((1024,) * 3, "float32", "host"))
    assert at[f"{plan.chosen.method}, {plan.chosen.device}"] == plan.seconds
    assert plan.seconds == min(seconds for seconds in at.values() if seconds is not None)


def test_what_is_fastest_turns_where_it_is_clear():
    """Within a tenth the choice stays; a turn is from where on the other one stays faster."""
    axis = over_sizes.Axis("n", 16, 64)
    a = methods.Curve("cpu", "a", [(16, 1.0), (32, 1.0), (64, 1.0)], priced=lambda n: 1.0)
    b = methods.Curve("gpu", "b", [(16, 2.0), (32, 0.97), (64, 0.5)], priced=lambda n: 31.5 / n)
    assert fastest([a, b], axis) == "Fastest: a, cpu, then b, gpu from n = 32."
    b = b._replace(points=[(16, 2.0), (32, 0.97), (64, 0.92)])
    assert fastest([a, b], axis) == "Fastest throughout: a, cpu."
    b = b._replace(points=[(16, 2.0), (32, 1.03), (64, 0.5)], priced=lambda n: 40.5 / n)
    assert fastest([a, b], axis) == "Fastest: a, cpu, then b, gpu from n = 41."
    a, b = a._replace(priced=None), b._replace(priced=None)
    assert fastest([a, b], axis) == "Fastest: a, cpu, then b, gpu from n = 64."
    assert fastest([a], axis) == "Fastest throughout: a, cpu."
    saw = [(n, 0.5 if n % 3 else 2.0) for n in range(16, 25)]
    a, b = a._replace(points=[(n, 1.0) for n, _ in saw]), b._replace(points=saw)
    assert fastest([a, b], axis) == "Fastest: b, gpu or a, cpu; which one changes 5 times."
    assert fastest([a, b], axis, short=True) == "b or a"


# -- Links -----------------------------------------------------------------------------------------


def test_links_have_their_samples_and_rates():
    model = {
        "form": "segments",
        "constants": [
            {"below": None, "bytes_per_second": 1e9, "seconds_per_byte": 0.0, "seconds": 1e-5}
        ],
    }
    quiet = {**model, "samples": {"bytes": [1024.0, 1048576.0], "seconds": [1e-5, 1e-3]}}
    busy = {**model, "samples": {"bytes": [1024], "times": [2.0]}}  # twice as long as quiet
    kinds = {"pinned": quiet, "staged": busy, "pageable": model}
    both = {"cuda:0": {"upload": kinds}, "cuda*2": {"upload": {"pinned": busy}}}
    data = {**profile.shipped("tesla-t10").data, "links": both}
    link, together = links.links(profile.Profile(data))
    pinned, beside, pageable = link.curves
    assert pinned.samples == [(1024.0, 1024.0 / 1e-5), (1048576.0, 1048576.0 / 1e-3)]
    assert {pinned.points[0][0], pinned.points[-1][0]} == {1024, 1048576}
    alone = bind_link(model)(1024)
    assert beside.samples == together.curves[0].samples == [(1024, 1024 / (2 * alone))]
    assert pageable.samples == []
    assert pageable.floor == bind_link(model)(1)
    assert pageable.rate == 2**28 / bind_link(model)(2**28)
    assert pageable.points[-1][0] == 2**30
    nbytes, rate = pinned.points[3]
    assert rate == pytest.approx(nbytes / bind_link(model)(nbytes))
    figure, other = links.section([link, together])
    assert "each of 2 cuda at once" in other
    assert figure.count('class="c0 full"') == 2
    assert figure.count('class="c1 full"') == 1


# -- Maps ------------------------------------------------------------------------------------------


def test_a_map_is_what_plans_choose():
    constants = profile.shipped("tesla-t10")
    operation = registry.operation("matvec")
    (plane,) = over_sizes.planes(operation)
    plane = plane._replace(x=plane.x._replace(most=16384), y=plane.y._replace(least=8192))
    machine = OtherMachine(constants, constants.machine())
    found = choices.choices(operation, plane, "float32", machine)
    assert (found.xs[0], found.xs[-1]) == (16, 16384)
    for row, column in ((0, 0), (1, 5), (-1, -1)):
        dims = plane.dims(found.xs[column], found.ys[row])
        chosen = machine.plan(operation.from_dims(dims, "float32", "host")).chosen
        assert found.cells[row][column] == f"{chosen.method}, {chosen.device}"
    assert sum(found.counts().values()) == len(found.xs) * len(found.ys)
    times = []
    for x, y in itertools.product(found.xs, found.ys):
        plan = machine.plan(operation.from_dims(plane.dims(x, y), "float32", "host"))
        on_cpu = next(c.seconds for c in plan.candidates if c.device == "cpu")
        times.append(on_cpu / plan.seconds)
    assert found.gain == max(times) > 1.0
    unknown = choices.choices(operation, plane, "float64", machine)
    assert set(unknown.counts()) == {choices.NONE}


def test_a_map_has_no_turns_between_methods_that_are_alike():
    """Another choice than the plan's is a neighbour's, and within a tenth of it."""
    constants = profile.shipped("h200")
    operation = registry.operation("matmul")
    plane = over_sizes.planes(operation)[1]
    plane = plane._replace(x=plane.x._replace(least=512), y=plane.y._replace(least=256, most=1024))
    machine = OtherMachine(constants, constants.machine())
    drawn = choices.choices(operation, plane, "float32", machine)
    others = 0
    for (row, y), (column, x) in itertools.product(enumerate(drawn.ys), enumerate(drawn.xs)):
        plan = machine.plan(operation.from_dims(plane.dims(x, y), "float32", "host"))
        at = {f"{c.method}, {c.device}": c.seconds for c in plan.candidates if c.reason is None}
        name, best = drawn.cells[row][column], min(at, key=at.get)
        assert at[name] <= 1.1 * at[best]
        if name != best:
            others += 1
            near = [drawn.cells[row][column - 1] if column else None]
            near += [drawn.cells[row - 1][column]] if row else []
            assert name in near
    assert others


def test_sizes_of_an_operation_that_names_none(monkeypatch):
    """All extents are equal; sizes go up by a quarter of the last doubling, to the very end."""
    operation = registry.operation("matmul")
    monkeypatch.setattr(over_sizes.benchmark, "of", lambda operation, name, default=None: default)
    (line,) = over_sizes.lines(operation)
    assert line.dims(20) == (20, 20, 20)
    assert line.axis.sizes()[:6] == [16, 20, 24, 28, 32, 40]
    assert line.axis.sizes()[-2:] == [3584, 4096]
    assert over_sizes.Axis("f", 1, 5).sizes(2) == [1, 2, 3, 4, 5]
    assert over_sizes.planes(operation) == ()


def test_turns_of_a_row():
    found = choices.Choices([1, 2, 4, 8], [1], [["a", "a", "b", "a"]], 1.0)
    assert found.turns(0) == [("a", 1), ("b", 4), ("a", 8)]


def test_every_region_with_room_is_named():
    """Two regions of one choice both are; in a single small cell its number stands, or nothing."""
    cells = [["a" if column < 4 or column > 15 else "b" for column in range(20)] for _ in range(20)]
    cells[0][10] = "c"
    sizes = list(range(1, 21)), list(range(1, 21))
    numbers = {"a": 0, "b": 1, "c": 2}
    drawn = charts.regions("title", "told", ("x", "y"), sizes, cells, numbers)
    assert drawn.count('class="region"') == 3
    texts = re.findall(r'<text[^>]*class="on"[^>]*>([^<]*)<', drawn)
    assert sorted(texts) == ["1 a", "1 a", "2 b", "3"]


# -- Drawing ---------------------------------------------------------------------------------------


def test_points_lie_where_the_grid_says():
    """A line through ticks of both axes meets their grid lines, and its samples lie there; its name
    stands beside its end."""
    points = [(16.0, 1e-3), (64.0, 1e-2), (256.0, 1e-1)]
    labels = charts.Labels("n", "seconds", drawing.whole, drawing.seconds)
    given = [charts.Drawn("one", points, 3, points[:1], points[1:], True)]
    drawn = charts.lines("title", "told", labels, given)
    columns = {float(x) for x in re.findall(r'd="M([\d.]+) [\d.]+V', drawn)}
    across = {float(y) for y in re.findall(r'd="M[\d.]+ ([\d.]+)H', drawn)}
    path = re.search(r'd="M([^"]*)" class="c3 line thick"', drawn)[1]
    corners = [tuple(map(float, corner.split())) for corner in path.split("L")]
    assert {x for x, _ in corners} <= columns
    assert {y for _, y in corners} <= across
    assert corners == sorted(corners)
    assert [y for _, y in corners] == sorted((y for _, y in corners), reverse=True)
    marked = re.findall(r'class="c3 (full|hollow)"', drawn)
    places = re.findall(r"translate\(([\d.]+) ([\d.]+)\)", drawn)
    assert [(float(x), float(y)) for x, y in places] == corners
    assert marked == ["full", "hollow", "hollow"]
    name = re.search(r'<text x="([\d.]+)" y="([\d.]+)">one<', drawn)
    assert 0 < float(name[1]) - corners[-1][0] < 20
    assert abs(float(name[2]) - corners[-1][1]) < drawing.FONT
    texts = re.findall(r"<text[^>]*>([^<]*)<", drawn)
    assert {"16", "64", "256", "1 ms", "10 ms", "100 ms", "n", "seconds"} <= set(texts)


def test_regions_fill_their_square_and_are_bordered():
    cells = [["a", "a", "b"], ["a", "b", "b"], ["b", "b", "b"]]
    sizes = [1, 2, 4], [1, 2, 4]
    given = "title", "told", ("x", "y"), sizes, cells, {"a": 0, "b": 1}
    drawn = charts.regions(*given)
    paths = re.findall(r'd="([^"]*)" fill="url\(#hatch(\d)\)"', drawn)
    wide = {
        number: sum(float(w) for w in re.findall(r"h([\d.]+)v", path)) for path, number in paths
    }
    assert wide["1"] == pytest.approx(2 * wide["0"])  # six cells and three
    assert wide["0"] + wide["1"] == pytest.approx(3 * 300.0)
    border = re.search(r'd="([^"]*)" class="border"', drawn)[1]
    assert border.count("M") == 1 + 4  # around all, and four sides between a and b
    texts = re.findall(r"<text[^>]*>([^<]*)<", drawn)
    assert {"x", "y", "1", "2", "4", "1 a", "2 b"} <= set(texts)


def test_a_machine_that_is_not_calibrated_says_so():
    conservative, measured = profile.shipped("conservative"), profile.shipped("h100")
    assert "not calibrated" in machine.trust(conservative, True)
    assert "not calibrated" not in machine.trust(conservative, False)
    assert "not calibrated" not in machine.trust(measured, True)
    data = {**measured.data, "load": {**measured.data["load"], "left": 5000}}
    assert 'class="warn"' in machine.trust(profile.Profile(data), False)
    assert 'class="warn">While' not in machine.trust(measured, False)


@pytest.mark.parametrize("places", [[5.0], [5.0, 5.0, 5.0], [100.0, 99.0, 0.0, 1.0], [50.0] * 8])
def test_labels_are_apart_and_in_order(places):
    found = charts.spread(places, 0.0, 100.0)
    assert all(0.0 <= place <= 100.0 + 1e-9 for place in found)
    ordered = [found[i] for i in sorted(range(len(places)), key=lambda i: places[i])]
    assert all(b - a >= drawing.FONT - 1e-9 for a, b in itertools.pairwise(ordered))


def test_a_line_needs_points():
    labels = charts.Labels("x", "y", drawing.whole, drawing.seconds)
    with pytest.raises(ValueError, match="no line"):
        charts.lines("title", "told", labels, [])
    one = charts.Drawn("one", [(1.0, 1.0), (2.0, 1.0)], 0)  # all alike
    assert "<path" in charts.lines("title", "told", labels, [one])


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (drawing.whole, 4096, "4096"),
        (drawing.whole, 16384, "16k"),
        (drawing.whole, 1 << 20, "1M"),
        (drawing.in_bytes, 65536, "64 KiB"),
        (drawing.in_bytes, 100, "100 B"),
        (drawing.rate, 5.5e10, "55 GB/s"),
        (drawing.rate, 4.19e12, "4.19 TB/s"),
        (drawing.seconds, 2e-6, "2 us"),
        (drawing.seconds, 1234.0, "1234 s"),
        (drawing.seconds, 1e4, "1e4 s"),
        (drawing.seconds, 3.54e5, "3.5e5 s"),
    ],
)
def test_how_values_are_written(write, value, text):
    assert write(value) == text


def test_ticks_lie_between_the_ends():
    assert drawing.decades(2e-6, 0.3) == pytest.approx([1e-5, 1e-4, 1e-3, 1e-2, 1e-1])
    assert drawing.decades(4.0, 50.0) == pytest.approx([5, 10, 20, 50])
    assert drawing.doublings(16, 4096, 5) == [16, 64, 256, 1024, 4096]


def test_facts_and_tables_escape():
    assert "<b>" not in markup.facts({"<b>": ["<b>"], "x": {"<b>": "<b>"}})
    assert "<b>" not in markup.table("<b>", ["<b>"], [("<b>", "<b>")])


def test_errors_have_a_mark_for_each_model():
    """Those of one method on one device in a row; links have none."""
    constants = profile.shipped("h100")
    operation = registry.operation("matvec")
    known = [key for key in constants.residuals() if "|matvec|" in key]
    (drawn,) = figures.of_errors(operation, constants, drawing.Numbers())
    assert drawn.count(' full"') == drawn.count(' hollow"') == len(known)
    places = {(key.split("|")[0], key.split("|")[2]) for key in known}
    texts = re.findall(r"<text[^>]*>([^<]*)<", drawn)
    assert {f"{method}, {place}" for place, method in places} <= set(texts)
    unknown = registry.operation("poisson")
    assert figures.of_errors(unknown, constants, drawing.Numbers()) == []
    with pytest.raises(ValueError, match="no row"):
        charts.rows("title", "told", "x", drawing.whole, [])


def test_a_ladder_shows_what_is_reached_and_the_roof():
    drawn = last.ladders({"matmul": LADDER})
    assert drawn.count("<svg ") == 1  # nothing was timed at the other size
    texts = re.findall(r"<text[^>]*>([^<]*)<", drawn)
    assert {"1 naive", "2 shared", "1 ms", "100 us"} <= set(texts)
    at = [float(x) for x in re.findall(r"translate\(([\d.]+)[^>]*hollow", drawn)]
    full = [float(x) for x in re.findall(r"translate\(([\d.]+)[^>]*full", drawn)]
    assert len(at) == len(full) == 2
    assert full[0] < full[1] < at[1] < at[0]  # 1 and 10 below 40 and 1000 GFLOP/s
    assert "library is left out: it is not here." in drawn
    assert "<td>100 us</td><td>10</td><td>10</td><td>25%</td>" in drawn
    assert '<th scope="col">GFLOP/s</th>' in drawn
    slow = {**LADDER["roof"], "bytes_per_second": 1e8}  # moving is what takes the time
    drawn_by_bytes = last.ladders({"matmul": {**LADDER, "roof": slow}})
    assert "<td>100 us</td><td>0.1</td>" in drawn_by_bytes
    assert '<th scope="col">GB/s</th>' in drawn_by_bytes
    assert "A &lt;card&gt;" in drawn
    assert "a &lt; b" in drawn
