"""Copies of operands that do not change: used, counted, dropped, checked; on fake and real devices.

The made-up machine computes a product of a matrix and a vector slowly on the CPU, fast on a device,
and moves the matrix in the time that ten products take on the CPU.
"""

from __future__ import annotations

import gc

import fakes
import numpy as np
import processes
import pytest
from made_up import machine
from scipy.sparse import eye_array

import hetero
from hetero import devices, profile
from hetero.arrays import kept
from hetero.errors import DeviceError, KeptOperandChanged

rng = np.random.default_rng(5)
N = 512
KEPT = "kept operands"


@pytest.fixture(autouse=True)
def promised_alone(monkeypatch):
    """Arrays that are merely used again stay where they are: `test_watched` is about those."""
    monkeypatch.setenv("HETERO_WATCH", "0")


@pytest.fixture
def device(cuda):
    """A fake "cuda:0" of the made-up machine."""
    profile.set_current(machine())
    yield cuda
    cuda.clear()
    gc.collect()
    assert cuda.live == 0


def operands(n=N):
    return rng.random((n, n), np.float32), rng.random(n, np.float32)


# -- What does not change --------------------------------------------------------------------------


def test_keep_gives_a_view_that_cannot_be_written_to():
    A = rng.random((96, 96))
    K = hetero.keep(A)
    assert np.shares_memory(A, K)
    assert A.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        K[0, 0] = 1
    assert hetero.keep(K) is K
    assert hetero.keep([[1.0, 2.0]]).tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize("uses", [0, -1, 1.5, "many"])
def test_what_cannot_be_kept(uses):
    with pytest.raises(ValueError, match="uses must be a whole number from 1 on, got"):
        hetero.keep(rng.random((96, 96)), uses=uses)
    with pytest.raises(TypeError, match="takes dense arrays, got csr_array"):
        hetero.keep(eye_array(3).tocsr())
    for array in (np.ones((8, 8)), np.ones((96, 96), int)):  # too small; no device computes with it
        assert kept.find(hetero.keep(array)) is None


# -- By the made-up machine's prices -------------------------------------------------------------


def test_an_operand_is_moved_once_when_that_is_due_and_used_from_then_on(device):
    A, x = operands()
    K, right = hetero.keep(A), A @ x
    for _ in range(30):
        plan = hetero.plan("matvec", K, x)
        before = device.log.count("compute")
        np.testing.assert_allclose(hetero.matvec(K, x), right, rtol=1e-4)
        ran = "cuda:0" if device.log.count("compute") > before else "cpu"
        assert ran == plan.chosen.device  # what is printed is what runs
    assert ran == "cuda:0"
    assert device.uploads == 1
    assert kept.find(K).copies == ("cuda:0",)
    assert hetero.memory()["cuda:0"] == {KEPT: A.nbytes}
    # A view of the same memory finds the copy.
    np.testing.assert_allclose(hetero.matvec(K.T, x), A.T @ x, rtol=1e-4)
    np.testing.assert_allclose(hetero.matmul(x, K), x @ A, rtol=1e-4)
    assert device.uploads == 1
    # An array that may be written to is nobody's copy.
    np.testing.assert_allclose(hetero.matvec(A, x), right, rtol=1e-4)
    assert hetero.plan("matvec", A, x).chosen.device == "cpu"


def test_the_plan_tells_where_copies_are_and_what_was_lost(device):
    A, x = operands()
    K = hetero.keep(A)
    for number in range(1, 4):
        plan = hetero.plan("matvec", K, x)
        (one,) = plan.to_dict()["kept"]
        assert (one["operand"], one["copies"], one["moves_to"]) == (1, [], None)
        there = hetero.plan("matvec", A, x, device="cuda:0").seconds - one["lost"]["cuda:0"]["move"]
        assert one["lost"]["cuda:0"]["seconds"] == pytest.approx(number * (plan.seconds - there))
        assert "lost by not moving it to cuda:0" in str(plan)
        hetero.matvec(K, x)
    while not (plan := hetero.plan("matvec", K, x)).to_dict()["kept"][0]["moves_to"]:
        hetero.matvec(K, x)
    assert "moved to cuda:0 with this call, to stay there" in str(plan)
    assert plan.chosen.terms["upload"] > 1e-3
    hetero.matvec(K, x)
    plan = hetero.plan("matvec", K, x)
    assert str(plan).endswith("kept: operand 1, (512, 512) float32: copy on cuda:0")
    assert plan.chosen.device == "cuda:0"
    assert plan.chosen.terms["upload"] < 1e-4  # the vector's


def test_an_array_that_is_merely_read_only_is_moved_each_time(device):
    """Nobody promised that it stays so: it is made writeable, changed, and set back."""
    A, x = operands()
    for seen in (True, False):
        A.flags.writeable = False
        hetero.matvec(A, x, device="cuda:0")
        A.flags.writeable = True
        A *= 2
        if seen:
            np.testing.assert_allclose(hetero.matvec(A, x, device="cuda:0"), A @ x, rtol=1e-4)
        A.flags.writeable = False
        np.testing.assert_allclose(hetero.matvec(A, x, device="cuda:0"), A @ x, rtol=1e-4)
    assert device.live == 0
    A.flags.writeable = True
    A.resize((1, 1), refcheck=False)  # NumPy refuses it where somebody else refers to the array


def test_what_hetero_writes_to_is_not_taken_from_an_older_copy(device):
    A, x = operands()
    ones = np.ones_like(A)
    for out in (A, A[3:]):
        K = hetero.keep(A)
        for _ in range(2):
            hetero.matvec(K, x, device="cuda:0")
        hetero.matmul(ones[: len(out)], ones, out)
        np.testing.assert_allclose(hetero.matvec(K, x, device="cuda:0"), A @ x, rtol=1e-4)
        A[...] = rng.random(A.shape)


def test_the_promise_and_the_copy_end_with_what_keep_gave(device):
    A, x = operands()
    K, other = hetero.keep(A), hetero.keep(A[:256])
    for matrix in (K, other):
        hetero.matvec(matrix, x, device="cuda:0")
    assert device.live == 1.5 * A.nbytes
    view = K.T
    assert kept.find(view) is not None
    del K, matrix
    assert kept.find(view) is None  # A may be written to again
    assert kept.find(other) is not None
    assert device.live == 0, "also the copy of a part, which was K's"


def test_the_copy_that_was_used_the_longest_ago_makes_room(device):
    x = rng.random(N, np.float32)
    kept_ones = [hetero.keep(rng.random((N, N), np.float32)) for _ in range(3)]
    device.room = int(3.5 * kept_ones[0].nbytes)
    for A in (*kept_ones, kept_ones[0]):
        hetero.matvec(A, x, device="cuda:0")
    A, B = (rng.random((N, N), np.float32) for _ in range(2))
    device.room = int(5.2 * A.nbytes)  # three copies and two of the operands, not the result
    np.testing.assert_allclose(hetero.matmul(A, B, device="cuda:0"), A @ B, rtol=1e-4)
    assert [bool(kept.find(K).copies) for K in kept_ones] == [True, False, True]
    assert not devices.troubles()  # nobody was told of it


def test_copies_keep_to_the_limit_of_a_call(device):
    x = rng.random(N, np.float32)
    kept_ones = [hetero.keep(rng.random((N, N), np.float32)) for _ in range(3)]
    size = kept_ones[0].nbytes
    with hetero.use(memory_limit=int(2.5 * size)):
        for A in kept_ones:
            np.testing.assert_allclose(hetero.matvec(A, x, device="cuda:0"), A @ x, rtol=1e-4)
            assert device.live <= 2.5 * size
    assert [bool(kept.find(A).copies) for A in kept_ones] == [False, True, True]
    with hetero.use(memory_limit=size // 2):  # a copy that is larger than the limit is not used
        assert hetero.plan("matvec", kept_ones[2], x).chosen.device == "cpu"
        np.testing.assert_allclose(hetero.matvec(kept_ones[2], x), kept_ones[2] @ x, rtol=1e-4)
    assert hetero.plan("matvec", kept_ones[2], x).chosen.device == "cuda:0"


def test_a_device_that_fails_takes_its_copies_with_it(device, monkeypatch):
    A, x = operands()
    K, right = hetero.keep(A), A @ x
    hetero.matvec(K, x, device="cuda:0")

    with monkeypatch.context() as patch:
        patch.setattr(device, "download", fakes.raising(DeviceError("no more")))
        np.testing.assert_allclose(hetero.matvec(K, x, device="cuda:0"), right, rtol=1e-4)
    assert kept.find(K).copies == ()
    assert device.live == 0
    np.testing.assert_allclose(hetero.matvec(K, x, device="cuda:0"), right, rtol=1e-4)
    assert device.uploads == 2


def test_a_forked_child_has_no_copies(device):
    A, x = operands()
    K = hetero.keep(A)
    hetero.matvec(K, x, device="cuda:0")
    assert processes.forked(
        lambda: kept.find(K).copies == () and np.allclose(hetero.matvec(K, x), A @ x, rtol=1e-4)
    )
    assert kept.find(K).copies == ("cuda:0",)


def test_the_check_names_an_operand_that_was_written(device, monkeypatch):
    monkeypatch.setenv("HETERO_CHECK_KEPT", "1")
    A, x = operands()
    K = hetero.keep(A)
    for _ in range(3):
        hetero.matvec(K, x, device="cuda:0")
    A[3, 3] += 1.0
    message = r"shape \(512, 512\), float32, kept at .*test_kept_copies.py:\d+, was written"
    with pytest.raises(KeptOperandChanged, match=message):
        hetero.matvec(K, x, device="cuda:0")
    np.testing.assert_allclose(hetero.matvec(K, x, device="cuda:0"), A @ x, rtol=1e-4)
