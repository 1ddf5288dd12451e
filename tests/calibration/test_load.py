"""What counts as other load, by figures of a system that is made up."""

from __future__ import annotations

import pytest

from hetero.calibration import repeat as timing
from hetero.profile.constants import is_trusted

CORES, SECONDS, SAMPLES = 16, 10.0, 400


@pytest.fixture
def seen(monkeypatch):
    """The load of a calibration that itself kept two cores busy; arguments are numbers of cores."""
    monkeypatch.setattr(timing.os, "cpu_count", lambda: CORES)

    def seen(others, left=0):
        before = timing.Reading(5.0, 100.0, 3.0)
        after = timing.Reading(5.0 + SECONDS, 100.0 + (2.0 + others) * SECONDS, 3.0 + 2.0 * SECONDS)
        return timing.load(before, after, SAMPLES, 3, left)

    return seen


@pytest.mark.parametrize(
    ("others", "left", "loaded", "trusted"),
    [(0.5, 3, False, True), (2.5, 3, True, True), (9.0, 3, True, False), (0.0, 41, True, False)],
)
def test_by_how_much_other_load_takes_and_how_many_samples_it_spoiled(
    others, left, loaded, trusted, seen, warnings_of
):
    found = seen(others, left)
    timing.warn_if_loaded(found)
    assert (bool(warnings_of()), is_trusted(found)) == (loaded, trusted)
    assert found["others"] == pytest.approx(others)
    assert f"kept {others:.1f} of 16 cores busy" in timing.described(found)
    assert found["left"] in (left, SAMPLES)


def test_where_the_system_does_not_report_it_samples_alone_count(warnings_of):
    before = timing.Reading(0.0, None, 0.0)
    found = timing.load(before, timing.Reading(9.0, None, 1.0), SAMPLES, 0, 0)
    assert found["others"] is None
    timing.warn_if_loaded(found)
    assert not warnings_of()
    assert "cores" not in timing.described(found)
