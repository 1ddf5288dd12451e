"""The solvers' kernels compile for real GPUs without spilling registers."""

from __future__ import annotations

import pytest
from test_kernels import compile_cuda

from hetero.kernels import Launch

FILES = ("multigrid.cu", "multigrid_coarse.cu", "multigrid_squares.cu", "dst.cu")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("real", ["float", "double"])
@pytest.mark.parametrize("file", FILES)
def test_compiles_without_spills(file, real, arch):
    launch = Launch(file, "", (("REAL", real),), 1, 1, ())
    assert compile_cuda(launch, arch) == 0
