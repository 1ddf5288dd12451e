"""Products under `hetero.install`: what the gates hand over, and that NumPy's loops come back."""

from __future__ import annotations

import ctypes
import pickle
import signal
import threading
import time

import fakes
import numpy as np
import pytest

import hetero
from hetero import accel, profile
from hetero.accel import gate, products
from hetero.arrays import watched
from hetero.pricing import tables


def loops():
    """Addresses of NumPy's loops of products."""
    functions = (np.matmul, np.matvec, np.vecmat)
    return [gate._loop_of(f, dtype) for f in functions for dtype in gate._TYPES]


@pytest.fixture
def all_calls(monkeypatch):
    """Each call is looked at, and taken unless NumPy is to do it."""
    monkeypatch.setenv("HETERO_ACCEL_LEAST", "0")
    with hetero.install(recording=True) as installed:
        yield installed


def named(note):
    return note.function, note.code


def test_loops_and_names_come_back():
    def code():
        return loops(), np.dot._implementation, np.einsum._implementation, vars(np.ndarray)["dot"]

    before = code()
    with hetero.install(recording=True), hetero.install():
        assert not set(loops()) & set(before[0])
        assert not any(now is then for now, then in zip(code(), before, strict=True))
        held = np.ndarray.dot
    assert code() == before
    book = accel._state["book"]
    count = len(book.table())
    held(np.ones((300, 300)), np.ones((300, 300)))
    assert len(book.table()) == count
    with pytest.raises(RuntimeError, match="not installed"):
        hetero.uninstall()


def test_a_loop_that_somebody_else_put_there_stays():
    gates = gate.Gate(lambda *call: call[-1]())
    before = loops()
    gates.set()
    function, types, numpys, _ = gates._loops[0]
    other = gates._loops[1][2]
    gates._replace(function, other, types, None)
    gates.restore()
    assert loops() == [other, *before[1:]]
    gates._replace(function, numpys, types, None)
    assert loops() == before


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gates_hand_over_from_their_limits_on(dtype):
    seen = []

    def take(name, dtype, pointers, extents, strides, loop):
        seen.append((name, dtype, extents))
        loop()

    gates = gate.Gate(take)
    gates.cells[0], gates.cells[2] = 6 * 7 * 8, 6 * 7
    gates.set()
    try:
        A, B = np.ones((6, 7), dtype), np.ones((7, 8), dtype)
        assert ((A @ B) == 7).all()
        assert ((A @ B[:, 1:]) == 7).all()
        assert ((A @ B[:, 0]) == 7).all()
        assert (np.matvec(A, B[:, 0]) == 7).all()
        assert (np.vecmat(B[:, 0], A.T) == 7).all()
        assert ((A[1:] @ B[:, 0]) == 7).all()
        np.matmul(A.astype(int), B.astype(int))
    finally:
        gates.restore()
    assert seen == [
        ("matmul", dtype, (1, 6, 7, 8)),
        ("matmul", dtype, (1, 6, 7, 1)),
        ("matvec", dtype, (1, 6, 7)),
        ("vecmat", dtype, (1, 7, 6)),
    ]
    assert gates.cells[1] == 2


def test_another_numpy_is_left_alone(monkeypatch, caplog):
    monkeypatch.setattr(gate, "_ABI", 0x03000000)
    products.gates.cache_clear()
    before = loops()
    with hetero.install(recording=True):
        assert loops() == before
        assert (np.eye(2) @ np.eye(2) == np.eye(2)).all()
        changed = np.einsum._implementation
    assert np.einsum._implementation is not changed
    assert [r.message for r in caplog.records] == [
        "A @ B is left as it is: NumPy's C API must be of version 0x3000000, got 0x2000000"
    ]


LAYOUTS = {
    "rows": lambda x: x,
    "columns": lambda x: np.asfortranarray(x),
    "backwards": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "gaps": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_device_computes_what_numpy_does(all_calls, opencl, layout):
    random = np.random.default_rng(5)
    A, B = LAYOUTS[layout](random.random((33, 20))), LAYOUTS[layout](random.random((20, 17)))
    x, stack = random.random(20), random.random((3, 33, 20))
    out = np.empty((33, 17))
    calls = {
        "numpy.matmul": [lambda: A @ B, lambda: A @ x, lambda: x @ B, lambda: stack @ B,
                         lambda: np.matmul(A, B, out=out)],
        "numpy.matvec": [lambda: np.matvec(A, x), lambda: np.matvec(stack, x)],
        "numpy.vecmat": [lambda: np.vecmat(x, B), lambda: np.vecmat(x, stack.transpose(0, 2, 1))],
        "numpy.dot": [lambda: np.dot(A, B), lambda: A.dot(x), lambda: np.tensordot(A, B, 1),
                      lambda: np.linalg.multi_dot([A, B, B.T])],
        "numpy.einsum": [lambda: np.einsum("ij,jk->ki", A, B), lambda: np.einsum("ij,j", A, x),
                         lambda: np.einsum("bij,jk->bik", stack, B)],
    }  # fmt: skip
    with hetero.use(device=opencl):
        taken = {}
        for name, made in calls.items():
            for number, call in enumerate(made):
                taken[name, number] = call()
                assert named(accel.last()) == (name, "taken"), accel.last()
    all_calls.session.least = float("inf")
    for (name, number), result in taken.items():
        np.testing.assert_allclose(result, calls[name][number](), rtol=1e-13)


def test_a_matrix_used_again_and_again_moves_once(all_calls, monkeypatch):
    """Calls that NumPy computes count as well: what they lose pays for the move."""
    if watched.obstacle():
        pytest.skip(watched.obstacle())
    fakes.install(monkeypatch)
    monkeypatch.setattr(products, "has_device", lambda: True)
    monkeypatch.setattr(profile, "current", lambda: profile.shipped("h100"))
    tables.forget()
    A, x = np.random.default_rng(5).random((4096, 4096)), np.ones(4096)
    codes = []
    for _ in range(40):
        y = A @ x
        codes.append(accel.last()[3])
    assert codes[0] == "copies"
    assert codes[-1] == "taken"
    assert 1 < codes.index("taken") < 30
    np.testing.assert_allclose(y, np.einsum("ij->i", A), rtol=1e-12)


def test_without_a_device_products_are_numpys(all_calls, monkeypatch):
    monkeypatch.setattr(products, "has_device", lambda: False)
    A = np.random.default_rng(5).random((40, 40))
    result = A @ A
    assert named(accel.last()) == ("numpy.matmul", "no-device")
    hetero.uninstall()
    assert (result == A @ A).all()
    hetero.install()


def test_an_interrupt_within_a_product_reaches_the_script(all_calls, monkeypatch):
    """Not NumPy's C, where it is lost; the products until then are whole, and gates come back."""
    monkeypatch.setattr(products, "_INTERRUPTED", 0.2)
    monkeypatch.setattr(products, "attempted", lambda *_: signal.raise_signal(signal.SIGINT))
    A, made, end = 2.0 * np.eye(40), [], time.monotonic() + 5.0

    def multiply():
        while time.monotonic() < end:
            made[:] = A @ A @ A, *made[:2]

    with pytest.raises(KeyboardInterrupt):
        multiply()
    assert all((each == 4.0 * A).all() for each in made)
    assert products.gates().cells[0] == gate.OFF
    time.sleep(0.4)
    assert products.gates().cells[0] == 1


def test_a_failing_device_leaves_the_product_to_numpy(all_calls, opencl, monkeypatch):
    fails = eval("lambda *call: 1 / 0", {"__name__": "hetero.broken"})
    monkeypatch.setattr(products, "_computed", fails)
    A = np.random.default_rng(5).random((40, 40))
    with hetero.use(device=opencl):
        result = A @ A
    assert accel.last()[3:5] == ("failed", "ZeroDivisionError: division by zero")
    assert (result == A.dot(A)).all()


def test_what_is_no_product_of_floats_is_numpys(all_calls):
    before = all_calls.session.book.last
    assert (np.eye(3, dtype=object) @ np.eye(3, dtype=object)).dtype == object
    assert np.einsum("ii", np.eye(3)) == 3
    assert all_calls.session.book.last is before


def test_threads_install_and_multiply():
    before, wrong = loops(), []

    def work(seed):
        A = np.random.default_rng(seed).random((40, 40))
        for _ in range(20):
            with hetero.install(recording=True):
                wrong.extend([seed] * (not np.allclose(A @ A, A.dot(A))))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not wrong
    assert loops() == before


def test_a_gate_keeps_no_lock(all_calls):
    """The interpreter's lock, which a thread in a loop may or may not hold."""
    assert ctypes.pythonapi.PyGILState_Check()
    np.ones((40, 40)) @ np.ones((40, 40))
    assert ctypes.pythonapi.PyGILState_Check()


class Dispatched:
    """Its class has functions of its own for NumPy's, by their identity."""

    def __array_function__(self, function, types, arguments, options):
        return {np.dot: "dot", np.einsum: "einsum"}[function]


def test_numpys_functions_are_the_same_objects(all_calls):
    assert np.dot(Dispatched(), np.eye(2)) == "dot"
    assert np.einsum("ij,jk", Dispatched(), np.eye(2)) == "einsum"
    dot, einsum, method = pickle.loads(pickle.dumps((np.dot, np.einsum, np.ndarray.dot)))
    assert (dot, einsum, method) == (np.dot, np.einsum, np.ndarray.dot)


@pytest.mark.parametrize("place", [0, 1])
def test_what_is_not_finite_numpy_reports(all_calls, place):
    operands = np.zeros((40, 40)), np.zeros((40, 40))
    operands[place][7, 9] = np.inf
    calls = [np.matmul, np.dot, lambda A, B: np.matvec(np.stack([A, A]), B[7])]
    for call in calls:
        raises = pytest.raises(FloatingPointError, match="invalid value")
        with hetero.use(device="opencl:0"), np.errstate(invalid="raise"), raises:
            call(*operands)


def moved(x):
    """The same values, the first axis being the innermost one."""
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 0, -1)), -1, 0)


@pytest.mark.parametrize("first", [*LAYOUTS, "moved", "the same"])
@pytest.mark.parametrize("second", LAYOUTS)
def test_a_result_of_einsum_lies_as_numpys(all_calls, first, second):
    layouts = {**LAYOUTS, "moved": moved, "the same": lambda x: np.broadcast_to(x[:1], x.shape)}
    random, extent = np.random.default_rng(6), {"b": 2, "i": 4, "j": 5, "k": 6, "l": 3}
    for subscripts in ("ij,jk", "ij,jk->ki", "ji,kj", "bij,jk->kib", "ijk,kjl->li"):
        for one in ("", *"ijk"):
            shapes = [[1 if x == one else extent[x] for x in letters]
                      for letters in subscripts.partition("->")[0].split(",")]  # fmt: skip
            A, B = (
                layouts[first](random.random(shapes[0])),
                LAYOUTS[second](random.random(shapes[1])),
            )
            made = np.einsum(subscripts, A, B)
            assert named(accel.last()) == ("numpy.einsum", "taken")
            numpys = np.einsum(subscripts, A, B, order="K")  # with an option it is NumPy's
            assert made.strides == numpys.strides, (subscripts, one)
            assert made.flags.owndata
            np.testing.assert_allclose(made, numpys, rtol=1e-12)


def test_installing_again_keeps_the_gates():
    with hetero.install(recording=True):
        first = loops()
    with hetero.install(recording=True):
        assert loops() == first
