"""Real PyCUDA on a driver that fails: whichever call it is, the CPU answers, with one warning."""

from __future__ import annotations

import fake_cuda
import pytest

pytestmark = pytest.mark.skipif(fake_cuda.obstacle() is not None, reason=str(fake_cuda.obstacle()))

PRODUCTS = [
    *("matmul", "matmul in parts", "matmul out=A", "matmul out overlaps A", "matmul strided out"),
    *(
        "matmul staying",
        "matmul library",
        "matmul library, a batch",
        "matvec",
        "matvec out=x",
        "matvec library",
    ),
]
CONVOLUTIONS = [f"convolve2d {m}" for m in ("direct", "separable", "fft", "overlap_save")]
CONJUGATE_GRADIENTS = [f"solve_cg {system}" for system in ("dense", "csr", "stencil")]
POISSON = [f"solve_poisson {method}" for method in ("multigrid", "cg", "jacobi", "dst")]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The compiled driver."""
    return fake_cuda.build(str(tmp_path_factory.mktemp("driver")))


def succeeded(done) -> list[str]:
    """The lines a script wrote, which ended well and complained of nothing."""
    assert done.returncode == 0, done.stderr[-3000:]
    assert not done.stderr, done.stderr[-3000:]
    return done.stdout.splitlines()


@pytest.mark.parametrize("names", [PRODUCTS, CONVOLUTIONS, CONJUGATE_GRADIENTS, POISSON])
def test_whichever_call_fails_the_cpu_answers_with_one_warning(library, names):
    *lines, last = succeeded(fake_cuda.run("failing_driver.py", *names, library=library))
    assert len(lines) == len(names)
    what, count = last.split()
    assert what == "whole"
    assert int(count) > 40 * len(names)


def test_a_whole_process_on_a_device_that_dies(library):
    sequence = succeeded(fake_cuda.run("dying_device.py", "count", library=library))
    total = int(sequence[-1])
    assert total > 20
    for k in range(1, total + 1, 4):
        wish = f"{k},good"
        done = fake_cuda.run("dying_device.py", library=library, HETERO_FAKE_CUDA_FAIL=wish)
        assert done.returncode == 0, (k, done.stderr[-2000:])
        assert done.stdout.splitlines()[-1] == "right", (k, done.stderr[-2000:])
        assert done.stderr.count("\n") <= 2, (k, done.stderr)
        assert "PyCUDA" not in done.stderr, (k, done.stderr)


def test_short_of_memory(library):
    assert succeeded(fake_cuda.run("short_of_memory.py", library=library))[-1] == "right"


def test_copies_of_operands_are_in_the_pool_and_make_room(library):
    assert succeeded(fake_cuda.run("kept_on_driver.py", library=library))[-1] == "right"


def test_memory_is_counted_and_given_back(library):
    assert succeeded(fake_cuda.run("clearing_memory.py", library=library))[-1] == "right"


def test_set_aside_and_reset(library):
    assert succeeded(fake_cuda.run("set_aside.py", library=library))[-1] == "right"


def test_streams_wait_for_each_other_and_the_host_does_not(library):
    assert succeeded(fake_cuda.run("waiting_streams.py", library=library))[-1] == "right"


def test_rows_of_pinned_matrices(library):
    assert succeeded(fake_cuda.run("pinned_rows.py", library=library))[-1] == "right"


def test_staged_copies_through_the_compiled_loop(library):
    done = fake_cuda.run("staged_copies.py", library=library)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == "right\n"
    (told,) = done.stderr.splitlines()  # once, that there was no pinned memory
    assert "copies are slower" in told
