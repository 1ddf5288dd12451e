"""Which samples calibration doubts, takes again and keeps out."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from hetero import registry
from hetero.arrays import spec
from hetero.calibration import modelling
from hetero.calibration.measure import loop, outliers, repeating, solving
from hetero.calibration.measure.workbench import Samples
from hetero.calibration.request import FULL, QUICK
from hetero.ops.cases import Case, Place, SampleGrid, TimedSolves, grid
from hetero.ops.products.cases import product
from hetero.profile import inventory
from hetero.registry import lookup

AXES = [[4, 16, 64, 256, 1024]] * 2
ROW = next(i for i in lookup("matvec") if i.kind == "cpu")


def law(dims):
    return 3e-6 + 1e-9 * dims[0] * dims[1]


def quiet():
    return {dims: law(dims) for dims in grid(AXES)}


def place():
    return Place("cpu", inventory.devices()["cpu"])


def case(**options):
    return Case(
        ROW,
        "float32",
        "C",
        SampleGrid(**options),
        AXES,
        lambda *dims: product("matvec", dims, "host"),
    )


# -- What is doubted -------------------------------------------------------------------------------


def test_a_law_is_not_doubted():
    assert outliers.doubtful(quiet()) == {}


@pytest.mark.parametrize("dims", grid(AXES))
def test_a_spike_is_doubted_wherever_it_is(dims):
    seconds = quiet()
    seconds[dims] *= 400.0
    doubtful = outliers.doubtful(seconds)
    assert max(doubtful, key=doubtful.get) == dims


def test_what_is_less_than_a_smaller_one_takes_puts_both_in_doubt():
    step = {(n,): float(n) for n in (16, 256, 2048)}
    assert outliers.decreasing(step) == {}
    step[2048,] = 100.0
    assert set(outliers.decreasing(step)) == {(256,), (2048,)}


# -- What is taken again ---------------------------------------------------------------------------


class Clock:
    now = 0.0

    def __call__(self):
        self.now += 1e-3
        return self.now


def settled(samples, truth, monkeypatch, disturbed=lambda dims, look: False):
    """Samples after they were settled, and how often each was looked at."""
    looks = {}
    monkeypatch.setattr(repeating.time, "sleep", lambda seconds: None)
    current = [samples]

    def again(number, dims):
        marked = set(current[0].marked)
        seconds = dict(current[0].seconds)
        for one in dims:
            looks[one] = looks.get(one, 0) + 1
            if disturbed(one, looks[one]):
                marked.add(one)
            else:
                marked.discard(one)
                seconds[one] = min(seconds.get(one, 1e9), truth(one))
        current[0] = replace(current[0], seconds=seconds, marked=frozenset(marked))
        return current[0]

    repeating.settle([(case(), place(), samples)], again, FULL, 1000.0, clock=Clock())
    return current[0], looks


def test_a_burst_is_mended_and_the_rest_left_alone(monkeypatch):
    seconds = quiet()
    burst = [(16, 64), (64, 16), (4, 256), (256, 4), (16, 256)]
    for dims in burst:
        seconds[dims] *= 40.0
    found, looks = settled(Samples(seconds), law, monkeypatch)
    assert found.seconds == pytest.approx(quiet())
    assert set(burst) <= set(looks)
    assert sum(looks.values()) <= 12


def test_what_is_seen_again_is_true(monkeypatch):
    """A method that is really slow at one size stays so: it is asked once or twice more."""

    def steep(dims):
        return law(dims) * (3.0 if dims == (64, 64) else 1.0)

    found, looks = settled(Samples({d: steep(d) for d in grid(AXES)}), steep, monkeypatch)
    assert found.seconds[64, 64] == steep((64, 64))
    assert 1 <= looks[64, 64] <= 2


def test_marked_samples_are_taken_until_they_are_undisturbed(monkeypatch):
    samples = Samples(quiet(), marked=frozenset({(4, 4), (64, 64)}))
    found, looks = settled(samples, law, monkeypatch, lambda dims, look: look < 4)
    assert found.marked == frozenset()
    assert looks == {(4, 4): 4, (64, 64): 4}


def test_load_that_stays_does_not_keep_it_for_ever(monkeypatch):
    samples = Samples(quiet(), marked=frozenset(quiet()))
    found, looks = settled(samples, law, monkeypatch, lambda dims, look: True)
    assert found.marked == samples.marked
    assert max(looks.values()) <= repeating._ROUNDS


def test_a_look_that_took_less_is_followed_by_others_but_not_for_ever(monkeypatch):
    unsure = frozenset({(16, 16), (64, 64)})
    monkeypatch.setattr(repeating, "_RESTLESS", 0.5)
    _, looks = settled(Samples(quiet(), unsure=unsure), law, monkeypatch)
    assert looks == dict.fromkeys(unsure, 2)


def test_where_slow_spells_are_seen_all_is_looked_at_again(monkeypatch):
    samples = Samples(quiet(), unsure=frozenset({(16, 16)}))
    samples.seconds[256, 256] *= 1.2
    found, looks = settled(samples, law, monkeypatch)
    assert looks == dict.fromkeys(quiet(), 1) | {(16, 16): 2}
    assert found.seconds == quiet()


def test_knots_that_a_slow_spell_left_out_are_measured(monkeypatch):
    """Its first samples were so slow that the others seemed to take too long."""
    few = {dims: 0.1 for dims in grid(AXES) if dims[0] * dims[1] <= 64}
    found, _ = settled(Samples(few, marked=frozenset(few)), law, monkeypatch)
    assert found.seconds == pytest.approx(quiet())


@pytest.mark.parametrize(("point", "expected"), [(2e-3, [(256, 256), (4, 4)]), (1e-3, [(4, 4)])])
def test_the_worst_come_first_as_far_as_there_is_time(point, expected, monkeypatch):
    """One that would take too long does not keep others from it."""
    seconds = quiet()
    seconds[4, 4] *= 2.0
    seconds[256, 256] *= 50.0
    asked = []

    def again(number, dims):
        asked.extend(dims)
        return samples

    samples = Samples(seconds)
    monkeypatch.setattr(repeating.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(repeating, "_ROUNDS", 1)
    short = replace(QUICK, point=point)
    repeating.settle([(case(), place(), samples)], again, short, 0.0, clock=Clock())
    assert asked == expected


# -- What they count -------------------------------------------------------------------------------


def test_a_sample_beside_other_load_is_no_longer_than_the_others_allow():
    seconds = quiet()
    seconds[64, 64] *= 50.0
    marked = Samples(seconds, marked=frozenset({(64, 64), (16, 16)}))
    found, out = outliers.believable(case(), place(), marked)
    assert out == [(64, 64)]
    assert found.seconds[64, 64] == pytest.approx(1.5 * 4.0 * law((16, 64)))
    assert found.seconds[16, 16] == law((16, 16))
    measured = loop.Measured(case(), place(), marked)
    model = modelling.models([measured], [])[measured.key]
    assert model["samples"]["extrapolated"] == [[64, 64]]
    json.dumps(model)
    seconds[64, 64] /= 10.0
    _, out = outliers.believable(case(), place(), Samples(seconds))
    assert out == [], "seen without other load, it is so"


def solves(step):
    """Samples of solves that take so long for each step."""
    row = next(i for i in lookup("cg") if (i.kind, i.method) == ("cpu", "blas"))
    how = TimedSolves(8, 40)
    timed = {dims: (8 * s, 40 * s) for dims, s in step.items()}
    steps = dict.fromkeys(step, (8.0, 40.0))
    samples = Samples(step, setup=dict.fromkeys(step, 1e-7), timed=timed, steps=steps)
    dense = Case(row, "float32", "dense", how, [[n for (n,) in step]], _dense)
    return dense, place(), samples


def _dense(n):
    operation = registry.operation("cg")
    return operation.problem(spec((n, n), "float32"), spec((n,), "float32"))


def test_a_step_beside_other_load():
    step = {(n,): 1e-9 * n * n for n in (64, 256, 1024, 2048)}
    step[1024,] *= 100.0
    dense, where, samples = solves(step)
    found, out = outliers.believable(dense, where, replace(samples, marked=frozenset(step)))
    assert out == [], "nothing undisturbed is known"
    found, out = outliers.believable(dense, where, replace(samples, marked=frozenset({(1024,)})))
    assert out == [(1024,)]
    assert found.seconds[1024,] == pytest.approx(1.5e-9 * 1024 * 1024)
    assert set(found.setup) == set(step)


def test_a_solve_whose_times_tell_no_step_is_told_by_others():
    step = {(n,): 1e-9 * n * n for n in (64, 256, 1024, 2048)}
    dense, where, samples = solves(step)
    samples.timed[256,] = samples.timed[256,][1], samples.timed[256,][1] * 1.01
    parted = solving.parted(samples.timed, samples.steps)
    found, out = outliers.believable(dense, where, parted)
    assert out == [(256,)]
    assert found.seconds[256,] == pytest.approx(1e-9 * 256 * 256)
