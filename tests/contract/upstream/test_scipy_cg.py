"""SciPy's own tests of cg, over hetero.solve_cg.

They are shared by SciPy's ten iterative solvers, which the fixtures here narrow down to one.
"""

from __future__ import annotations

import inspect

import installed
import numpy as np
import pytest

import hetero

CG = "scipy.sparse.linalg._isolve.cg"
suite = installed.load("scipy.sparse.linalg._isolve.tests.test_iterative", {CG: hetero.solve_cg})
suite._SOLVERS = [suite.cg]

test_atol = suite.test_atol
test_convergence = suite.test_convergence
test_invalid_atol = suite.test_invalid_atol
test_maxiter = suite.test_maxiter
test_positional_error = suite.test_positional_error
test_precond_dummy = suite.test_precond_dummy
test_precond_inverse = suite.test_precond_inverse
test_x0_equals_Mb = suite.test_x0_equals_Mb
test_x0_working = suite.test_x0_working
test_zero_rhs = suite.test_zero_rhs


def run(test):
    """A test of all solvers with cg; from SciPy 1.18 on it takes an array library and batches."""
    newer = {"xp": np, "batch_A": (), "batch_b": ()}
    test(
        suite.cg,
        **{name: newer[name] for name in inspect.signature(test).parameters & newer.keys()},
    )


def test_x0_solves_problem_exactly():
    run(suite.test_x0_solves_problem_exactly)  # its own parameters are all solvers


# Tests of the module that are not run, and why.
NOT_OF_CG = {
    "test_maxiter_worsening": "SciPy skips it for all but gmres, lgmres and qmr",
    "test_show": "of tfqmr",
    "TestQMR": "of qmr",
    "TestGMRES": "of gmres",
    "test_nD": "from SciPy 1.18 on: the wording of an error, where solve_cg has its own",
}


@pytest.fixture
def solver():
    return suite.cg


@pytest.fixture(
    params=[case for case in suite.cases if case.solver is suite.cg], ids=lambda case: case.name
)
def case(request):
    return request.param


def test_every_test_is_run_or_has_a_reason():
    names = {name for name in vars(suite) if name.startswith(("test", "Test"))}
    run = {name for name in globals() if name.startswith("test")}
    assert names - run == set(NOT_OF_CG) & names


def test_that_heteros_function_is_called():
    before = suite.calls[CG]
    run(test_x0_working)
    assert suite.calls[CG] == before + 2
    kinds = {np.dtype(case.A.dtype).char for case in suite.cases if case.solver is suite.cg}
    assert kinds == set("fdFD")
