"""A method is its row: nothing in the operation's folder asks for its name."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
import toy_method
from scipy import signal
from toy_method import METHOD, image

import hetero
from hetero import registry
from hetero.calibration.request import FULL
from hetero.errors import MethodNotAvailable
from hetero.ops import convolve2d as _  # noqa: F401
from hetero.ops.cases import Place
from hetero.ops.convolve2d import cases, methods, value_ranges

FILTER = np.random.default_rng(1).random((9, 9))


@pytest.fixture
def toy():
    with toy_method.installed():
        yield


def names_in(text):
    """The strings of a module that are methods' names, with their lines."""
    known = {row.method for row in registry.lookup("convolve2d")}
    nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
    return [(node.lineno, node.value) for node in nodes if node.value in known]


FOLDER = Path(methods.__file__).parent


@pytest.mark.parametrize("name", sorted(f.name for f in FOLDER.glob("*.py")))
def test_only_the_rows_name_methods(name):
    found = names_in((FOLDER / name).read_text("utf-8"))
    assert bool(found) == (name == Path(methods.__file__).name), found


def test_a_new_method_is_planned_and_runs(toy):
    """Where nothing was calibrated, by its constant; the second call is the remembered one."""
    a = image((200, 210))
    plan = hetero.plan("convolve2d", a, FILTER, mode="same")
    assert (plan.chosen.device, plan.chosen.method) == ("cpu", METHOD)
    assert plan.chosen.terms[value_ranges.TERM] > 0.0, "values are looked at, as the row says"
    for mode in ("same", "same", "full", "valid"):
        found = hetero.convolve2d(a, FILTER, mode)
        np.testing.assert_array_equal(found, signal.fftconvolve(a, FILTER, mode))


@pytest.mark.parametrize("spoil", [1e20, np.nan])
def test_a_new_method_keeps_what_its_row_promises(toy, spoil):
    """Of values that a transform loses or spreads, also after a call of that shape."""
    good, bad = image((200, 210)), image((200, 210), spoil)
    assert hetero.plan("convolve2d", good, FILTER).chosen.method == METHOD
    assert hetero.plan("convolve2d", bad, FILTER).chosen.method != METHOD
    expected = signal.convolve2d(bad, FILTER)
    for _turn in range(2):
        hetero.convolve2d(good, FILTER)
        np.testing.assert_allclose(hetero.convolve2d(bad, FILTER), expected, rtol=1e-12)


def test_a_new_method_by_its_name(toy):
    a = image((40, 50))
    found = hetero.convolve2d(a, FILTER, method=METHOD)
    np.testing.assert_array_equal(found, signal.fftconvolve(a, FILTER))
    with pytest.raises(MethodNotAvailable, match="spread these values"):
        hetero.convolve2d(image((40, 50), np.inf), FILTER, method=METHOD)


def test_a_new_method_is_calibrated_as_its_row_says(toy):
    place = Place("cpu", {"kind": "cpu", "cores": 2})
    found = [c for c in cases.cases(place, FULL) if c.implementation.method == METHOD]
    assert [case.dtype for case in found] == ["float32", "float64"]
    for case in found:
        assert case.how.form == "surface"
        assert {size[0] for size in case.how.knots.values()} == {32, 128, 512}
