"""The parts of a multigrid cycle for -div grad on boxes, on the CPU's threads.

Arrays are flat, of nz * ny * nx points in C order, all of one dtype; ``weights`` is 1 / spacing^2
along z, y and x in that dtype, 0 along an axis that is not there. Outside the box is zero. Points
are red where z + y + x is even (color 0), else black (color 1).
"""

from __future__ import annotations

import numpy as np

from .cpu import inlined, prange, serial, threaded

__all__ = ["prolong", "restrict_residual", "smooth", "solve_coarsest", "squares", "start"]


@inlined
def _near(u, row, rows, step, nx, zero):
    """The row ``step`` rows away, or zeros where there is none (the caller knows)."""
    place = row + step
    if place < 0 or place >= rows:
        return zero
    return u[place * nx : place * nx + nx]


@threaded
def start(u, f, nz, ny, nx, weights):
    """The red half of a sweep from zero: u = f / diagonal at red points, 0 at black ones."""
    inverse = 1 / (2 * (weights[0] + weights[1] + weights[2]))
    for row in prange(nz * ny):
        color = (row // ny + row % ny) & 1
        for x in range(nx):
            u[row * nx + x] = 0
        for x in range(color, nx, 2):
            u[row * nx + x] = f[row * nx + x] * inverse


@threaded
def smooth(u, f, nz, ny, nx, weights, color):
    """Half a Gauss-Seidel sweep: the points of one color solved for, the others kept.

    Per point: u read and written, f read. 10 flops in 2-D, 13 in 3-D.
    """
    rows = nz * ny
    wz, wy, wx = weights[0], weights[1], weights[2]
    inverse = 1 / (2 * (wz + wy + wx))
    zero = np.zeros(nx, u.dtype)
    for row in prange(rows):
        z = row // ny
        y = row - z * ny
        here = u[row * nx : row * nx + nx]
        rhs = f[row * nx : row * nx + nx]
        north = _near(u, row, rows, -1, nx, zero) if y > 0 else zero
        south = _near(u, row, rows, 1, nx, zero) if y + 1 < ny else zero
        above = _near(u, row, rows, -ny, nx, zero)
        below = _near(u, row, rows, ny, nx, zero)
        first = (color + z + y) & 1
        for x in range(first, nx, 2):
            west = here[x - 1] if x > 0 else u.dtype.type(0)
            east = here[x + 1] if x + 1 < nx else u.dtype.type(0)
            here[x] = inverse * (
                rhs[x]
                + wx * (west + east)
                + wy * (north[x] + south[x])
                + wz * (above[x] + below[x])
            )


@inlined
def _residual_row(u, f, row, nz, ny, nx, weights, zero, out):
    rows = nz * ny
    wz, wy, wx = weights[0], weights[1], weights[2]
    diagonal = 2 * (wz + wy + wx)
    y = row % ny
    here = u[row * nx : row * nx + nx]
    rhs = f[row * nx : row * nx + nx]
    north = _near(u, row, rows, -1, nx, zero) if y > 0 else zero
    south = _near(u, row, rows, 1, nx, zero) if y + 1 < ny else zero
    above = _near(u, row, rows, -ny, nx, zero)
    below = _near(u, row, rows, ny, nx, zero)
    for x in range(nx):
        out[x] = (
            rhs[x] - diagonal * here[x] + wy * (north[x] + south[x]) + wz * (above[x] + below[x])
        )
    for x in range(1, nx):
        out[x] += wx * here[x - 1]
    for x in range(nx - 1):
        out[x] += wx * here[x + 1]


@threaded
def squares(u, f, nz, ny, nx, weights, sums):
    """The squares of f - A u added up, row by row, then over the rows in order."""
    zero = np.zeros(nx, u.dtype)
    rows = nz * ny
    for row in prange(rows):
        r = np.empty(nx, u.dtype)
        _residual_row(u, f, row, nz, ny, nx, weights, zero, r)
        part = 0.0
        for x in range(nx):
            part += r[x] * r[x]
        sums[row] = part
    total = 0.0
    for row in range(rows):
        total += sums[row]
    return total


@threaded
def restrict_residual(
    u, f, nz, ny, nx, weights, coarse, mz, my, mx, z_first, z_taps, y_first, y_taps, x_first, x_taps
):
    """coarse = R (f - A u), a coarse row at a time from up to four fine rows along y and z."""
    zero = np.zeros(nx, u.dtype)
    taps = x_taps.shape[1]
    for coarse_row in prange(mz * my):
        z0 = coarse_row // my
        y0 = coarse_row - z0 * my
        r = np.empty(nx, u.dtype)
        line = np.zeros(nx, u.dtype)
        for a in range(taps):
            for b in range(taps):
                weight = z_taps[z0, a] * y_taps[y0, b]
                if weight != 0:
                    row = (z_first[z0] + a) * ny + y_first[y0] + b
                    _residual_row(u, f, row, nz, ny, nx, weights, zero, r)
                    for x in range(nx):
                        line[x] += weight * r[x]
        for x0 in range(mx):
            value = u.dtype.type(0)
            for c in range(taps):
                if x_taps[x0, c] != 0:
                    value += x_taps[x0, c] * line[x_first[x0] + c]
            coarse[coarse_row * mx + x0] = value


@threaded
def prolong(
    u, coarse, nz, ny, nx, mz, my, mx, z_left, z_weight, y_left, y_weight, x_left, x_weight
):
    """u += P coarse: linear interpolation along each axis, zero on the boundary."""
    for row in prange(nz * ny):
        z = row // ny
        y = row - z * ny
        line = np.zeros(mx + 2, u.dtype)  # a boundary point on each side
        for a in range(2):
            z0 = z_left[z] + a
            wz = z_weight[z] if a == 1 else 1 - z_weight[z]
            if z0 < 0 or z0 >= mz or wz == 0:
                continue
            for b in range(2):
                y0 = y_left[y] + b
                weight = wz * (y_weight[y] if b == 1 else 1 - y_weight[y])
                if y0 < 0 or y0 >= my or weight == 0:
                    continue
                begin = (z0 * my + y0) * mx
                for x in range(mx):
                    line[x + 1] += weight * coarse[begin + x]
        here = u[row * nx : row * nx + nx]
        for x in range(nx):
            left = x_left[x] + 1
            here[x] += (1 - x_weight[x]) * line[left] + x_weight[x] * line[left + 1]


@serial
def solve_coarsest(inverse, f, u):
    """u = inverse f, on the calling thread: BLAS would wake its own for it."""
    for i in range(u.size):
        row = inverse[i]
        total = u.dtype.type(0)
        for j in range(f.size):
            total += row[j] * f[j]
        u[i] = total
