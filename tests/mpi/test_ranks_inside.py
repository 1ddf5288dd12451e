"""Ranks of an `mpirun`: what `use` blocks say to them, what rounding hides from them, and what is
missing without mpi4py.

As a script this file is what the ranks run.
"""

import sys

import numpy as np
import pytest

import hetero.mpi
from hetero import errors
from hetero.profile import inventory


def test_methods_of_other_operations_and_residuals_that_float32_hides():
    launch = pytest.importorskip("test_ranks").launch
    code, output = launch(2, __file__)
    assert code == 0, output


def test_without_mpi4py_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)
    with pytest.raises(errors.PackageMissing, match="pip install mpi4py"):
        hetero.mpi.rows(3)


if __name__ == "__main__":
    inventory.is_host_alone = lambda device: False
    with hetero.use(method="blas"):
        assert hetero.mpi.solve_poisson(np.ones((3, 4)), return_info=True)[1]["converged"]
    # A third is 1e-8 from the next number of float32, in which 3 x - 1 is 0.
    begin, end = hetero.mpi.rows(4)
    thirds = 3 * np.eye(4, dtype="float32")[begin:end]
    x, info = hetero.mpi.solve_cg(thirds, np.ones(len(thirds), "float32"), rtol=1e-9)
    assert abs(x - 1 / 3).max() < 2e-8
    assert info != 0
