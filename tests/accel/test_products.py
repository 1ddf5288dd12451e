"""Products under `hetero.install`: what the gates hand over, and that NumPy's loops come back."""

from __future__ import annotations

import ctypes
import functools
import signal
import sys
import time

import fakes
import numpy as np
import pytest
from layouts import LAYOUTS
from processes import python

import hetero
from hetero import accel, devices, profile, tables
from hetero.accel import products
from hetero.arrays import kept
from hetero.ops.convolve2d import device as direct_device

pytestmark = pytest.mark.skipif(not products._FILE.exists(), reason="the gate was not compiled")


def swap(which, loop):
    """What stood in the place of a loop of products, where another one stands from now on."""
    gates = products.gates()
    gates._library.swap.restype = ctypes.c_void_p
    return gates._library.swap(gates._matmul, which, ctypes.c_void_p(loop))


def loops():
    """Addresses of NumPy's loops of products."""
    found = [swap(which, None) for which in (0, 1)]
    return [found[which] for which in (0, 1) if swap(which, found[which]) is None]


def named(note):
    return note.function, note.code


def test_loops_and_names_come_back():
    def code():
        return *loops(), id(np.dot), id(np.einsum)

    before = code()
    with hetero.install(recording=True), hetero.install():
        assert not set(code()) & set(before)
        held = np.dot
    assert code() == before
    note = accel.last()
    held(np.ones((300, 300)), np.ones((300, 300)))
    assert accel.last() is note
    with pytest.raises(RuntimeError, match="not installed"):
        hetero.uninstall()


def test_a_loop_that_somebody_else_put_there_stays():
    gates, (floats, doubles) = products.gates(), loops()
    gates.set(1 << 60, 1 << 60)
    swap(0, doubles)
    gates.restore()
    assert loops() == [doubles, doubles]
    swap(0, floats)


def test_a_loop_that_somebody_else_put_before_the_gate_is_not_called_by_it():
    gates, before, calls = products.gates(), loops(), []
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)

    @kind
    def other(*given):
        calls.append(given)
        if len(calls) < 9:
            kind(gate)(*given)

    gates.set(1, 1)
    gate = swap(1, ctypes.cast(other, ctypes.c_void_p).value)
    gates.restore()
    gates.set(1, 1)
    assert (np.eye(3) @ np.eye(3)).sum() == 3
    assert len(calls) == 1
    swap(1, gate)
    gates.restore()
    assert loops() == before


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gates_hand_over_from_their_limits_on(monkeypatch, dtype):
    """With the newest NumPy and Python, too: C interfaces of both are behind a gate."""
    seen = []

    def take(dtype, pointers, extents, strides, loop):
        seen.append((dtype, extents))
        if len(seen) % 2:
            loop()
        return len(seen) % 2

    gates = products.gates()
    monkeypatch.setattr(products, "_take", take)
    gates.set(6 * 7 * 8, 6 * 7)
    try:
        A, B = np.ones((6, 7), dtype), np.ones((7, 8), dtype)
        assert ((A @ B) == 7).all()
        assert ((A @ B[:, 1:]) == 7).all()
        assert ((A @ B[:, 0]) == 7).all()
        assert (B[:, 0] @ A.T == 7).all()
        assert ((A[1:] @ B[:, 0]) == 7).all()
        np.matmul(A.astype(int), B.astype(int))
    finally:
        gates.restore()
    assert seen == [(dtype, (1, 6, 7, 8)), (dtype, (1, 6, 7, 1)), (dtype, (1, 1, 7, 6))]


def test_another_numpy_is_left_alone(monkeypatch, caplog):
    before = loops()
    monkeypatch.setattr(products, "_ABI", 0x03000000)
    with monkeypatch.context() as anew:
        anew.setattr(products, "gates", products.Gate)
        hetero.install(recording=True)
    assert loops() == before
    hetero.uninstall()
    assert [r.message for r in caplog.records] == [
        "A @ B is left as it is: NumPy's C API must be of version 0x3000000, got 0x2000000"
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_device_computes_what_numpy_does(noted, opencl, layout):
    random = np.random.default_rng(5)
    A, B = LAYOUTS[layout](random.random((33, 20))), LAYOUTS[layout](random.random((20, 17)))
    x, stack = random.random(20), random.random((3, 33, 20))
    out = np.empty((33, 17))
    calls = [lambda: A @ B, lambda: A @ x, lambda: x @ B, lambda: stack @ B,
             lambda: np.matmul(A, B, out=out), lambda: np.tensordot(A, B, 1),
             lambda: np.einsum("ij,jk->ki", A, B), lambda: np.einsum("ij,j", A, x),
             lambda: np.einsum("bij,jk->bik", stack, B)]  # fmt: skip
    if any(x.itemsize in x.strides for x in (A, B)):
        calls += [
            lambda: np.dot(A, B),
            lambda: np.dot(A, x),
            lambda: np.linalg.multi_dot([A, B, B.T]),
        ]
    with hetero.use(device=opencl):
        for call in calls:
            assert named(noted(call)) == ("numpy.matmul", "taken"), accel.last()


def test_a_matrix_used_again_and_again_moves_once(all_calls, monkeypatch):
    """Calls that NumPy computes count as well: what they lose pays for the move."""
    if kept.obstacle():
        pytest.skip(kept.obstacle())
    fakes.install(monkeypatch)
    monkeypatch.setattr(direct_device, "find_not_finite", lambda *_: None)
    monkeypatch.setattr(products, "has_device", lambda: True)
    monkeypatch.setattr(profile, "current", lambda: profile.shipped("h100"))
    tables.forget()
    A, x = np.random.default_rng(5).random((4096, 4096)), np.ones(4096)
    codes = []
    for _ in range(40):
        y = A @ x
        codes.append(accel.last()[3])
    assert codes[0] == "plain-is-fastest"
    assert codes[-1] == "taken", accel.last()
    assert 1 < codes.index("taken") < 30
    np.testing.assert_allclose(y, np.einsum("ij->i", A), rtol=1e-12)


def test_products_that_stay_with_numpy_count_as_calls_that_gain_nothing(monkeypatch):
    if "cuda:0" in devices.available():
        pytest.skip("a GPU takes them")
    monkeypatch.setattr(products, "has_device", lambda: True)
    A = np.random.default_rng(5).random((300, 300))
    with hetero.install() as installed:
        loading = installed.session.loading
        loading.enough = 0.0
        for _ in range(4):
            before = loading.spent
            A @ A
            assert loading.spent > before
        (row,) = installed.session.book.rows()
        assert row[3:] == ("plain-is-fastest", *row[4:7], 1), "the others are settled"
    assert loading.gained == 0.0


def test_without_a_device_products_are_numpys(all_calls, monkeypatch):
    monkeypatch.setattr(products, "has_device", lambda: False)
    A = np.random.default_rng(5).random((40, 40))
    result = A @ A
    assert named(accel.last()) == ("numpy.matmul", "no-device")
    assert (result == A.dot(A)).all()


def raised():
    """What a product raises; its result must be whole."""
    A, C = 2.0 * np.eye(300), np.full((300, 300), -7.0)
    with pytest.raises(TimeoutError) as caught:
        np.matmul(A, A, out=C)
    np.testing.assert_array_equal(C, 2.0 * A)
    return caught


def test_a_handlers_exception_is_raised_after_a_whole_product(all_calls, alarm, monkeypatch):
    """By a signal while the product is offered to Python."""
    monkeypatch.setattr(products, "_views", lambda *_: signal.raise_signal(signal.SIGALRM))
    assert raised().traceback[-1].name == "handler"


def test_an_exception_in_a_thread_is_raised_there_after_a_whole_product(all_calls, monkeypatch):
    monkeypatch.setattr(products, "_views", fakes.raising(TimeoutError()))
    caught = []
    fakes.in_threads(lambda: caught.append(raised()))
    assert len(caught) == 1


def test_signals_at_any_time_lose_neither_product_nor_exception(alarm):
    """While NumPy casts an operand, too, before Python is called."""
    random = np.random.default_rng(0)
    A, B = random.random((700, 700)), random.integers(0, 9, (700, 700))
    expected, outcomes = A @ B, []
    with hetero.install(recording=True):
        for number in range(20):
            C = np.full((700, 700), -7.0)
            try:
                alarm(1e-4 + 2e-4 * number, functools.partial(np.matmul, A, B, out=C))
                time.sleep(1)
            except TimeoutError:
                outcomes.append(np.allclose(C, expected) or (C == -7.0).all())
    assert outcomes == [True] * 20


def test_a_product_near_the_recursion_limit_is_computed(all_calls):
    A, wrong = np.ones((30, 30)), []

    def at(depth):
        if depth:
            return at(depth - 1)
        C = np.full((30, 30), -7.0)
        np.matmul(A, A, out=C)
        return C

    for depth in range(sys.getrecursionlimit() - 150, sys.getrecursionlimit()):
        try:
            wrong += [depth] * bool((at(depth) != 30.0).any())
        except RecursionError:
            break
    assert not wrong


def test_threads_install_and_multiply():
    before, wrong = loops(), []

    def work(seed):
        A = np.random.default_rng(seed).random((40, 40))
        for _ in range(20):
            with hetero.install(recording=True):
                wrong.extend([seed] * (not np.allclose(A @ A, A.dot(A))))

    fakes.in_threads(*[functools.partial(work, seed) for seed in range(4)])
    assert not wrong
    assert loops() == before


NUMBA = """
import sys, gc, numba, numpy as np, hetero

def squared(A, B):
    np.dot(A, A, B)
    return np.dot(A, A)

A, B = np.array([[1.0, 2.0], [0.0, 3.0]]), np.empty((2, 2))
if "before" in sys.argv:
    numba.njit(squared)(A, B)
for _ in range(2):
    with hetero.install(verbose=True):
        print(type(np.dot), numba.njit(squared)(A, B).tolist())
with hetero.install():
    print(hetero.kmeans(A, 1, device="cpu", method="lloyd")[0].tolist())
gc.collect()
print(numba.njit(squared)(A, B).tolist(), B.tolist())
"""


@pytest.mark.parametrize("first", ["before", "installed"])
def test_numba_compiles_numpys_functions(first):
    done = python("-c", NUMBA, first).stdout.splitlines()
    square = [[1.0, 8.0], [0.0, 9.0]]
    there = [f"<class 'numpy.function'> {square}"] * 2
    assert done == [*there, "[[0.5, 2.5]]", f"{square} {square}"]


@pytest.mark.parametrize("method", ["tiled", "streamed"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_overflow_of_one_element_numpy_reports(all_calls, method, dtype):
    """It lies in no first row or column of the result."""
    A, B = np.zeros((20, 10), dtype), np.zeros((10, 30), dtype)
    A[9, 9] = B[9, 19] = 1e30 if dtype == "float32" else 1e200
    with hetero.use(device="opencl:0", method=method):
        for call in (np.matmul, np.dot):
            with np.errstate(all="raise"), pytest.raises(FloatingPointError, match="overflow"):
                call(A, B)
            assert accel.last().code == "not-finite"
        A[9] = 0
        assert not (A @ B).any()
        assert accel.last().code == "taken"


def moved(x):
    """The same values, the first axis being the innermost one."""
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 0, -1)), -1, 0)


@pytest.mark.parametrize("first", [*LAYOUTS.values(), moved])
@pytest.mark.parametrize("second", LAYOUTS.values())
def test_a_result_of_einsum_lies_as_numpys(all_calls, first, second):
    random, extent = np.random.default_rng(6), {"b": 2, "i": 4, "j": 5, "k": 6, "l": 3}
    for subscripts in ("ij,jk", "ij,jk->ki", "ji,kj", "bij,jk->kib", "ijk,kjl->li"):
        operands = subscripts.partition("->")[0]
        for one in ("", *"ijk"):
            A, B = (
                lay(random.random([1 if x == one else extent[x] for x in letters]))
                for lay, letters in zip((first, second), operands.split(","), strict=True)
            )
            made = np.einsum(subscripts, A, B)
            numpys = np.einsum(subscripts, A, B, order="K")  # with an option it is NumPy's
            assert made.strides == numpys.strides, (subscripts, one)
            assert made.flags.owndata
            np.testing.assert_allclose(made, numpys, rtol=1e-12)
