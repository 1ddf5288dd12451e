"""The solvers' kernels compile for real GPUs without spilling registers."""

from __future__ import annotations

import pytest
from compiled import compile_cuda

from hetero.kernels import Launch

FILES = ("multigrid.cu", "dst.cu")  # others: tests/ops/poisson/test_multigrid.py


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("real", ["float", "double"])
@pytest.mark.parametrize("file", FILES)
def test_compiles_without_spills(file, real, arch):
    launch = Launch(file, "", (("REAL", real),), 1, 1, ())
    assert compile_cuda(launch, arch) == 0
