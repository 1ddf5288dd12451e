"""PyCUDA and cuda-bindings on a driver that fails: whichever call it is, the CPU answers, with one
warning."""

from __future__ import annotations

import contextlib
import functools

import fake_cuda
import pytest


@pytest.fixture(scope="module")
def by(tmp_path_factory):
    """``by(package)`` runs scripts on the compiled driver, which the package calls."""
    folder = tmp_path_factory.mktemp("driver")
    with contextlib.ExitStack() as stack:

        @functools.cache
        def run(package):
            if (why := fake_cuda.obstacle(package)) is not None:
                pytest.skip(why)
            scripts = fake_cuda.Scripts(fake_cuda.build(str(folder)), package)
            return stack.enter_context(contextlib.closing(scripts)).run

        yield run


@pytest.fixture(params=["pycuda", "bindings"])
def run(request, by):
    return by(request.param)


def succeeded(done) -> list[str]:
    """The lines a script wrote, which ended well and complained of nothing."""
    assert done.returncode == 0, done.stderr[-3000:]
    assert not done.stderr, done.stderr[-3000:]
    return done.stdout.splitlines()


@pytest.mark.parametrize("operations", ["matmul matvec", "convolve2d", "solve_cg", "solve_poisson"])
def test_whichever_call_fails_the_cpu_answers_with_one_warning(run, operations):
    *lines, last = succeeded(run("failing_driver.py", *operations.split()))
    what, count = last.split()
    assert what == "whole"
    assert int(count) > 40 * len(lines)


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


@pytest.mark.parametrize(
    ("script", "package"),
    [("own_context", "pycuda"), ("clearing_memory", "bindings"), ("pinned_rows", "bindings")],
)
def test_what_one_package_shows(by, script, package):
    """A context of PyCUDA's own; memory is shared, counted, given back and pinned."""
    assert succeeded(by(package)(f"{script}.py"))[-1] == "right"


def test_staged_copies_through_the_compiled_loop(run):
    done = run("staged_copies.py")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == "right\n"
    (told,) = done.stderr.splitlines()  # once, that there was no pinned memory
    assert "copies are slower" in told
