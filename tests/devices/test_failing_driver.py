"""PyCUDA and cuda-bindings on a driver that fails: whichever call it is, the CPU answers, with one
warning."""

from __future__ import annotations

from pathlib import Path

import fake_cuda
import processes
import pytest


@pytest.fixture(scope="module")
def by(tmp_path_factory):
    """``by(package, script)`` runs a script on the driver, which the package calls."""
    folder = str(tmp_path_factory.mktemp("driver"))

    def run(package, script, *arguments):
        if (why := fake_cuda.obstacle(package)) is not None:
            pytest.skip(why)
        variables = {"HETERO_FAKE_CUDA": fake_cuda.build(folder), "HETERO_DRIVER": package}
        file = Path(fake_cuda.__file__).with_name(f"{script}.py")
        return processes.python(file, *arguments, **variables)

    return run


@pytest.fixture(params=["pycuda", "bindings"])
def run(request, by):
    return lambda *command: by(request.param, *command)


def lines_of(done) -> list[str]:
    """The lines that a script wrote, which complained of nothing."""
    assert not done.stderr, done.stderr[-3000:]
    return done.stdout.splitlines()


@pytest.mark.parametrize("operations", ["matmul matvec", "convolve2d", "solve_cg", "solve_poisson"])
def test_whichever_call_fails_the_cpu_answers_with_one_warning(run, operations):
    *lines, last = lines_of(run("failing_driver", *operations.split()))
    what, count = last.split()
    assert what == "whole"
    assert int(count) > 40 * len(lines)


def test_a_whole_process_on_a_device_that_dies(run):
    total = int(lines_of(run("dying_device"))[-1])
    assert total > 20
    ks = range(1, total + 1, 8)
    done = run("dying_device", *ks)
    assert done.stdout.split() == ["right"] * len(ks)
    assert "PyCUDA" not in done.stderr
    said = done.stderr
    for k in ks:
        of_k, mark, said = said.partition(f"-- {k} ended with 0\n")
        assert mark, (k, of_k)
        assert of_k.count("\n") <= 2, (k, of_k)


@pytest.mark.parametrize("script", ["same_launches", "waiting_streams"])
def test_both_packages_do_what_is_asked_alike(run, script):
    assert lines_of(run(script))[-1] == "right"


@pytest.mark.parametrize(
    ("script", "package"), [("own_context", "pycuda"), ("clearing_memory", "bindings")]
)
def test_what_one_package_shows(by, script, package):
    """A context of PyCUDA's own; memory is shared, counted and given back."""
    assert lines_of(by(package, script))[-1] == "right"


def test_copies_through_the_compiled_loop_and_of_pinned_memory(run):
    done = run("staged_copies")
    assert done.stdout == "right\n"
    (said,) = done.stderr.splitlines()  # once, that there was no pinned memory
    assert "copies are slower" in said
