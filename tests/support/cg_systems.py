"""Systems for conjugate gradients on devices, as solvers take them, and a solve of them."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from runtimes import of_kind
from scipy.sparse.linalg import cg

from hetero.ops.solvers import cg_device
from hetero.ops.solvers import systems as types
from hetero.ops.solvers.operators import Poisson
from hetero.ops.solvers.systems import Solve
from hetero.registry import Arguments

GRIDS = {"stencil2": (33, 40), "odd2": (18, 37), "stencil3": (7, 20, 16), "odd3": (9, 3, 11)}


def long_rows(n, dtype, seed=0):
    """A sparse positive definite matrix with rows of very different lengths, some of them empty
    but for the diagonal."""
    generator = np.random.default_rng(seed)
    half = sp.random_array((n, n), density=8 / n, rng=generator).tolil()
    half[: n // 8] = 0
    half[n // 2, :] = generator.uniform(-0.05, 0.05, n)
    half = half.tocsr()
    return (half @ half.T + sp.eye_array(n)).tocsr().astype(dtype)


def system_of(kind, dtype):
    """(system as solvers take it, matrix of SciPy or NumPy) of a named kind."""
    if kind in GRIDS:
        spacing = (0.8, 1.1, 1.3)[: len(GRIDS[kind])]
        return types.Stencil(GRIDS[kind], spacing), Poisson(GRIDS[kind], spacing, dtype).tocsr()
    if kind == "csr":
        matrix = Poisson((30, 31), dtype=dtype).tocsr()
        return types.Csr(matrix.indptr, matrix.indices, matrix.data), matrix
    if kind == "csr64":
        matrix = long_rows(300, dtype)
        pointers, indices = matrix.indptr.astype(np.int64), matrix.indices.astype(np.int64)
        return types.Csr(pointers, indices, matrix.data), matrix
    matrix = Poisson((11, 12), (1.0, 1.2), dtype).tocsr().toarray()
    if kind == "dense, columns":
        matrix = np.asfortranarray(matrix)
    strides = tuple(s // matrix.itemsize for s in matrix.strides)
    return types.Dense(matrix, len(matrix), strides), matrix


KINDS = (*GRIDS, "csr", "csr64", "dense", "dense, columns")


def vectors(n, dtype, seed=1):
    """b and a start."""
    generator = np.random.default_rng(seed)
    return (generator.standard_normal(n).astype(dtype) for _ in range(2))


def solve(used, system, b, x0, **options):
    """(outcome, x) from a copy of the start."""
    x = x0.copy()
    M = options.pop("preconditioner", None)
    until = {"rtol": 0.0, "atol": 0.0, "maxiter": 2000} | options
    asked = Solve(lambda devices: (system, M), **until)
    return cg_device.solve(used, Arguments((b,), x, asked), b.dtype), x


def on_device(device, call, *arrays, offset=0):
    """What ``call(*buffers)`` gives on copies of arrays, and what the buffers hold afterwards."""
    found = [np.empty_like(array) for array in arrays]
    with device.active():
        buffers, _owners = zip(*(device.allocate(x.nbytes + offset) for x in arrays), strict=True)
        if offset:
            buffers = [buffer + offset for buffer in buffers]
        for array, buffer in zip(arrays, buffers, strict=True):
            device.upload(array, buffer)
        result = call(*buffers)
        for array, buffer in zip(found, buffers, strict=True):
            device.download(buffer, array)
    return result, found


def recurrence(A, b, x, tolerance, maxiter, M=None):
    """SciPy's iterates in float64, the start first."""
    A, b, x = A.astype(float), b.astype(float), x.astype(float)
    iterates = [x.copy()]
    M = None if M is None else sp.diags_array(M)
    until = {"rtol": 0.0, "atol": tolerance, "maxiter": maxiter}
    cg(A, b, x, M=M, **until, callback=lambda x: iterates.append(x.copy()))
    return iterates


def gpus(parts):
    """That many GPUs; one may come several times."""
    found = of_kind("cuda")
    return [found[i % len(found)] for i in range(parts)]
