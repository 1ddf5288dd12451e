"""Poisson's equation on the CPU's threads: one pass of a multigrid cycle over a grid, a sweep of
Jacobi's method, and norms of the residual.

Grids are boxes of nz * ny * nx points in C order, zero outside; a 2-D grid has ny = 1. A pass does,
while a few planes are in the cache, all that a cycle does at one level on its way down or up:

- reads u, or starts from zero, or adds the correction interpolated from the coarser grid;
- smooths: one red-black sweep of successive over-relaxation;
- writes u, and restricts the residual to the coarser grid or adds up its squares.

Tiles are worked on independently, each with as many points around it as its own depend on. Within
one the stages follow each other plane by plane: when plane p is read, the color that comes first is
relaxed in plane p - 1, the second in p - 2, and the residual taken in p - 3.

A plane keeps its two colors apart, so that every loop has unit stride. A point is red where z + y +
x is even. Of x = 2 i and 2 i + 1, pair i of a row, one is red and one black; all neighbours of one
along z and y are the other color's points of pair i; those along x are the other point of its own
pair, and one of the pair before (for x even) or after it (for x odd).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.host.threads import by_size, compiled, helper, no_overlap, part

from ..multigrid.plan import DOWN, DOWN_FROM_ZERO, UP
from ..multigrid.plan import HALO as _HALO

_SLOTS = 5  # planes in work at once


@helper
def _split(row, n, plane, even, k, pad):
    """Put x = 2 i and 2 i + 1 of a row apart, into the colors ``even`` and 1 - ``even``."""
    odd = 1 - even
    for i in range(n // 2):
        plane[even, k, i + pad] = row[2 * i]
        plane[odd, k, i + pad] = row[2 * i + 1]
    if n & 1:
        plane[even, k, n // 2 + pad] = row[n - 1]
        plane[odd, k, n // 2 + pad] = 0


@helper
def _merge(plane, even, k, pad, row, n):
    """The reverse of `_split`."""
    odd = 1 - even
    for i in range(n // 2):
        row[2 * i] = plane[even, k, i + pad]
        row[2 * i + 1] = plane[odd, k, i + pad]
    if n & 1:
        row[n - 1] = plane[even, k, n // 2 + pad]


@helper
def _correct(row, n, line, coarse, z, y, mz, my, z_left, z_share, y_left, y_share, x_left, x_share):
    """Add the coarse grid to the row (z, y), interpolated; ``line`` is room for a coarse row."""
    mx = len(line) - 2
    for x in range(mx + 2):
        line[x] = 0
    for a in range(2):
        z0 = z_left[z] + a
        share_z = z_share[z] if a == 1 else 1 - z_share[z]
        for b in range(2):
            y0 = y_left[y] + b
            share = share_z * (y_share[y] if b == 1 else 1 - y_share[y])
            if 0 <= z0 < mz and 0 <= y0 < my and share != 0:
                begin = (z0 * my + y0) * mx
                for x in range(mx):
                    line[x + 1] += share * coarse[begin + x]
    for x in range(n):
        left = x_left[x] + 1
        row[x] += line[left] + x_share[x] * (line[left + 1] - line[left])


@helper
def _relax(above, here, below, f, color, first_odd, nx, weights, omega):
    """Over-relax the points of one color of a plane; ``first_odd``: whether row 0's have odd x."""
    wz, wy, wx = weights[0], weights[1], weights[2]
    inverse = 1 / (2 * (wz + wy + wx))
    rows, pairs = f.shape[1], f.shape[2]
    other = 1 - color
    for k in range(rows):
        odd = (first_odd + k) & 1
        if wy == 0:
            for i in range(pairs):
                near = wx * (here[other, k + 1, i + 1] + here[other, k + 1, i + 2 * odd])
                near += wz * (above[other, k + 1, i + 1] + below[other, k + 1, i + 1])
                old = here[color, k + 1, i + 1]
                here[color, k + 1, i + 1] = old + omega * (inverse * (f[color, k, i] + near) - old)
        else:
            for i in range(pairs):
                near = wx * (here[other, k + 1, i + 1] + here[other, k + 1, i + 2 * odd])
                near += wz * (above[other, k + 1, i + 1] + below[other, k + 1, i + 1])
                near += wy * (here[other, k, i + 1] + here[other, k + 2, i + 1])
                old = here[color, k + 1, i + 1]
                here[color, k + 1, i + 1] = old + omega * (inverse * (f[color, k, i] + near) - old)
        if odd and nx & 1:
            here[color, k + 1, pairs] = 0


@helper
def _residual(above, here, below, f, k, first_odd, nx, weights, r):
    """f - A u in row k of a plane, by color; ``first_odd``: whether color 0 has odd x."""
    wz, wy, wx = weights[0], weights[1], weights[2]
    diagonal = 2 * (wz + wy + wx)
    pairs = f.shape[2]
    for color in range(2):
        other = 1 - color
        odd = (first_odd + color) & 1
        for i in range(pairs):
            near = wx * (here[other, k + 1, i + 1] + here[other, k + 1, i + 2 * odd])
            near += wz * (above[other, k + 1, i + 1] + below[other, k + 1, i + 1])
            near += wy * (here[other, k, i + 1] + here[other, k + 2, i + 1])
            r[color, 0, i] = f[color, k, i] - diagonal * here[color, k + 1, i + 1] + near
        if odd and nx & 1:
            r[color, 0, pairs - 1] = 0


@helper
def _restrict(row, first, taps, out):
    """A row restricted along x."""
    for x in range(len(first)):
        i = first[x]
        out[x] = taps[x, 0] * row[i] + taps[x, 1] * row[i + 1]
        out[x] += taps[x, 2] * row[i + 2] + taps[x, 3] * row[i + 3]


@helper
def _add(sums, side, y, line, share):
    """Add to row y of one side's sums, if it is there."""
    if 0 <= y < sums.shape[1] and share != 0:
        for x in range(sums.shape[2]):
            sums[side, y, x] += share * line[x]


@helper
def _hand_over(sums, coarse, begin, keep):
    """Write the left plane's sums from ``begin`` on, if ``keep``; put the right one's there."""
    rows, mx = sums.shape[1], sums.shape[2]
    for y in range(rows):
        for x in range(mx):
            if keep:
                coarse[begin + y * mx + x] = sums[0, y, x]
            sums[0, y, x] = sums[1, y, x]
            sums[1, y, x] = 0


@helper
def _tile(u, f, out, coarse, shapes, weights, omega, first, mode, lefts, shares, taps, tile):
    """A tile's part of `sweep`; returns the squares of the residual that it has met."""
    nz, ny, nx = shapes[0], shapes[1], shapes[2]
    mz, my, mx = shapes[3], shapes[4], shapes[5]
    z_left, y_left, x_left = lefts[:nz], lefts[nz : nz + ny], lefts[nz + ny : nz + ny + nx]
    z_share, y_share, x_share = shares[:nz], shares[nz : nz + ny], shares[nz + ny :]
    x_first = lefts[nz + ny + nx :]
    pairs = (nx + 1) // 2
    z_scale = (mz + 1) / (nz + 1) if mz != nz else 1.0
    y_scale = (my + 1) / (ny + 1) if my != ny else 1.0
    down = mode <= DOWN_FROM_ZERO
    z_own, z_end, z_last, z_coarse, z_coarse_end = tile[0], tile[1], tile[2], tile[3], tile[4]
    y_own, y_end, y_last, y_coarse, y_coarse_end = tile[5], tile[6], tile[7], tile[8], tile[9]
    if not down:
        z_last, y_last = z_end, y_end
    low, high = max(y_own - _HALO, 0), min(y_last + _HALO, ny)
    # Planes in work, by color in the order of relaxing; those of u with zeros around.
    us = np.zeros((_SLOTS, 2, high - low + 2, pairs + 2), u.dtype)
    fs = np.zeros((_SLOTS, 2, high - low, pairs), u.dtype)
    r = np.zeros((2, 1, pairs), u.dtype)
    row = np.zeros(nx + 4, u.dtype)
    line = np.zeros(mx + 2, u.dtype)
    sums = np.zeros((2, y_coarse_end - y_coarse, mx), u.dtype)  # of left_plane and of the next
    left_plane = z_coarse - 1
    total = 0.0
    for step in range(z_own - _HALO, z_last + _HALO):
        # Read plane p.
        p = step
        here, f_here = us[p % _SLOTS], fs[p % _SLOTS]
        if p < 0 or p >= nz or mode == DOWN_FROM_ZERO:
            here[...] = 0
        if 0 <= p < nz:
            for y in range(low, high):
                even = (p + y + first) & 1  # color of x = 0
                begin = (p * ny + y) * nx
                _split(f[begin:], nx, f_here, even, y - low, 0)
                if mode == DOWN:
                    _split(u[begin:], nx, here, even, y - low + 1, 1)
                elif not down:
                    for x in range(nx):
                        row[x] = u[begin + x]
                    _correct(
                        row, nx, line, coarse, p, y, mz, my,
                        z_left, z_share, y_left, y_share, x_left, x_share,
                    )  # fmt: skip
                    _split(row, nx, here, even, y - low + 1, 1)
        # Relax.
        for color in range(2):
            p = step - 1 - color
            if 0 <= p < nz:
                above, here, below = us[(p - 1) % _SLOTS], us[p % _SLOTS], us[(p + 1) % _SLOTS]
                odd = p + low + first + color
                _relax(above, here, below, fs[p % _SLOTS], color, odd, nx, weights, omega)
        # Write.
        p = step - 2
        if z_own <= p < z_end:
            for y in range(y_own, y_end):
                even = (p + y + first) & 1
                _merge(us[p % _SLOTS], even, y - low + 1, 1, out[(p * ny + y) * nx :], nx)
        # Take residuals.
        p = step - 3
        if mode == UP or p < z_own or p >= z_last:
            continue
        while down and left_plane < z_left[p]:
            begin = (left_plane * my + y_coarse) * mx
            _hand_over(sums, coarse, begin, left_plane >= z_coarse)
            left_plane += 1
        above, here, below = us[(p - 1) % _SLOTS], us[p % _SLOTS], us[(p + 1) % _SLOTS]
        for y in range(y_own, y_last):
            odd = (p + y + first) & 1
            _residual(above, here, below, fs[p % _SLOTS], y - low, odd, nx, weights, r)
            if not down:
                for i in range(pairs):
                    here_r, other_r = np.float64(r[0, 0, i]), np.float64(r[1, 0, i])
                    total += here_r * here_r + other_r * other_r
                continue
            _merge(r, odd, 0, 0, row, nx)
            _restrict(row, x_first, taps, line)
            for side in range(2):
                share_z = z_scale * (z_share[p] if side == 1 else 1 - z_share[p])
                for b in range(2):
                    share = share_z * y_scale * (y_share[y] if b == 1 else 1 - y_share[y])
                    _add(sums, side, y_left[y] + b - y_coarse, line, weights.dtype.type(share))
    while down and left_plane < z_coarse_end:
        _hand_over(sums, coarse, (left_plane * my + y_coarse) * mx, left_plane >= z_coarse)
        left_plane += 1
    return total


@by_size()
def sweep(
    team, u, f, out, coarse, sums, shapes, weights, omega, first, mode, lefts, shares, taps, tiles
):
    """One pass: DOWN, DOWN_FROM_ZERO, UP or UP_WITH_SQUARES.

    Per point u and f are read and out is written; 25 flops in 2-D, 32 in 3-D, 10 for transfers.
    Vectors are flat, and ``out`` is not u. ``coarse`` (mz * my * mx) is on the way down the
    restricted residual, written; on the way up the correction, read. ``sums`` gets the squares of
    the residual by tile, in double. ``shapes`` are nz, ny, nx, mz, my, mx; ``weights`` 1 /
    spacing^2 along z, y and x, 0 along an axis that is not there; ``first`` the color that is
    relaxed first, 0 red or 1 black. Of `hetero.kernels.multigrid.plan`'s transfers: ``lefts``, the
    "left" of z, y and x one after the other, then "first" of x; ``shares``, their "weight";
    ``taps`` of x; and ``tiles``, (tiles, 10), rows of z's tiles and y's.
    """
    given = u, f, out, coarse, sums, shapes, weights, omega, first, mode, lefts, shares, taps, tiles
    _sweep(team, len(sums), given)


@part
def _sweep(start, stop, u, f, out, coarse, sums, shapes, weights, omega, first, mode,
           lefts, shares, taps, tiles):  # fmt: skip
    no_overlap()
    for tile in range(start, stop):
        sums[tile] = _tile(
            u, f, out, coarse, shapes, weights, omega, first, mode, lefts, shares, taps, tiles[tile]
        )


@by_size()
def squares(team, u, f, nz, ny, nx, weights, sums):
    """Squares of f - A u and of f, in double, summed row by row into ``sums``, (nz * ny, 2)."""
    _squares(team, nz * ny, (u, f, nz, ny, nx, weights, sums))


@part
def _squares(start, stop, u, f, nz, ny, nx, weights, sums):
    no_overlap()
    wz, wy, wx = weights
    diagonal = 2.0 * (wz + wy + wx)
    nothing = np.zeros(nx, u.dtype)
    zero = np.float64(0.0)
    for row in range(start, stop):
        z, y = row // ny, row % ny
        here, rhs = u[row * nx : (row + 1) * nx], f[row * nx : (row + 1) * nx]
        north = u[(row - 1) * nx : row * nx] if y > 0 else nothing
        south = u[(row + 1) * nx : (row + 2) * nx] if y + 1 < ny else nothing
        above = u[(row - ny) * nx : (row - ny + 1) * nx] if z > 0 else nothing
        below = u[(row + ny) * nx : (row + ny + 1) * nx] if z + 1 < nz else nothing
        part, whole = 0.0, 0.0
        for x in range(nx):
            near = wx * (here[x - 1] if x > 0 else zero)
            near += wx * (here[x + 1] if x < nx - 1 else zero)
            near += wy * (np.float64(north[x]) + south[x])
            near += wz * (np.float64(above[x]) + below[x])
            left = rhs[x] - diagonal * here[x] + near
            part += left * left
            whole += np.float64(rhs[x]) * np.float64(rhs[x])
        sums[row, 0], sums[row, 1] = part, whole


# -- Jacobi's method -------------------------------------------------------------------------------


@compiled
def jacobi(team: int, u: Any, f: Any, u_new: Any, factors: Any) -> None:
    """Make one sweep of Jacobi's method, each thread some rows.

    Parameters
    ----------
    u, f, u_new : (rows, lines, columns) arrays of one dtype
        ``u_new`` gets what a sweep makes of ``u``; it must not be ``u``.
    factors : 4-tuple of that dtype
        1 / spacing^2 along rows, lines and columns, and 1, all over the matrix's diagonal.
    """
    jacobi_rows(team, u.shape[0], (u, f, u_new) + factors)


@part
def jacobi_rows(start, stop, u, f, u_new, along_rows, along_lines, along_columns, scale):
    """Some rows of `jacobi`. Per point, in 3-D: 6 additions, 4 multiplications."""
    no_overlap()
    rows, lines, columns = u.shape
    nothing = np.zeros(columns, u.dtype)
    zero = nothing[0]
    for r in range(start, stop):
        for line in range(lines):
            here, given, made = u[r, line], f[r, line], u_new[r, line]
            up = u[r - 1, line] if r > 0 else nothing
            down = u[r + 1, line] if r < rows - 1 else nothing
            above = u[r, line - 1] if line > 0 else nothing
            below = u[r, line + 1] if line < lines - 1 else nothing
            for c in range(columns):
                left = here[c - 1] if c > 0 else zero
                right = here[c + 1] if c < columns - 1 else zero
                made[c] = (
                    scale * given[c]
                    + along_columns * (left + right)
                    + along_lines * (above[c] + below[c])
                    + along_rows * (up[c] + down[c])
                )
