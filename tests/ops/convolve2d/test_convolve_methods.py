"""A method is its row: nothing in the operation's folder asks for its name."""

from __future__ import annotations

import ast
import copy
from pathlib import Path

import numpy as np
import pytest
import toys
from scipy import signal

import hetero
from hetero import profile, registry
from hetero.calibration.request import FULL
from hetero.errors import MethodNotAvailable
from hetero.ops.cases import Place
from hetero.ops.convolve2d import cases, methods, value_ranges, work
from hetero.ops.convolve2d.traits import Traits

FOLDER, ROWS = Path(methods.__file__).parent, Path(methods.__file__).name
FILTER = np.random.default_rng(1).random((9, 9))
# Of a method that pretends to transform.
TRAITS = Traits(spreads=True, transforms=True, form="surface", images=(32, 128, 512))
CONSTANTS = {"overhead": 1e-7, "flops_per_second": 1e16, "bytes_per_second": 1e16}


def excludes(problem, info):
    return toys.only_zeros_beyond(problem, info) or work.loses(problem, info)


@pytest.fixture
def taps():
    """A row, what it runs, and a constant as of a machine that was not calibrated."""
    data = copy.deepcopy(profile.shipped("conservative").data)
    model = {"form": "roofline", "constants": CONSTANTS}
    data["models"]["cpu|convolve2d|shifts|float64|*"] = model
    with toys.installed(operation=False, kind=False, excludes=excludes, traits=TRAITS):
        profile.set_current(profile.Profile(data))
        yield
    profile.set_current(None)


def image(spoil=0.5):
    found = np.random.default_rng(0).random((200, 210))
    found[100, 3] = spoil
    return found


@pytest.mark.parametrize("name", sorted(f.name for f in FOLDER.glob("*.py")))
def test_only_the_rows_name_methods(name):
    known = {row.method for row in registry.lookup("convolve2d")} - {"constant"}  # SciPy's word too
    nodes = ast.walk(ast.parse((FOLDER / name).read_text("utf-8")))
    found = [(n.lineno, n.value) for n in nodes if isinstance(n, ast.Constant) and n.value in known]
    assert bool(found) == (name == ROWS), f"{name} names methods: {found}"


def test_a_new_method_is_planned_and_runs(taps):
    """The values of an image are looked at, as the row says; the second call is remembered."""
    plan = hetero.plan("convolve2d", image(), FILTER, mode="same")
    assert (plan.chosen.device, plan.chosen.method) == ("cpu", "shifts")
    assert plan.chosen.terms[value_ranges.TERM] > 0.0
    for mode in ("same", "same", "full", "valid"):
        found = hetero.convolve2d(image(), FILTER, mode)
        np.testing.assert_allclose(found, signal.convolve2d(image(), FILTER, mode), rtol=1e-12)
        forced = hetero.convolve2d(image(), FILTER, mode, device="cpu", method="shifts")
        np.testing.assert_array_equal(found, forced)


@pytest.mark.parametrize("spoil", [1e20, np.nan])
def test_a_new_method_is_not_taken_for_values_that_its_row_loses(taps, spoil):
    expected = signal.convolve2d(image(spoil), FILTER)
    for _ in range(2):  # also after a call of that shape
        assert hetero.plan("convolve2d", image(), FILTER).chosen.method == "shifts"
        hetero.convolve2d(image(), FILTER)
        assert hetero.plan("convolve2d", image(spoil), FILTER).chosen.method != "shifts"
        found = hetero.convolve2d(image(spoil), FILTER)
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    if np.isnan(spoil):
        with pytest.raises(MethodNotAvailable, match="spread"):
            hetero.convolve2d(image(spoil), FILTER, method="shifts")


def test_a_new_method_is_calibrated_as_its_row_says(taps):
    place = Place("cpu", {"kind": "cpu", "cores": 2})
    found = [c for c in cases.cases(place, FULL) if c.implementation.method == "shifts"]
    assert [case.dtype for case in found] == ["float32", "float64"]
    for case in found:
        assert case.how.form == "surface"
        assert {size[0] for size in case.how.knots.values()} == {32, 128, 512}
