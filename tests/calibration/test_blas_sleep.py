"""From how much work on BLAS's threads are put to sleep, on machines with a clock of their own."""

import math
import random
import threading
import time
from types import SimpleNamespace

import pytest

from hetero import profile, registry
from hetero.calibration.environment import blas_sleep
from hetero.calling import planner
from hetero.errors import ProfileError
from hetero.host import blas_spin
from hetero.ops.cases import Passes, TimedSolves
from hetero.profile import inventory
from hetero.registry import thread_counts

LATER = blas_sleep._LATER


class Machine:
    """Loops wait for spinning threads, products for sleeping ones; seconds, with some noise."""

    def __init__(self, beside, waking, noise=0.02, loop=3e-4, product=5e-4):
        self.now, self.spins, self.is_cut = 0.0, False, False
        self.beside, self.waking, self.of_loop, self.of_product = beside, waking, loop, product
        self.random = random.Random(3)
        self.noise = noise

    def takes(self, seconds):
        self.now += seconds * (1 + self.noise * self.random.random())

    def loop(self):
        self.takes(self.of_loop + (self.beside if self.spins else 0.0))

    def product(self):
        self.takes(self.of_product + (0.0 if self.spins else self.waking))
        self.spins = not self.is_cut

    def quiet(self):
        self.is_cut, self.spins = True, False

    def usual(self):
        self.is_cut = False

    def compared(self, **more):
        return blas_sleep.compared(
            self.loop, self.product, self.quiet, self.usual, lambda: self.now, **more
        )


@pytest.mark.parametrize(
    ("beside", "waking"),
    [(1e-3, 5e-5), (3e-4, 4e-3), (0.0, 0.0), (1e-4, 5e-5)],
)
def test_the_ratio_is_that_of_both_in_turn(beside, waking):
    machine = Machine(beside, waking)
    asleep = machine.of_loop + machine.of_product + waking
    spinning = machine.of_loop + beside + machine.of_product
    assert machine.compared() == pytest.approx((asleep / spinning,) * 2, rel=0.02)
    assert not machine.is_cut  # whatever came out, threads are as they were


def test_a_product_that_is_late_now_and_then_counts():
    machine = Machine(1e-3, 5e-5)
    usual = machine.compared()
    product, woken = machine.product, []

    def late():
        woken.extend([] if machine.spins else [machine.now])
        machine.takes(0.05 if len(woken) == 10 and not machine.spins else 0.0)
        product()

    machine.product = late
    typical, whole = machine.compared()
    assert whole > 1.2 > 0.85 > max(usual)
    assert typical == pytest.approx(usual.typical, rel=0.02)


@pytest.mark.parametrize("late", [0.0, 0.1])
def test_more_duels_find_what_is_rare(late):
    """One product in forty is so late that sleeping loses: nine duels often miss it."""
    found = []
    for seed in range(40):
        machine = Machine(1e-3, 5e-5)
        machine.random = random.Random(seed)
        product = machine.product

        def sometimes(machine=machine, product=product):
            is_late = not machine.spins and machine.random.random() < 1 / 40
            machine.takes(late if is_late else 0.0)
            product()

        machine.product = sometimes
        found.append([machine.compared(), machine.compared(share=math.inf)])

    def is_gain(ratio):
        return ratio.typical < blas_sleep._GAIN and ratio.whole <= blas_sleep._LOSS

    few, many = (sum(map(is_gain, ratios)) for ratios in zip(*found, strict=True))
    assert (few, many) == (40, 40) if not late else few > many <= 4


def test_where_no_loop_is_as_long_as_the_default_a_loss_says_nothing_of_it(monkeypatch):
    monkeypatch.setattr(blas_sleep, "_loops", lambda measured, bench: [(1e-3, 1e-3)])
    monkeypatch.setattr(blas_sleep, "compared", lambda *_, **__: blas_sleep.Ratio(1.2, 1.2))
    monkeypatch.setattr(blas_spin, "spin_is_shortened", lambda: True)
    assert blas_sleep.least_work([]) is None


@pytest.mark.parametrize(
    ("operation", "dims", "is_long"),
    [
        ("convolve2d", (256, 256, 3, 3), False),
        ("convolve2d", (2000, 2000, 9, 9), True),
        ("poisson", (700, 500), True),  # 15 ms
        ("cg", (40, 40), False),
    ],
)
def test_what_is_long_on_a_machine_that_was_not_calibrated(operation, dims, is_long):
    conservative, cpu = profile.shipped("conservative"), inventory.devices()["cpu"]
    problem = registry.operation(operation).from_dims(dims, "float32", "host")
    plan = planner.OtherMachine(conservative, {"cpu": cpu}).plan(problem)
    row = plan.chosen.implementation
    run = thread_counts.undisturbed(row, plan.seconds, len, conservative.blas_sleep())
    assert (run is not len) == is_long


def test_what_is_not_known_in_time_is_left():
    assert Machine(1e-3, 5e-5).compared(end=1e-3) is None
    number, enough = blas_sleep._LEAST, blas_sleep._LEAST * 2 * (5 * 5.5e-4 + 4 * 1.3e-3)
    machine = Machine(1e-3, 5e-5)
    assert machine.compared(share=2.0 * enough, end=enough).typical < 0.85
    assert number * 5e-3 < machine.now < 1.5 * enough, "what there was time for counts"


@pytest.mark.parametrize(
    ("ratios", "least"),
    [
        ((0.5, 0.8, 0.95), 2e-4),  # of the shortest, the next, the longest loop
        ((0.98, 0.8, 0.95), 8e-4),
        ((0.5, 0.8, 1.2), LATER),  # the longest loses
        ((0.5, 1.2, 0.98), None),
        ((0.5, 1.2, 0.8), 3e-3),
        ((0.98, 0.98, 0.98), None),
        ((0.98, 0.96, 0.98), 8e-4),
        ((None, None, 0.8), 3e-3),  # no time was left
        ((0.5, 0.5, None), None),
        (((0.87, 1.04), 0.8, 0.8), 2e-4),  # a product is late now and then: nothing is lost by it
        (((0.87, 1.06), 0.8, 0.8), 8e-4),
        ((0.5, 0.8, (0.6, 1.06)), LATER),
        ((0.5, 0.8, (1.06, 0.9)), LATER),
        (((0.98, 0.9), 0.98, 0.98), None),
    ],
)
def test_from_the_shortest_loop_on_that_is_worth_it(ratios, least, monkeypatch):
    def ratio(given):
        both = given if isinstance(given, tuple) else (given, given)
        return None if given is None else blas_sleep.Ratio(*both)

    of = dict(zip(blas_sleep._POINTS, map(ratio, ratios), strict=True))
    loops = [(seconds, seconds) for seconds in blas_sleep._POINTS]
    monkeypatch.setattr(blas_sleep, "_loops", lambda measured, bench: loops)
    monkeypatch.setattr(blas_sleep, "compared", lambda loop, *_, **__: of[loop])
    monkeypatch.setattr(blas_spin, "spin_is_shortened", lambda: True)
    found = blas_sleep.least_work([])
    assert found == (least and pytest.approx(least / (1 if least == LATER else 2**0.5)))
    monkeypatch.setattr(blas_spin, "spin_is_shortened", lambda: False)
    assert blas_sleep.least_work([]) is None


def test_each_loop_has_its_share_of_the_time(monkeypatch):
    """The shortest one is compared last: the others had left it too little, each time."""
    clock, asked = SimpleNamespace(now=100.0), []
    monkeypatch.setattr(blas_sleep.time, "perf_counter", lambda: clock.now)

    def compared(loop, product, quiet, usual, *, share, end):
        assert (quiet, usual) == (blas_spin.shorten_spin, blas_spin.restore_spin)
        asked.append((loop, share - clock.now, end))
        clock.now = share + 0.01  # a duel more
        return blas_sleep.Ratio(0.5, 0.5)

    loops = [(seconds, seconds) for seconds in blas_sleep._POINTS]
    monkeypatch.setattr(blas_sleep, "_loops", lambda measured, bench: loops)
    monkeypatch.setattr(blas_sleep, "compared", compared)
    monkeypatch.setattr(blas_spin, "spin_is_shortened", lambda: True)
    assert blas_sleep.least_work([]) == pytest.approx(blas_sleep._POINTS[0] / 2**0.5)
    quarter = blas_sleep.SECONDS / 4
    expected = [quarter, quarter, 2 * quarter - 0.02]
    assert [share for _, share, _ in asked] == pytest.approx(expected)
    assert {end for _, _, end in asked} == {100.0 + blas_sleep.SECONDS}
    assert [loop for loop, _, _ in asked] == sorted(blas_sleep._POINTS, reverse=True)


def test_only_the_longest_loop_says_that_they_sleep_later(monkeypatch):
    """One of 1.59 ms that loses after a longer one has gained keeps what that one says."""
    loops, ratios = [(1.59e-3, "short"), (3e-3, "long")], {"short": 1.2, "long": 0.8}
    monkeypatch.setattr(blas_sleep, "_loops", lambda measured, bench: loops)
    monkeypatch.setattr(
        blas_sleep, "compared", lambda loop, *_, **__: blas_sleep.Ratio(*[ratios[loop]] * 2)
    )
    monkeypatch.setattr(blas_spin, "spin_is_shortened", lambda: True)
    assert blas_sleep.least_work([]) == pytest.approx(3e-3 / 2**0.5)
    ratios["long"] = 0.98
    assert blas_sleep.least_work([]) == LATER


def test_sides_of_a_duel_take_turns():
    """What comes right after the other meets what that left: neither is always first."""
    machine, order = Machine(1e-3, 5e-5), []
    quiet, product = machine.quiet, machine.product

    def noted():
        order.append("asleep")
        quiet()

    def product_noted():
        order.append("product")
        product()

    machine.quiet, machine.product = noted, product_noted
    machine.compared()
    sides = []
    for _ in range(
        2 * blas_sleep._LEAST
    ):  # product, and as often as there are turns: loop, product
        side = [order.pop(0)]
        while order and side.count("product") < 1 + blas_sleep._TURNS:
            side.append(order.pop(0))
        sides.append("asleep" in side)
    assert not order
    pairs = list(zip(sides[::2], sides[1::2], strict=True))
    assert pairs[:4] == [(False, True), (True, False)] * 2


class Bench:
    """Of whose loops those share threads whose problem says so."""

    def waiting(self, case, on_several):
        return lambda: blas_spin.for_loop() if on_several else None


def measured(seconds, on_several=True, uses=("loops", "numba"), how=None, axes=([1],), devices=()):
    row = registry.Implementation("toy", "loop", "cpu", None, None, None, uses=uses)
    case = SimpleNamespace(implementation=row, how=how, axes=axes, problem=lambda *dims: on_several)
    samples = SimpleNamespace(seconds={(1,): seconds})
    return SimpleNamespace(place=SimpleNamespace(devices=devices), case=case, samples=samples)


def tried(*given):
    return [seconds for seconds, _ in blas_sleep._loops(given, Bench())]


def test_loops_on_one_thread_are_not_asked(monkeypatch):
    """A solve of 0.2 ms on one thread gains no core; the next nearest loop is asked instead."""
    monkeypatch.setattr(blas_spin, "is_due", lambda: False)
    assert tried(measured(2e-4, False), measured(3e-4), measured(1e-3, False)) == [3e-4]


def test_the_nearest_loop_is_asked(monkeypatch):
    monkeypatch.setattr(blas_spin, "is_due", lambda: False)
    near = [measured(seconds) for seconds in (1.2e-4, 2.1e-4, 3.9e-4, 0.5e-3, 0.7e-3, 7e-3, 9e-5)]
    assert tried(*near) == [2.1e-4, 0.7e-3]
    assert tried(*reversed(near)) == [2.1e-4, 0.7e-3]
    assert tried(measured(5.9e-3), measured(6.1e-3)) == [5.9e-3]
    assert tried(measured(6.1e-3), measured(0.9e-4)) == []


def test_products_solves_and_devices_have_no_such_loops(monkeypatch):
    monkeypatch.setattr(blas_spin, "is_due", lambda: False)
    assert tried(measured(2e-4, uses=("blas",))) == []
    assert tried(measured(2e-4, devices=("cuda:0",))) == []
    assert tried(measured(2e-4, how=TimedSolves(1, 2))) == []
    assert tried(measured(2e-4, axes=None)) == []
    passes = Passes("filter", {(1,): (7, 7)}, {}, 1.0)
    assert tried(measured(2e-4, how=passes, axes=None)) == [2e-4]


def test_a_profile_may_have_it():
    data = profile.shipped("conservative").data
    assert profile.Profile(data).blas_sleep() == 1e-3
    data = {**data, "host": {**data["host"], "blas_sleep": 4e-4}}
    assert profile.Profile(data).blas_sleep() == 4e-4
    assert profile.Profile({**data, "host": {}}).blas_sleep() == blas_spin.LONG


def test_a_number_that_cannot_be_is_refused():
    data = profile.shipped("conservative").data
    for wrong in (-1.0, float("nan"), "long"):
        with pytest.raises((ProfileError, ValueError)):
            profile.parse(profile.encode({**data, "host": {**data["host"], "blas_sleep": wrong}}))


def test_short_work_does_not_wait_until_the_variable_is_found(monkeypatch):
    there = threading.Event()
    found = []

    def find():
        with blas_spin._finding:
            found.append(threading.current_thread())
            there.wait(5)

    monkeypatch.setattr(blas_spin, "find", find)
    monkeypatch.setattr(blas_spin, "is_due", lambda: True)
    for _ in range(3):
        with blas_spin.asleep(1e-3):
            while not found:
                time.sleep(1e-3)
    assert len(found) == 1
    assert found[0] is not threading.current_thread()
    there.set()
    found[0].join(5)
    with blas_spin.asleep(blas_spin._PATIENT):
        assert found[1] is threading.current_thread()


def test_a_failing_loop_leaves_threads_as_they_were():
    machine = Machine(1e-3, 5e-5)

    def fails():
        raise ZeroDivisionError

    machine.loop = fails
    with pytest.raises(ZeroDivisionError):
        machine.compared()
    assert not machine.is_cut
