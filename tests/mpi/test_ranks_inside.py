"""Ranks of an `mpirun`: what `use` blocks say to them, and what is missing without mpi4py."""

import sys
from pathlib import Path

import pytest
from test_ranks import launch

import hetero.mpi
from hetero import errors


def test_use_blocks_name_a_method_of_another_operation():
    code, output = launch(4, Path(__file__).with_name("inside.py"))
    assert code == 0, output


def test_without_mpi4py_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)
    with pytest.raises(errors.PackageMissing, match="pip install mpi4py"):
        hetero.mpi.rows(3)
