"""What solve_cg does inside: the work of an iteration, copies, failures, loops not compiled."""

from __future__ import annotations

import numpy as np
import pytest
from test_solve_cg import systems

import hetero
from hetero.host import loops
from hetero.ops.cg.operands import System


def test_a_sparse_matrix_of_the_solves_dtype_is_not_copied():
    A = systems()["csr array"][0]
    for dtype, shared in (("float64", True), ("float32", False)):
        used, _ = System(A, np.dtype(dtype), None).on(())
        assert np.shares_memory(used.data, A.data) == shared
        assert used.data.dtype == dtype


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_the_inverse_itself_preconditions_where_multigrid_is_not_compiled(dtype, monkeypatch):
    ready = loops.is_ready
    monkeypatch.setattr(loops, "is_ready", lambda name: "multigrid" not in name and ready(name))
    A = hetero.Poisson((12, 9), dtype=dtype if dtype == "float32" else "float64")
    b = np.random.default_rng(4).random(108).astype(dtype)
    steps = []
    x, info = hetero.solve_cg(A, b, M="multigrid", device="cpu", callback=steps.append)
    assert info == 0
    assert len(steps) <= 2
    np.testing.assert_allclose(A @ x, b, rtol=0, atol=1e-4)
