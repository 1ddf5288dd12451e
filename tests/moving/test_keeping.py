"""Operands that do not change: what counts as one, where copies are, when they are moved."""

from __future__ import annotations

import dataclasses
import gc
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hetero
from hetero.arrays import Spec, describe, kept
from hetero.calling import planner
from hetero.devices.storage import Copies, Copy
from hetero.moving import ski_rental
from hetero.ops import matmul, matvec

rng = np.random.default_rng(16)
N = 96  # of a square float64 matrix that is large enough for a copy


def matrix(n=N):
    return rng.random((n, n))


# -- What does not change ------------------------------------------------------------------------


def frozen(array):
    array.flags.writeable = False
    return array


def views(A):
    return {"itself": A, "transpose": A.T, "rows": A[8:80], "reversed": A[::-1], "gaps": A[:, ::2]}


@pytest.mark.parametrize("view", views(matrix()))
@pytest.mark.parametrize("how", ["kept", "bytes"])
def test_what_nobody_can_write_to_is_known_and_its_views_are(how, view):
    A = matrix()
    if how == "bytes":
        A = np.frombuffer(A.tobytes()).reshape(A.shape)
    else:
        A = hetero.keep(A)
    seen = views(A)[view]
    assert kept.find(seen) is not None
    assert kept.find(seen) is kept.find(views(A)[view])
    assert describe(seen).kept is kept.find(seen)


def test_what_somebody_may_write_to_is_not():
    A = matrix()
    view = frozen(A[:])
    assert kept.find(A) is None
    assert kept.find(view) is None
    assert kept.find(frozen(matrix())) is None  # its owner may make it writeable again
    assert kept.find(frozen(np.frombuffer(bytearray(A.tobytes())))) is None
    assert kept.find(hetero.keep(np.ones((8, 8)))) is None  # too small to matter
    assert kept.find(hetero.keep(np.ones((N, N), int))) is None  # no device computes with it


def test_arrays_that_fill_the_same_memory_are_one_operand():
    A = hetero.keep(matrix())
    assert kept.find(A) is kept.find(A.T) is kept.find(A.reshape(-1))
    assert kept.find(A) is not kept.find(A[::-1])
    part = kept.find(A[1:])
    assert kept.find(A) is not part
    assert kept.find(A[2:]) is not part
    assert kept.find(A[1:]) is part
    overlapping = np.lib.stride_tricks.as_strided(A, (4, 4, N), (16, 24, 8))
    assert kept.find(overlapping) is not kept.find(A.reshape(-1)[: overlapping.size])


def test_keep_gives_a_view_that_cannot_be_written_to():
    A = matrix()
    K = hetero.keep(A)
    assert np.shares_memory(A, K)
    assert A.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        K[0, 0] = 1
    assert hetero.keep(K) is K
    assert hetero.keep([[1.0, 2.0]]).tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize("uses", [0, -1, 1.5, "many"])
def test_uses_are_counted_from_one(uses):
    with pytest.raises(ValueError, match="uses must be a whole number from 1 on, got"):
        hetero.keep(matrix(), uses=uses)


def test_sparse_matrices_are_not_kept():
    from scipy.sparse import eye_array

    with pytest.raises(TypeError, match="takes dense arrays, got csr_array"):
        hetero.keep(eye_array(3).tocsr())


def test_the_promise_ends_with_what_keep_gave():
    A = matrix()
    K, other = hetero.keep(A), hetero.keep(A[:48])
    view = K.T
    assert kept.find(view) is not None
    del K
    assert kept.find(view) is None  # A may be written to again
    assert kept.find(other) is not None
    del other
    assert not kept._roots[id(A)].spans


def test_a_promise_of_a_part_covers_no_more_than_that():
    A = matrix()
    parts = [hetero.keep(A[i : i + 20]) for i in range(0, N - 20, 7)]
    blocks = [kept.find(part) for part in parts]
    for dying in range(len(parts)):
        parts[dying] = None
        found = [part is not None and kept.find(part) is block
                 for part, block in zip(parts, blocks, strict=True)]  # fmt: skip
        assert found == [i > dying for i in range(len(parts))]
        assert len(kept.every()) == len(parts) - dying - 1


def test_thousands_of_promises_end_in_a_moment():
    A = rng.random((4000, 600))
    held = [hetero.keep(A[i : i + 50]) for i in range(2000)]
    assert all(kept.find(view) is not None for view in held)
    began = time.perf_counter()
    held.clear()
    assert time.perf_counter() - began < 10.0  # it took more than 75 s
    assert not kept._roots[id(A)].blocks


def test_nothing_is_left_of_arrays_that_died():
    gc.collect()
    before = len(kept._roots)
    for _ in range(50):
        kept.find(frozen(matrix()))
        hetero.keep(matrix())
    A = hetero.keep(matrix())
    for begin in range(N):
        for end in range(begin + 8, N):
            kept.find(A[begin:end])
    assert len(kept._roots[id(A.base)].blocks) <= kept._MOST
    del A
    assert len(kept._roots) == before


# -- The least valuable copy goes first ----------------------------------------------------------


class Key:
    def __init__(self):
        self.held = {}


def test_the_least_valuable_copy_is_dropped_first():
    copies, keys = Copies(), [Key() for _ in range(4)]
    for key, nbytes in zip(keys, (100, 100, 50, 100), strict=True):
        copies.put(key, Copy(None, None, nbytes), "cuda:0")
    for key, saved in zip(keys, (3.0, 1.0, 1.0, 2.0), strict=True):
        copies.used(key, saved)
    assert copies.nbytes() == 350
    assert copies.shed(100)  # the second: 0.01 a byte
    assert [bool(key.held) for key in keys] == [True, False, True, True]
    assert copies.shed(101)  # both with 0.02
    assert [bool(key.held) for key in keys] == [True, False, False, False]
    copies.put(keys[1], Copy(None, None, 100), "cuda:0")
    copies.used(keys[1], 1.5)  # 0.02 + 0.015 now: a use of today counts more than one of before
    assert copies.shed(1)
    assert [bool(key.held) for key in keys] == [False, True, False, False]
    assert copies.shed()
    assert not copies.shed()
    assert copies.nbytes() == 0


# -- The rule: at most twice what would have been best -------------------------------------------


VECTOR = 0.02  # of the seconds that the first operand takes to move: what the second takes


class Clock:
    """A machine of made-up prices that adds up what the calls take."""

    def __init__(self, cpu, device, move, number=1):
        self.cpu, self.device, self.move = cpu, device, move
        self.names = [f"cuda:{i}" for i in range(number)]
        self.now = 0.0
        self.copies = Copies()

    def price(self, problem, scale):
        from hetero.pricing.plan import Candidate, Plan

        found = [Candidate("cpu", "blas", self.cpu * scale, {}, None, None)]
        for i, name in enumerate(self.names):
            speed = self.device * scale * (1 + i) / len(self.names)
            up = 0.0
            for o, share in zip(problem.inputs, (1.0, VECTOR), strict=True):
                if o.kept is None or name not in o.copies:
                    up += (self.move * share) * (len(self.names) - i)
            terms = {"upload": up, "compute": speed}
            found.append(Candidate(name, "tiled", up + speed, terms, None, None))
        found.sort(key=lambda c: c.seconds)
        return Plan(problem, tuple(found), "made up", keepable=True)

    def call(self, problem, scale=1.0):
        inputs = tuple([o._replace(copies=o.kept.copies if o.kept else ()) for o in problem.inputs])
        problem = dataclasses.replace(problem, inputs=inputs)
        found = {}

        def priced(problem):
            key = planner._key(problem)
            if key not in found:
                found[key] = self.price(problem, scale)
            return found[key]

        plan = ski_rental.placed(priced(problem), problem, scale, priced)
        ski_rental.note(plan)
        for one in plan.kept:
            if one.moves_to:
                assert plan.candidates[0].device == one.moves_to
                self.copies.put(one.operand.kept, Copy(None, None, 1), one.moves_to)
        self.now += plan.candidates[0].seconds


def problem_of(A):
    return matvec.problem(A, Spec(A.shape[1:], A.dtype))


def best_afterwards(clock, scales):
    """What the calls would have taken, had it been known which would come."""
    x = clock.move * VECTOR
    never = sum(min(clock.cpu * s, clock.move + x + clock.device * s) for s in scales)
    # To move it later than with the first call that runs there is never better.
    at_once = clock.move + sum(min(x + clock.device * s, clock.cpu * s) for s in scales)
    return min(never, at_once)


@st.composite
def clocks(draw, number=1):
    """A device that saves so much of a call, and a move that takes so many times what it saves."""
    device, saved = draw(st.floats(1e-3, 1.0)), draw(st.floats(1e-3, 1.0))
    return Clock(device + saved, device, saved * draw(st.floats(0.1, 50.0)), number)


some = st.lists(st.floats(0.01, 10.0), min_size=1, max_size=60)


@settings(max_examples=60, deadline=None)
@given(clocks(), some)
def test_any_calls_take_at_most_twice_the_best_time(clock, scales):
    A = hetero.keep(matrix())
    problem = problem_of(A)
    for number, scale in enumerate(scales, 1):  # whenever they end
        clock.call(problem, scale)
        assert clock.now <= 2.0 * best_afterwards(clock, scales[:number]) * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(clocks(), st.integers(1, 100))
def test_with_the_number_of_calls_the_best_is_known_beforehand(clock, uses):
    A = hetero.keep(matrix(), uses=uses)
    problem = problem_of(A)
    for _ in range(uses):
        clock.call(problem)
    assert clock.now <= 1.1 * best_afterwards(clock, [1.0] * uses)


@settings(max_examples=40, deadline=None)
@given(clocks(), some)
def test_a_wrong_number_of_calls_costs_no_more_than_a_move(clock, scales):
    A = hetero.keep(matrix(), uses=5)
    problem = problem_of(A)
    for number, scale in enumerate(scales, 1):
        clock.call(problem, scale)
        best = best_afterwards(clock, scales[:number])
        assert clock.now <= 2.0 * best * (1 + 1e-9) + clock.move


@settings(max_examples=60, deadline=None)
@given(clocks(2), some)
def test_with_two_devices_it_is_at_most_three_times(clock, scales):
    A = hetero.keep(matrix())
    problem = problem_of(A)
    moves, speeds = [2 * clock.move, clock.move], [clock.device / 2, clock.device]
    best = {held: sum(moves[i] for i in held) for held in ((), (0,), (1,), (0, 1))}
    for scale in scales:
        clock.call(problem, scale)
        for held in best:
            ways = [clock.cpu * scale]
            for i in (0, 1):
                ways.append(moves[i] * (VECTOR + (i not in held)) + speeds[i] * scale)
            best[held] += min(ways)
        assert clock.now <= 3.0 * min(best.values()) * (1 + 1e-9)


def test_what_is_lost_is_counted_from_what_a_call_takes_by_the_copies_that_are_there():
    """cuda:1 is due first; what cuda:0 would save is counted beside it from then on."""
    clock = Clock(cpu=10.0, device=2.0, move=20.0, number=2)
    A = hetero.keep(matrix())
    problem, expected, held = problem_of(A), 0.0, ()
    vector = {"cuda:0": 40.0 * VECTOR, "cuda:1": 20.0 * VECTOR}
    for _ in range(80):
        clock.call(problem)
        now = kept.find(A).copies
        if "cuda:0" in now:
            break
        without_moves = vector["cuda:1"] + 2.0 if "cuda:1" in now else 10.0
        expected += without_moves - (vector["cuda:0"] + 1.0)
        assert kept.find(A).lost["cuda:0"][0] == pytest.approx(expected)
        held = now
    assert held == ("cuda:1",)
    assert expected < 40.0 <= expected + (vector["cuda:1"] + 2.0) - (vector["cuda:0"] + 1.0)


def test_a_copy_is_worth_what_it_saves_a_call():
    clock = Clock(cpu=10.0, device=2.0, move=20.0)
    A = hetero.keep(matrix(), uses=100)
    for worth in (0.0, 10.0 - (2.0 + 20.0 * VECTOR)):  # it is made, and used
        clock.call(problem_of(A))
        assert clock.copies.find(kept.find(A)).value == pytest.approx(worth)


@settings(max_examples=60, deadline=None)
@given(clocks(), st.integers(1, 100))
def test_two_operands_that_are_used_together_are_moved_together(clock, number):
    A, B = hetero.keep(matrix()), hetero.keep(matrix())
    problem = matmul.problem(A, B)
    together = (1 + VECTOR) * clock.move
    for done in range(1, number + 1):
        clock.call(problem)
        never = done * min(clock.cpu, together + clock.device)
        best = min(never, together + done * min(clock.cpu, clock.device))
        assert clock.now <= 2.0 * best * (1 + 1e-9)
