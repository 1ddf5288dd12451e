"""Conjugate gradients on the CPU: many iterations per call, for CSR matrices and for stencils.

An iteration makes three trips through memory (a pass is n elements read or written):
    x += alpha p,  p = z + beta p   5 passes; z = r, or the inverse diagonal times r (1 more)
    q = A p,  p.q                   the matrix, and 2 passes
    r -= alpha q,  r.r,  r.z        3 passes
x lags one step behind, so that p is read once for both of its uses; the last step of a call brings
it up to date. x therefore only ever takes a step after its residual has been checked to be finite.

A grid is (nz, ny, nx) points in C order, nz = 1 in 2-D, with ``weights`` 1 / spacing^2 along z, y
and x (0 along an axis that is not there) in the vectors' dtype. Outside of it is zero.

The matrices of regular grids repeat themselves: row after row has the same entries, one column
further. `runs` finds such stretches; there only the first row is read, and the product is a sum of
shifted vectors, which vectorises and moves no matrix. Anything else is done row by row. A matrix is
cut into chunks of CHUNK rows, what a thread takes at a time, and those into blocks that are either
repeats or not: block b is rows cut[b] ... cut[b + 1], chunk c blocks first[c] ... first[c + 1].

Sums are taken in float64, over chunks of CHUNK elements or lines of the grid, and then in order:
results do not depend on the number of threads. Loops run over slices of arrays: with indices into
the whole array Numba leaves them scalar, because an index could be negative and count from the end.

Small systems run on the calling thread alone: an iteration wakes the others three times. Five-point
grid, float64, us per iteration of one thread and of all: on 2 cores 16384 unknowns 34 and 67, 65536
120 and 101, 262144 685 and 342; on 16 cores 24 and 143, 97 and 163, 720 and 270.
"""

from __future__ import annotations

import numba  # noqa: F401  # whole, before its modules, which another thread may be importing
import numpy as np
from numba.extending import overload

from hetero.host.threads import by_size, inlined, is_finite, no_overlap, part

from .vectors import add_scaled, product, total

LIMIT, CONVERGED, INDEFINITE, NOT_FINITE = range(4)  # as in cg_scalars.cu
CHUNK = 2048  # rows: four such vectors of float64 are 64 KB, in reach of an L1 or L2 cache
_LEAST = 16  # rows that a run must have
_FEW = 256  # rows; runs of a smaller matrix are not worth looking for
_NO_REPEATS, _ONE_BLOCK = np.zeros(1, np.bool_), np.array([0, 1])
SHARED = 3 << 14  # unknowns from which a second thread pays


@by_size()
def _mark(team, indices, indptr, data, same):
    """Mark the rows that are the row before, one column further."""
    _same_as_previous(team, (same.size + CHUNK - 1) // CHUNK, (indptr, indices, data, same))


@part
def _same_as_previous(start, stop, indptr, indices, data, same):
    no_overlap()
    n = same.size
    for c in range(start, stop):
        for i in range(max(1, c * CHUNK), min(n, c * CHUNK + CHUNK)):
            length = indptr[i + 1] - indptr[i]
            equal = length == indptr[i] - indptr[i - 1]
            if equal:
                for j in range(indptr[i], indptr[i + 1]):
                    if indices[j] != indices[j - length] + 1 or data[j] != data[j - length]:
                        equal = False
                        break
            same[i] = equal


def runs(
    indptr: np.ndarray, indices: np.ndarray, data: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cut a square matrix, in compressed rows in any order of columns, into runs of repeated rows
    and the rest: ``cut``, (blocks + 1,), ``repeats``, (blocks,), and ``first``, (chunks + 1,)."""
    n = indptr.size - 1
    if n < _FEW:  # one block without repeats, in one chunk
        return np.array([0, n]), _NO_REPEATS, _ONE_BLOCK
    same = np.zeros(n, np.bool_)
    _mark(indices, indptr, data, same)
    starts = np.flatnonzero(~same)
    ends = np.append(starts[1:], n)
    long = ends - starts >= _LEAST
    marks = np.zeros(n + 1, np.bool_)
    marks[starts[long]] = marks[ends[long]] = marks[::CHUNK] = marks[n] = True
    cut = np.flatnonzero(marks)
    repeats = long[np.searchsorted(starts, cut[:-1], "right") - 1]
    return cut, repeats, np.searchsorted(cut, np.append(np.arange(0, n, CHUNK), n))


@inlined
def _block_times(indptr, indices, data, p, q, lo, repeats):
    """q = A p for the rows lo ... lo + len(q), which are one block.

    Unsigned indices spare a test of each for being negative.
    """
    n = q.size
    j = np.uint64(indptr[lo])
    end = np.uint64(indptr[lo + 1])
    if not repeats:
        for i in range(n):
            end = np.uint64(indptr[lo + i + 1])
            total = p.dtype.type(0)
            while j < end:
                total += data[j] * p[np.uint64(indices[j])]
                j += np.uint64(1)
            q[i] = total
        return
    for i in range(n):
        q[i] = 0
    while end - j >= np.uint64(3):
        at_a = indices[j]
        at_b = indices[j + np.uint64(1)]
        at_c = indices[j + np.uint64(2)]
        a = p[at_a : at_a + n]
        b = p[at_b : at_b + n]
        c = p[at_c : at_c + n]
        u = data[j]
        v = data[j + np.uint64(1)]
        w = data[j + np.uint64(2)]
        for i in range(n):
            q[i] += u * a[i] + v * b[i] + w * c[i]
        j += np.uint64(3)
    while j < end:
        at_a = indices[j]
        a = p[at_a : at_a + n]
        u = data[j]
        for i in range(n):
            q[i] += u * a[i]
        j += np.uint64(1)


@inlined
def _line_times(p, q, row, ny, weights):
    """q = A p for one line of the grid: len(q) points, line number ``row`` of nz * ny."""
    nx = q.size
    lo = row * nx
    n = p.size
    y = row % ny
    wz, wy, wx = weights[0], weights[1], weights[2]
    centre = 2 * (wz + wy + wx)
    here = p[lo : lo + nx]
    # An absent neighbour is read from the line itself and weighs nothing, unless it is not finite:
    # but then so is p.Ap, and the iteration ends.
    none = p.dtype.type(0)
    north = p[lo - nx : lo] if y > 0 else here
    south = p[lo + nx : lo + 2 * nx] if y + 1 < ny else here
    w_north = wy if y > 0 else none
    w_south = wy if y + 1 < ny else none
    for i in range(1, nx - 1):
        q[i] = (
            centre * here[i]
            - wx * (here[i - 1] + here[i + 1])
            - (w_north * north[i] + w_south * south[i])
        )
    for i in (0, nx - 1):
        total = centre * here[i] - (w_north * north[i] + w_south * south[i])
        if i > 0:
            total -= wx * here[i - 1]
        if i + 1 < nx:
            total -= wx * here[i + 1]
        q[i] = total
    plane = ny * nx
    if lo >= plane:
        above = p[lo - plane : lo - plane + nx]
        for i in range(nx):
            q[i] -= wz * above[i]
    if lo + plane < n:
        below = p[lo + plane : lo + plane + nx]
        for i in range(nx):
            q[i] -= wz * below[i]


@part
def _csr_parts(start, stop, indptr, indices, data, cut, repeats, first, p, q, sums):
    no_overlap()
    for c in range(start, stop):
        for b in range(first[c], first[c + 1]):
            lo = cut[b]
            _block_times(indptr, indices, data, p, q[lo : cut[b + 1]], lo, repeats[b])
        lo = c * CHUNK
        hi = min(lo + CHUNK, q.size)
        sums[c] = product(p[lo:hi], q[lo:hi])


@part
def _stencil_parts(start, stop, ny, nx, weights, p, q, sums):
    no_overlap()
    for row in range(start, stop):
        lo = row * nx
        hi = lo + nx
        _line_times(p, q[lo:hi], row, ny, weights)
        sums[row] = product(p[lo:hi], q[lo:hi])


@part
def _direct_parts(start, stop, size, x, p, r, inverse, alpha, beta):
    """x += alpha p, then p = z + beta p."""
    no_overlap()
    lo, hi = start * size, min(stop * size, x.size)
    x, p, r, inverse = x[lo:hi], p[lo:hi], r[lo:hi], inverse[lo:hi]
    if inverse.size:
        for i in range(x.size):
            x[i] += alpha * p[i]
            p[i] = inverse[i] * r[i] + beta * p[i]
    else:
        for i in range(x.size):
            x[i] += alpha * p[i]
            p[i] = r[i] + beta * p[i]


@part
def _reduce_parts(start, stop, size, r, q, inverse, alpha, sums, sums_z):
    """r -= alpha q; the sums of r.r and r.z."""
    no_overlap()
    for c in range(start, stop):
        lo = c * size
        hi = min(lo + size, r.size)
        left, gone, scale = r[lo:hi], q[lo:hi], inverse[lo:hi]
        square = 0.0
        for i in range(left.size):
            value = left[i] - alpha * gone[i]
            left[i] = value
            square += np.float64(value) * np.float64(value)
        sums[c] = sums_z[c] = square
        if scale.size:
            product_z = 0.0
            for i in range(left.size):
                product_z += np.float64(left[i]) * np.float64(scale[i] * left[i])
            sums_z[c] = product_z


def _products(team, matrix, p, q, sums):
    """q = A p; each chunk's, or line's, share of p.q goes to ``sums``."""


@overload(_products, inline="always")
def _products_of(team, matrix, p, q, sums):
    if len(matrix) == 6:
        return lambda team, matrix, p, q, sums: _csr_parts(team, sums.size, matrix + (p, q, sums))
    return lambda team, matrix, p, q, sums: _stencil_parts(team, sums.size, matrix + (p, q, sums))


@by_size(SHARED)
def solve(team, x, matrix, size, inverse, r, p, q, sums, sums_z, state, bound_squared, limit):
    """Up to ``limit`` iterations; returns how they ended and how many were done.

    The numbers are the steps of Saad's algorithm 9.1 (`hetero.ops.solvers.cg_loop`): x takes its
    step one iteration late, in the pass that reads p anyway.

    2 nnz + 10 n flops each; the matrix and 10 passes.

    Parameters
    ----------
    x, r, p, q : (n,) arrays
    matrix : tuple
        Compressed rows, (indptr, indices, data), and their blocks (`runs`), (cut, repeats,
        first); or of a grid (ny, nx, weights).
    size : int
        Of the chunks that are added up first: CHUNK, or the points of a line of the grid.
    inverse : (n,) or (0,) array
        The diagonal preconditioner; none.
    sums, sums_z : arrays of float64
        Scratch, one for each chunk.
    state : (3,) array of float64
        r.r, r.z and beta, kept from call to call; p = 0 and beta = 0 to begin with.
    """
    chunks = sums.size
    alpha = 0.0
    code = LIMIT
    done = 0
    while done < limit:
        beta = state[2]
        given = size, x, p, r, inverse, x.dtype.type(alpha), x.dtype.type(beta)
        _direct_parts(team, chunks, given)  # 4. of the iteration before, 8.
        alpha = 0.0
        _products(team, matrix, p, q, sums)  # 3.
        curvature = total(sums)
        if not (is_finite(curvature) and is_finite(state[1])):
            code = NOT_FINITE
            break
        if curvature <= 0.0 or state[1] <= 0.0:  # A, or the preconditioner
            code = INDEFINITE
            break
        alpha = state[1] / curvature
        _reduce_parts(team, chunks, (size, r, q, inverse, x.dtype.type(alpha), sums, sums_z))  # 5.
        square = total(sums)
        if not is_finite(square):
            alpha = 0.0
            code = NOT_FINITE
            break
        rho = total(sums_z)  # 6., 7.
        state[0], state[2], state[1] = square, rho / state[1], rho
        done += 1
        if square <= bound_squared:
            code = CONVERGED
            break
    if alpha != 0.0:
        add_scaled(team, chunks, (size, x, p, x.dtype.type(alpha)))  # 4. of the last one
    return code, done


@by_size(SHARED)
def times(team, p, matrix, q, sums):
    """q = A p; returns p.q. ``sums``: as in `solve`."""
    _products(team, matrix, p, q, sums)
    return total(sums)
