"""solve_cg(method="hybrid"): A p on a device, vectors and scalars on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from fakes import noting

import hetero
from hetero import devices
from hetero.arrays import describe
from hetero.errors import MethodNotAvailable
from hetero.moving import transfer

GRID = (9, 14)
N = 126


def systems(dtype):
    B = np.random.default_rng(1).random((N, N)) - 0.5
    full = (B @ B.T + np.diag(np.linspace(1.0, 40.0, N))).astype(dtype)
    poisson = hetero.Poisson(GRID, dtype=dtype)
    return {
        "dense": (full, full),
        "dense F": (np.asfortranarray(full), full),
        "csr": (sp.csr_array(poisson.tocsr()), poisson.tocsr().toarray()),
        "poisson": (poisson, poisson.tocsr().toarray()),
        "poisson 3d": ((box := hetero.Poisson((3, 6, 7), dtype=dtype)), box.tocsr().toarray()),
    }


@pytest.mark.parametrize("M", [None, "jacobi"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", systems("float32"))
def test_it_agrees_and_shows_every_iterate(opencl, name, dtype, M):
    A, whole = systems(dtype)[name]
    b = np.random.default_rng(2).random(N).astype(dtype)
    x0 = np.linspace(-1.0, 1.0, N).astype(dtype)
    rtol = 1e-5 if dtype == "float32" else 1e-10
    known = {"rtol": rtol, "M": M, "x0": x0}
    assert hetero.plan("cg", A, b, device=opencl, method="hybrid").chosen.method == "hybrid"
    seen, expected = [], []
    x, info = hetero.solve_cg(
        A, b, **known, callback=lambda x: seen.append(x.copy()), device=opencl, method="hybrid"
    )
    assert not devices.troubles()
    assert info == 0
    assert x.dtype == dtype
    assert np.linalg.norm(b - whole.astype(float) @ x) <= rtol * np.linalg.norm(b)
    assert (seen[-1] == x).all()
    hetero.solve_cg(A, b, **known, callback=lambda x: expected.append(x.copy()), device="cpu")
    assert len(seen) == pytest.approx(len(expected), abs=2)
    tolerance = 1e3 * np.finfo(dtype).eps * abs(expected[-1]).max()
    np.testing.assert_allclose(seen[:5], expected[:5], rtol=0, atol=tolerance)


def test_each_iteration_moves_p_there_and_a_p_back(opencl, monkeypatch):
    """A matrix on the host goes there once, one that is there stays."""
    A, _ = systems("float64")["dense"]
    kind, moved, before = type(devices.get(opencl)), {"upload": [], "download": []}, []
    with hetero.use(device=opencl, results="device"):
        there, b = hetero.matmul(A, np.eye(N)), hetero.matvec(A, A[0])
    for way, sizes in moved.items():

        def note(*arguments, sizes=sizes):
            sizes.append(next(a for a in arguments if isinstance(a, np.ndarray)).nbytes)

        noting(monkeypatch, kind, way, note)
    seen, placed = [], {"device": opencl, "method": "hybrid"}
    hetero.solve_cg(A, A[0], callback=seen.append, **placed)
    assert len(seen) > 3
    assert moved["upload"].count(A.nbytes) == 1
    # The residual at the end is a product too.
    assert moved["download"] == [8 * N] * (len(seen) + 1)
    moved["upload"].clear()
    # What else may still be writing the matrix is waited for.
    monkeypatch.setattr(transfer, "follow", lambda device, operands: before.append([*operands]))
    x, info = hetero.solve_cg(there, b, rtol=1e-10, **placed)
    assert not devices.troubles()
    assert (info, describe(x).location, max(moved["upload"])) == (0, opencl, 8 * N)
    assert any(o.shape == (N, N) for operands in before for o in operands)
    np.testing.assert_allclose(hetero.to_host(x), A[0], rtol=0, atol=1e-8)


def test_a_multigrid_cycle_is_not_its(opencl):
    A = hetero.Poisson(GRID)
    with pytest.raises(MethodNotAvailable, match="a diagonal preconditioner at most"):
        hetero.solve_cg(A, np.ones(N), M="multigrid", device=opencl, method="hybrid")
