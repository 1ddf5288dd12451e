"""PyCUDA and cuda-bindings on a driver that fails: whichever call it is, the CPU answers, with one
warning."""

from __future__ import annotations

import contextlib

import fake_cuda
import pytest

PRODUCTS = [
    *("matmul", "matmul in parts", "matmul out=A", "matmul out overlaps A", "matmul strided out"),
    *(
        "matmul staying",
        "matmul library",
        "matmul library, a batch",
        "matvec",
        "matvec out=x",
    ),
]
CONVOLUTIONS = [f"convolve2d {m}" for m in ("direct", "separable", "fft", "fft, tiles")]
CONJUGATE_GRADIENTS = [f"solve_cg {system}" for system in ("dense", "csr", "stencil")]
POISSON = [f"solve_poisson {method}" for method in ("multigrid", "jacobi", "dst")]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The compiled driver."""
    return fake_cuda.build(str(tmp_path_factory.mktemp("driver")))


@contextlib.contextmanager
def by(package, library):
    """Runs a script on the driver, which a package calls."""
    if (why := fake_cuda.obstacle(package)) is not None:
        pytest.skip(why)
    with contextlib.closing(fake_cuda.Scripts(library, package)) as scripts:
        yield scripts.run


@pytest.fixture(scope="module", params=["pycuda", "bindings"])
def run(request, library):
    with by(request.param, library) as run:
        yield run


@pytest.fixture(scope="module")
def run_once(library):
    """By one package, what the others' calls do not change."""
    with by("bindings", library) as run:
        yield run


def succeeded(done) -> list[str]:
    """The lines a script wrote, which ended well and complained of nothing."""
    assert done.returncode == 0, done.stderr[-3000:]
    assert not done.stderr, done.stderr[-3000:]
    return done.stdout.splitlines()


@pytest.mark.parametrize("names", [PRODUCTS, CONVOLUTIONS, CONJUGATE_GRADIENTS, POISSON])
def test_whichever_call_fails_the_cpu_answers_with_one_warning(run, names):
    *lines, last = succeeded(run("failing_driver.py", *names))
    assert len(lines) == len(names)
    what, count = last.split()
    assert what == "whole"
    assert int(count) > 40 * len(names)


def test_a_whole_process_on_a_device_that_dies(run):
    total = int(succeeded(run("dying_device.py"))[-1])
    assert total > 20
    ks = range(1, total + 1, 8)
    done = run("dying_device.py", *map(str, ks))
    assert done.stdout.split() == ["right"] * len(ks)
    assert "PyCUDA" not in done.stderr
    told = done.stderr
    for k in ks:
        of_k, mark, told = told.partition(f"-- {k} ended with 0\n")
        assert mark, (k, of_k)
        assert of_k.count("\n") <= 2, (k, of_k)


@pytest.mark.parametrize("script", ["driver_names", "same_launches", "waiting_streams"])
def test_both_packages_do_what_is_asked_alike(run, script):
    assert succeeded(run(f"{script}.py"))[-1] == "right"


def test_a_context_of_pycudas_own_and_the_primary_one(library):
    with by("pycuda", library) as run:
        assert succeeded(run("own_context.py"))[-1] == "right"


@pytest.mark.parametrize("script", ["clearing_memory", "pinned_rows"])
def test_memory_is_shared_counted_given_back_and_pinned(run_once, script):
    assert succeeded(run_once(f"{script}.py"))[-1] == "right"


def test_staged_copies_through_the_compiled_loop(run):
    done = run("staged_copies.py")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == "right\n"
    (told,) = done.stderr.splitlines()  # once, that there was no pinned memory
    assert "copies are slower" in told
