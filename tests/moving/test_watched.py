"""Arrays that are used again, watched for writes: copied when that is due, never stale."""

import threading
import time

import fakes
import numpy as np
import pytest
from test_kept_copies import KEPT, device, operands  # noqa: F401

import hetero
from hetero import devices
from hetero.arrays import kept
from hetero.calling import planner
from hetero.host import write_tracking
from hetero.moving import keeping

pytestmark = pytest.mark.skipif(
    write_tracking.obstacle() is not None, reason=str(write_tracking.obstacle())
)
N = 704  # rows and columns of float32: 1.9 MiB, of which a copy is worth its watch


def forget():
    """Watch nothing any longer, as a new process."""
    for known in list(kept.remembered.values()):
        known.release()
    kept.remembered.clear()


def product(A, x):
    """A call, checked; gives whether it ran on the device's copy."""
    np.testing.assert_allclose(hetero.matvec(A, x), A @ x, rtol=1e-4)
    return hetero.plan("matvec", A, x).chosen.device != "cpu"


def test_an_array_that_is_used_again_moves_once(device):  # noqa: F811
    A, x = operands(N)
    on_device = [product(A, x) for _ in range(40)]
    assert on_device == sorted(on_device), "once there it stays"
    assert on_device[-1]
    assert device.uploads == 1
    assert hetero.memory()["cuda:0"] == {KEPT: A.nbytes}
    assert "copy on cuda:0" in str(hetero.plan("matvec", A, x))
    for same in (A.T, A.reshape(N, N), A[:], np.frombuffer(A, np.float32).reshape(N, N)):
        product(same, x)
    assert device.uploads == 1
    forget()
    assert device.live == 0


def test_the_copy_of_an_array_that_is_not_used_any_longer(device, monkeypatch):  # noqa: F811
    A, x = operands(N)
    while not device.uploads:
        product(A, x)
    assert device.live
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 31)
    product(operands(N)[0], x)
    assert device.live == 0


@pytest.mark.parametrize(("columns", "use"), [(32, 2), (12, 2), (10, 3), (6, 4)])
def test_it_is_moved_when_its_calls_have_lost_the_time_of_the_move(device, columns, use):  # noqa: F811
    """In the second use where one call saves half of that; as `keep` does, whose first call counts
    where it is the device's anyway."""
    A, B = operands(N)[0], np.ones((N, columns), np.float32)
    for keep, expected in ((lambda A: A, use), (hetero.keep, 1 if columns == 32 else use)):
        hetero.clear_memory()
        forget()
        K = keep(A)
        for number in range(1, use + 2):
            hetero.matmul(K, B)
            assert (device.live >= A.nbytes) == (number >= expected), number


def test_an_array_that_is_written_to_between_calls_is_left_alone(device, monkeypatch):  # noqa: F811
    """Each time twice as many uses pass before it is watched again."""
    begun = []  # of watches of more than the first pages

    def note(low, high):
        if high - low > kept._TRIAL:
            begun.append(low)

    fakes.noting(monkeypatch, write_tracking, "watch", note)
    A, x = operands(2048)  # 16 MiB
    for _ in range(20):
        product(A, x)
        A *= 0.99
    assert not begun, "all of it changes: no more than its first pages are watched"
    A, x = operands(N)
    counts = []
    for _ in range(139):
        counts.append(len(begun))
        product(A, x)
        A[300, 5] += 1
    assert not device.uploads
    assert np.diff([-1, *np.flatnonzero(np.diff(counts))]).tolist() == [2, 4, 8, 16, 32, 64]


# -- Random programs -------------------------------------------------------------------------------


def program(seed, steps=40, least=1 << 17):
    """Calls and writes in random order, by two threads; a device that copies at random.

    Some of the writes come while a copy is made. Gives how many copies were compared.
    """
    rng = np.random.default_rng(seed)
    memory = np.full(rng.integers(1, 4) * least + rng.integers(0, 4096), rng.random())
    results, compared = [], 0

    def pick():
        if results and rng.random() < 0.3:
            return results[rng.integers(len(results))]
        low, end = rng.integers(0, 3) * 1000, memory.size - rng.integers(0, 3) * 700
        return [memory, memory[low:end], memory[:end], memory[low:]][rng.integers(4)]

    def write(array):
        at = int(rng.integers(array.size))
        some = slice(at, at + int(rng.integers(1, 5000)))
        part = (at, some, slice(None), 0, -1)[rng.integers(5)]
        thread = threading.Thread(target=array.__setitem__, args=(part, rng.random()))
        thread.start()
        return thread

    for _ in range(steps):
        if rng.random() < 0.1:
            results.append(rng.random(least))
            if (known := kept.find(results[-1], source="source")) is not None:
                known.held["a device"] = results[-1].copy()
            del results[: -int(rng.integers(1, 4))]
        array = pick()
        if rng.random() < 0.15:
            write(array).join()
        elif (known := kept.find(array, used=True)) is not None and known.held:
            np.testing.assert_array_equal(known.held["a device"], array)
            compared += 1
        elif known is not None and rng.random() < 0.7:
            during = write(array) if rng.random() < 0.1 else None
            known.held["a device"] = array.copy()
            if during is not None:
                during.join()
    forget()
    return compared


def test_random_programs_never_see_a_stale_copy():
    assert sum(program(seed) for seed in range(40)) > 150


@pytest.mark.parametrize("operation", ["matvec", "convolve2d", "solve_cg", "kmeans"])
def test_every_operation_uses_the_copy_until_a_write(opencl, monkeypatch, operation):
    uploads, n = fakes.uploads(monkeypatch, devices.get(opencl)), 400  # 1.2 MiB
    A, b = np.random.default_rng(1).random((n, n)), np.ones(n)
    A += A.T
    A[np.diag_indices(n)] += n
    start = A[:4].copy()
    call = {
        "matvec": lambda: hetero.matvec(A, b),
        "convolve2d": lambda: hetero.convolve2d(A, np.ones((3, 3)), "same"),
        "solve_cg": lambda: hetero.solve_cg(A, b, rtol=1e-10)[0],
        "kmeans": lambda: hetero.kmeans(A, 4, init=start, max_iter=3)[0],
    }[operation]
    with hetero.use(device=opencl):
        for most in (2, 8):
            uploads.clear()
            found = [call() for _ in range(9)]
            assert 1 <= uploads.count(A.nbytes) <= most, "each call moves it until it is watched"
            with hetero.use(watch=False):
                right = call()
            for one in found:
                np.testing.assert_allclose(one, right, rtol=1e-12)
            A[7, 7] *= 3.0
    hetero.clear_memory()


def test_results_that_are_operands_later_stay_on_the_device(device):  # noqa: F811
    A = np.random.default_rng(2).random((512, 512), np.float32)
    moves = []
    with hetero.use(device="cuda:0"):
        for turn in range(9):
            before = device.uploads
            C = hetero.matmul(A, A)
            if turn == 4:
                C[3, 5] += 1.0
            D = hetero.matmul(C, A)
            np.testing.assert_allclose(D, C @ A, rtol=1e-3)
            moves.append(device.uploads - before)
            if turn == 3:
                assert "copy on cuda:0" in str(hetero.plan("matmul", C, A))
    assert moves[:4] == [3, 1, 0, 0], "A and C, until both are watched, then nothing"
    assert moves[4] == 1, "a result that was written to moves again"
    assert moves[-1] == 0
    del C, D
    hetero.clear_memory()
    assert device.live == 0


def test_results_that_nobody_uses_do_not_stay(device):  # noqa: F811
    A = np.random.default_rng(2).random((512, 512), np.float32)
    with hetero.use(device="cuda:0"):
        for _ in range(4):
            hetero.matmul(hetero.matmul(A, A), A)
        assert device.live == A.nbytes, "copies of results die with these"
        for number in range(40):
            C = hetero.matmul(A, A)
            C *= 2.0
            assert device.live <= (2 if number < 4 else 1) * A.nbytes
        assert "copy" not in str(hetero.plan("matmul", C, A)).partition("operand 2")[0]


# -- The calls of a loop, as `hetero explain --again` tells them -----------------------------------

CALLS = 30


@pytest.mark.parametrize("n", [512, 600, 800, 1024])
def test_it_is_what_happens(device, n):  # noqa: F811
    A, x = operands(n)
    expected = keeping.course(hetero.plan("matvec", A, x).problem, CALLS, planner.plan)
    ran = []
    for _ in range(CALLS):
        computed, moved = device.log.count("compute"), device.uploads
        hetero.matvec(A, x)
        on = "cuda:0" if device.log.count("compute") > computed else "cpu"
        ran.append((on, device.uploads > moved))
    steps = [s for s in expected.steps for _ in range(s.first, s.last + 1)]
    assert ran == [(step.device, step.moves == (1,)) for step in steps]
    assert sum(step.seconds for step in steps) == pytest.approx(expected.seconds)
    assert expected.without == CALLS * steps[0].seconds
    assert expected.seconds <= 2.0 * expected.without, "as `keeping.placed` promises"
    if n == 1024:
        assert [step.moves for step in expected.steps] == [(), (1,), ()]


def test_the_command(run, data):
    words = ("explain", "matvec", "8192", "8192", "--dtype", "float32", "--profile", "h200")
    for number in ("0", "-3", "100001", "x"):
        code, _, err = run(*words, "--again", number)
        assert code != 0
        assert "--again" in err
    words = ("explain", "solve_poisson", "512", "512", "--profile", "h200")
    assert len(data(*words, "--again", "60")["again"]["steps"]) == 1, "it keeps no operand"
