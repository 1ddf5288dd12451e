"""Ranks of an `mpirun`: what `use` blocks say to them, and what is missing without mpi4py.

As a script this file is what the ranks run.
"""

import sys

import numpy as np
import pytest

import hetero.mpi
from hetero import errors
from hetero.profile import inventory


def test_use_blocks_name_a_method_of_another_operation():
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
