"""What solve_cg does inside: the work of an iteration, copies, failures, loops not compiled."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy.sparse.linalg import aslinearoperator
from test_solve_cg import dense, systems

import hetero
from hetero import devices
from hetero.errors import DeviceError
from hetero.host import loops
from hetero.ops.cg.system import System


@pytest.mark.parametrize(
    ("kind", "entry_bytes"), [("dense", 8), ("csr array", 12), ("poisson", 0), ("operator", 0)]
)
def test_what_an_iteration_does(kind, entry_bytes):
    """Each entry once, of sparse matrices with its column, and ten passes over a vector."""
    A = aslinearoperator(dense()) if kind == "operator" else systems()[kind][0]
    n = A.shape[0]
    plan = hetero.plan("cg", A, np.ones(n), rtol=1e-8, maxiter=7)
    work = plan.chosen.implementation.work(plan.problem, {"kind": "cpu"})
    entries = {"dense": n * n, "csr array": getattr(A, "nnz", 0), "poisson": 5 * n, "operator": n}
    assert work.flops == 2 * entries[kind] + 10 * n
    assert work.bytes == entry_bytes * entries[kind] + 80 * n
    assert work.repeat == 7
    assert work.dims == ((n, entries[kind] // n) if kind == "csr array" else (n,))


def test_a_sparse_matrix_of_the_solves_dtype_is_not_copied():
    A = systems()["csr array"][0]
    for dtype, shared in (("float64", True), ("float32", False)):
        used, _ = System(A, np.dtype(dtype), None).on(())
        assert np.shares_memory(used.data, A.data) == shared
        assert used.data.dtype == dtype


def test_a_device_that_fails_hands_over(opencl, monkeypatch, warnings_of):
    A = systems()["csr array"][0]
    b = np.random.default_rng(9).random(A.shape[0])
    device = devices.get(opencl)
    launched = []
    launch = type(device).launch

    def failing(self, *arguments, **options):
        launched.append(1)
        if len(launched) > 40:
            raise DeviceError("it fell over")
        return launch(self, *arguments, **options)

    monkeypatch.setattr(type(device), "launch", failing)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x, info = hetero.solve_cg(A, b, rtol=1e-9, device=opencl)
    assert info == 0
    assert np.linalg.norm(b - A @ x) <= 1e-9 * np.linalg.norm(b)
    assert len(warnings_of()) == 1
    assert "it fell over" in warnings_of()[0]


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
