"""What is run before it is measured, and which of an operation's sizes are."""

from __future__ import annotations

import itertools

import pytest

from hetero.calibration import rehearsal
from hetero.calibration.budgets import FULL, QUICK
from hetero.calibration.rehearsal import Rehearsal, family
from hetero.runtime import registry
from hetero.runtime.cases import Case, Passes, Place, SampleGrid, TimedSolves, thinned

_SIZES = [2**8 * 4**i for i in range(9)]


@pytest.mark.parametrize("step", [1.0, 4.0, 8.0, 64.0, 1e9])
@pytest.mark.parametrize("sizes", [_SIZES, [3, 4, 5, 900], [7]])
def test_thinned_sizes_are_far_apart_and_have_both_ends(sizes, step):
    found = thinned(sizes, step)
    assert found == sorted({*found} & {*sizes})
    assert (found[0], found[-1]) == (sizes[0], sizes[-1])
    ratios = [b / a for a, b in itertools.pairwise(found)]
    assert all(ratio >= step for ratio in ratios[1:])
    assert not ratios or len(found) == 2 or ratios[0] >= step**0.5


def test_nothing_is_left_out_without_a_step():
    assert thinned(_SIZES, FULL.step) == _SIZES
    assert thinned(_SIZES, QUICK.solve_step) == [_SIZES[0], _SIZES[2], _SIZES[5], _SIZES[8]]


@pytest.fixture
def started(monkeypatch):
    """The commands of the processes that are begun, none of which runs."""
    commands = []

    class Process:
        def __init__(self, command, **_):
            if "rehearsal" in command[-1]:  # others may look for a compiler
                commands.append(command[-1])

        def wait(self):
            return 0

    monkeypatch.setattr(rehearsal.subprocess, "Popen", Process)
    return commands


def test_each_family_is_run_once_until_its_kernels_change(started, monkeypatch):
    row = next(i for i in registry.lookup("poisson") if i.kind == "cuda")
    place = Place("cuda:0", {"kind": "cuda", "name": "a card", "arch": "sm_90"})
    solves = TimedSolves(8, 40)
    cases = [
        *(Case(row, dtype, "2d", solves) for dtype in ("float32", "float64")),
        Case(row, "float32", "3d", solves),
        Case(row, "float32", "grid", SampleGrid()),
        Case(row, "float32", "listed", Passes("surface", {}, {}, 1.0), ahead="listed"),
    ]
    monkeypatch.setattr(rehearsal, "_sources", lambda: "these")
    Rehearsal(place, cases, quick=False).wait()
    names = [family(cases[0]), family(cases[2])]
    assert [name in command for name, command in zip(names, started, strict=True)] == [True, True]

    rehearsal.disk_cache.write(rehearsal._KIND, rehearsal._mark(place, names[0], False), b"")
    started.clear()
    Rehearsal(place, cases, quick=False)
    (command,) = started
    assert names[1] in command, "the other one's kernels are in the cache"

    started.clear()
    Rehearsal(place, cases, quick=True)
    assert len(started) == 2, "a quick calibration has other sizes"

    started.clear()
    monkeypatch.setattr(rehearsal, "_sources", lambda: "others")
    Rehearsal(place, cases, quick=False)
    assert len(started) == 2


def test_each_solve_is_run_once(monkeypatch):
    """Timing takes a dozen; a dozen processes would wait for one device all that time."""
    row = next(i for i in registry.lookup("poisson") if i.kind == "cuda")
    case = Case(row, "float32", "2d", TimedSolves(8, 40), [[256, 4096]])
    done = []
    monkeypatch.setattr(
        rehearsal.solving,
        "prepared",
        lambda case, dims, bench: lambda count: done.append((dims, count)),
    )
    rehearsal._do(case, None)
    assert len(done) == len(set(done)) == 4
    assert {dims for dims, _ in done} == {(256,), (4096,)}
