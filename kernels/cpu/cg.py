"""Conjugate gradients on the CPU: many iterations per call, for CSR matrices and for stencils.

An iteration makes three trips through memory (a pass is n elements read or written):
    x += alpha p,  p = z + beta p   5 passes; z = r, or the inverse diagonal times r (1 more)
    q = A p,  p.q                   the matrix, and 2 passes
    r -= alpha q,  r.r,  r.z        3 passes
x lags one step behind, so that p is read once for both of its uses; the last step of a call brings
it up to date. x therefore only ever takes a step after its residual has been checked to be finite.

A grid is (nz, ny, nx) points in C order, nz = 1 in 2-D, with ``weights`` 1 / spacing^2 along z, y
and x (0 along an axis that is not there) in the vectors' dtype. Outside of it is zero.

Sums are taken in float64, over chunks of CHUNK elements or lines of the grid, and then in order:
results do not depend on the number of threads. Loops run over slices of arrays: with indices into
the whole array Numba leaves them scalar, because an index could be negative and count from the end.

A share of fewer than SHARE unknowns is not worth waking a thread for: small systems run on the
calling thread alone. Five-point CSR, float64, one and two threads, us per iteration: 100 unknowns
2.4 and 5.6, 900 4.8 and 8.4, 3600 13.5 and 13.8, 10000 34 and 26.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import prange

from hetero.host.threads import helper, is_finite, thread_count, threaded

from .csr import CHUNK, chunk_times

__all__ = [
    "CHUNK",
    "CONVERGED",
    "INDEFINITE",
    "LIMIT",
    "NOT_FINITE",
    "cg_csr",
    "cg_stencil",
    "csr_times",
    "stencil_times",
]

CONVERGED, LIMIT, INDEFINITE, NOT_FINITE = 0, 1, 2, 3
SHARE = 4096  # unknowns per thread at least


def _shared(function: Callable[..., Any], vector: int) -> Callable[..., Any]:
    """Compile for as many threads as argument ``vector`` is long enough for."""
    kernel = threaded(function)

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        threads = arguments[vector].size // SHARE
        if threads < 2:
            return kernel.alone(*arguments)
        most = thread_count()
        if threads >= most:
            return kernel(*arguments)
        numba.set_num_threads(threads)
        try:
            return kernel(*arguments)
        finally:
            numba.set_num_threads(most)

    return call


@helper
def _lines_times(first, last, p, q, ny, nx, weights, sums):
    """q = A p for lines ``first`` ... ``last`` of the grid, of nz * ny; their shares of p.q."""
    plane, n = ny * nx, p.size
    wz, wy, wx = weights[0], weights[1], weights[2]
    centre = 2 * (wz + wy + wx)
    one, width, depth = np.uint64(1), np.uint64(nx), np.uint64(plane)
    # An absent neighbour is read from the line itself and weighs nothing, unless it is not finite:
    # but then so is p.Ap, and the iteration ends.
    none = p.dtype.type(0)
    for row in range(first, last):
        y = row % ny
        lo = np.uint64(row * nx)
        hi = lo + width
        north = width if y > 0 else np.uint64(0)
        south = width if y + 1 < ny else np.uint64(0)
        w_north = wy if y > 0 else none
        w_south = wy if y + 1 < ny else none
        for i in range(lo + one, hi - one):
            q[i] = (
                centre * p[i]
                - wx * (p[i - one] + p[i + one])
                - (w_north * p[i - north] + w_south * p[i + south])
            )
        for i in (lo, hi - one):
            total = centre * p[i] - (w_north * p[i - north] + w_south * p[i + south])
            if i > lo:
                total -= wx * p[i - one]
            if i + one < hi:
                total -= wx * p[i + one]
            q[i] = total
        if row * nx >= plane:
            for i in range(lo, hi):
                q[i] -= wz * p[i - depth]
        if row * nx + plane < n:
            for i in range(lo, hi):
                q[i] -= wz * p[i + depth]
        total = 0.0
        for i in range(lo, hi):
            total += np.float64(p[i]) * np.float64(q[i])
        sums[row] = total


@helper
def _direct(x, p, r, inverse, alpha, beta, lo, hi):
    """x += alpha p, then p = z + beta p."""
    if inverse.size:
        for i in range(np.uint64(lo), np.uint64(hi)):
            x[i] += alpha * p[i]
            p[i] = inverse[i] * r[i] + beta * p[i]
    else:
        for i in range(np.uint64(lo), np.uint64(hi)):
            x[i] += alpha * p[i]
            p[i] = r[i] + beta * p[i]


@helper
def _step(x, p, alpha, lo, hi):
    for i in range(np.uint64(lo), np.uint64(hi)):
        x[i] += alpha * p[i]


@helper
def _reduce(r, q, inverse, alpha, lo, hi):
    """r -= alpha q; returns r.r and r.z."""
    square = 0.0
    for i in range(np.uint64(lo), np.uint64(hi)):
        left = r[i] - alpha * q[i]
        r[i] = left
        square += np.float64(left) * np.float64(left)
    product = square
    if inverse.size:
        product = 0.0
        for i in range(np.uint64(lo), np.uint64(hi)):
            product += np.float64(r[i]) * np.float64(inverse[i] * r[i])
    return square, product


@helper
def _total(sums, n):
    total = 0.0
    for i in range(n):
        total += sums[i]
    return total


def cg_csr(
    indptr,
    indices,
    data,
    cut,
    repeats,
    first,
    inverse,
    x,
    r,
    p,
    q,
    sums,
    sums_z,
    state,
    bound_squared,
    limit,
):
    """Up to ``limit`` iterations for a CSR matrix; returns how they ended and how many were done.

    ``cut``, ``repeats``, ``first``: its blocks (`hetero.kernels.cpu.csr`); x, r, p, q: (n,);
    ``inverse``: (n,), the diagonal preconditioner, or (0,) for none;
    ``sums``, ``sums_z``: a float64 per chunk, scratch; ``state``: r.r, r.z and beta, kept from
    call to call (p = 0 and beta = 0 to begin with). 2 nnz + 10 n flops; the matrix and 10 passes.
    """
    n = x.size
    chunks = (n + CHUNK - 1) // CHUNK
    alpha = 0.0
    code = LIMIT
    done = 0
    while done < limit:
        beta = state[2]
        a, b = x.dtype.type(alpha), x.dtype.type(beta)
        for c in prange(chunks):
            _direct(x, p, r, inverse, a, b, c * CHUNK, min(c * CHUNK + CHUNK, n))
        alpha = 0.0
        for c in prange(chunks):
            sums[c] = chunk_times(indptr, indices, data, cut, repeats, first, p, q, np.int64(c))
        curvature = _total(sums, chunks)
        if not (is_finite(curvature) and is_finite(state[1])):
            code = NOT_FINITE
            break
        if curvature <= 0.0 or state[1] <= 0.0:  # A, or the preconditioner
            code = INDEFINITE
            break
        alpha = state[1] / curvature
        a = x.dtype.type(alpha)
        for c in prange(chunks):
            sums[c], sums_z[c] = _reduce(r, q, inverse, a, c * CHUNK, min(c * CHUNK + CHUNK, n))
        square = _total(sums, chunks)
        if not is_finite(square):
            alpha = 0.0
            code = NOT_FINITE
            break
        product = _total(sums_z, chunks)
        state[0], state[2], state[1] = square, product / state[1], product
        done += 1
        if square <= bound_squared:
            code = CONVERGED
            break
    if alpha != 0.0:
        a = x.dtype.type(alpha)
        for c in prange(chunks):
            _step(x, p, a, c * CHUNK, min(c * CHUNK + CHUNK, n))
    return code, done


def cg_stencil(nz, ny, nx, weights, inverse, x, r, p, q, sums, sums_z, state, bound_squared, limit):
    """As `cg_csr`, for the 5- or 7-point operator on a grid; ``sums``: a float64 per line."""
    rows, n = nz * ny, x.size
    lines = max(1, CHUNK // nx)  # of a chunk
    size, chunks = lines * nx, (rows + lines - 1) // lines
    alpha = 0.0
    code = LIMIT
    done = 0
    while done < limit:
        beta = state[2]
        a, b = x.dtype.type(alpha), x.dtype.type(beta)
        for c in prange(chunks):
            _direct(x, p, r, inverse, a, b, c * size, min(c * size + size, n))
        alpha = 0.0
        for c in prange(chunks):
            _lines_times(c * lines, min(c * lines + lines, rows), p, q, ny, nx, weights, sums)
        curvature = _total(sums, rows)
        if not (is_finite(curvature) and is_finite(state[1])):
            code = NOT_FINITE
            break
        if curvature <= 0.0 or state[1] <= 0.0:  # A, or the preconditioner
            code = INDEFINITE
            break
        alpha = state[1] / curvature
        a = x.dtype.type(alpha)
        for c in prange(chunks):
            sums[c], sums_z[c] = _reduce(r, q, inverse, a, c * size, min(c * size + size, n))
        square = _total(sums, chunks)
        if not is_finite(square):
            alpha = 0.0
            code = NOT_FINITE
            break
        product = _total(sums_z, chunks)
        state[0], state[2], state[1] = square, product / state[1], product
        done += 1
        if square <= bound_squared:
            code = CONVERGED
            break
    if alpha != 0.0:
        a = x.dtype.type(alpha)
        for c in prange(chunks):
            _step(x, p, a, c * size, min(c * size + size, n))
    return code, done


def csr_times(indptr, indices, data, cut, repeats, first, p, q, sums):
    """q = A p; returns p.q. ``sums``: scratch, a float64 per chunk."""
    n = q.size
    chunks = (n + CHUNK - 1) // CHUNK
    for c in prange(chunks):
        sums[c] = chunk_times(indptr, indices, data, cut, repeats, first, p, q, np.int64(c))
    return _total(sums, chunks)


def stencil_times(nz, ny, nx, weights, p, q, sums):
    """q = A p; returns p.q. ``sums``: scratch, a float64 per line of the grid."""
    rows = nz * ny
    lines = max(1, CHUNK // nx)  # of a chunk
    for c in prange((rows + lines - 1) // lines):
        _lines_times(c * lines, min(c * lines + lines, rows), p, q, ny, nx, weights, sums)
    return _total(sums, rows)


cg_csr, csr_times = _shared(cg_csr, 7), _shared(csr_times, 6)
cg_stencil, stencil_times = _shared(cg_stencil, 5), _shared(stencil_times, 4)
