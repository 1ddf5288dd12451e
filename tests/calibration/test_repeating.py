"""Which samples calibration doubts and takes again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hetero.calibration.measure import repeating
from hetero.calibration.measure.workbench import Samples
from hetero.calibration.request import FULL
from hetero.ops.cases import Case, Place, SampleGrid, TimedSolves, grid
from hetero.profile import inventory
from hetero.registry import lookup

AXES = [[4, 16, 64, 256, 1024]] * 2
ROW = next(i for i in lookup("matvec") if i.kind == "cpu")
CASE = Case(ROW, "float32", "C", SampleGrid(), AXES)


def law(dims):
    return 3e-6 + 1e-9 * dims[0] * dims[1]


def quiet():
    return {dims: law(dims) for dims in grid(AXES)}


def settled(samples, monkeypatch, disturbed=lambda dims, look: False, truth=law, **options):
    """Samples after they were settled, and the order in which they were looked at."""
    now, looks, current = [0.0], [], [samples]

    def clock():
        now[0] += 1e-3
        return now[0]

    def again(number, dims):
        marked, seconds = set(current[0].marked), dict(current[0].seconds)
        for one in dims:
            looks.append(one)
            (set.add if disturbed(one, looks.count(one)) else set.discard)(marked, one)
            seconds[one] = min(seconds[one], truth(one))
        current[0] = replace(current[0], seconds=seconds, marked=frozenset(marked))
        return current[0]

    monkeypatch.setattr(repeating.time, "sleep", lambda seconds: None)
    here = Place("cpu", inventory.devices()["cpu"])
    given = {"budget": FULL, "seconds": 1000.0, **options}
    found = repeating.settle([(CASE, here, samples)], again, clock=clock, **given)
    return current[0], looks, found


@pytest.mark.parametrize("dims", [(4, 4), (64, 16), (1024, 4), (1024, 1024)])
def test_a_burst_is_mended_and_the_rest_left_alone(dims, monkeypatch):
    seconds = quiet()
    assert repeating.doubts(CASE, Samples(seconds)) == {}
    seconds[dims] *= 40.0
    samples, looks, found = settled(Samples(seconds), monkeypatch)
    assert samples.seconds == pytest.approx(quiet())
    assert looks == [dims]
    assert found == (len(seconds), 1, 0)


def test_what_is_seen_again_is_true(monkeypatch):
    """A method that is really slow at one size stays so."""

    def steep(dims):
        return law(dims) * (9.0 if dims == (64, 64) else 1.0)

    given = Samples({dims: steep(dims) for dims in grid(AXES)})
    samples, looks, found = settled(given, monkeypatch, truth=steep)
    assert samples.seconds[64, 64] == steep((64, 64))
    assert (looks, found.left) == ([(64, 64)], 0)


@pytest.mark.parametrize(("looks", "left"), [(3, 0), (99, 2)])
def test_marked_samples_are_taken_until_they_are_undisturbed(looks, left, monkeypatch):
    both = {(4, 4), (64, 64)}
    given = Samples(quiet(), marked=frozenset(both))
    samples, taken, found = settled(given, monkeypatch, lambda dims, look: look < looks)
    assert {taken.count(dims) for dims in both} == {min(looks, repeating._ROUNDS)}
    assert (len(samples.marked), found.left) == (left, left)


def test_a_solve_whose_times_tell_no_step_is_taken_again():
    row = next(i for i in lookup("cg") if (i.kind, i.method) == ("cpu", "blas"))
    case = Case(row, "float32", "dense", TimedSolves(8, 40), [[64, 256, 1024, 2048]])
    step = {(n,): 1e-9 * n * n for n in (64, 256, 1024, 2048)}
    timed = {dims: (8 * s, 40 * s) for dims, s in step.items()}
    steps = dict.fromkeys(step, (8.0, 40.0))
    samples = Samples(step, setup=dict.fromkeys(step, 1e-7), timed=timed, steps=steps)
    assert repeating.doubts(case, samples) == {}, "a dense matrix has the square of the unknowns"
    timed[256,] = timed[256,][1], 1.01 * timed[256,][1]
    assert set(repeating.doubts(case, samples)) == {(256,)}
    step[2048,] *= 20.0
    assert set(repeating.doubts(case, samples)) == {(256,), (2048,)}
