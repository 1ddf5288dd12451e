"""Jacobi sweeps and residuals of -div grad u = f on the CPU.

Grids are (rows, lines, columns), with one line in 2-D; u is zero outside. Every thread takes a band
of rows and walks down it with several sweeps at once, each a row behind the one before: all that
lies between reading u and writing the last sweep's rows are a few rows in the cache. Rows at the
ends of a band are computed on both sides, with the same operations, so that the result does not
depend on the number of bands.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.host.compiled.parts import helper, inlined, part
from hetero.host.threads import threaded

__all__ = ["residual_rows", "sweep_bands"]


@inlined
def _update(before, centre, after, f, factors, target, shift, lines, columns):  # type: ignore
    """One row: ``target[l + shift, c + shift]`` from padded rows around it.

    Per point, in 3-D: 6 additions, 4 multiplications.
    """
    along_rows, along_lines, along_columns, scale = factors
    if lines == 1:
        up, here, down = before[1], centre[1], after[1]
        given, made = f[0], target[shift, shift:]
        for c in range(columns):
            made[c] = (
                scale * given[c]
                + along_columns * (here[c] + here[c + 2])
                + along_rows * (up[c + 1] + down[c + 1])
            )
    else:
        for line in range(lines):
            up, here, down = before[line + 1], centre[line + 1], after[line + 1]
            above, below = centre[line], centre[line + 2]
            given, made = f[line], target[line + shift, shift:]
            for c in range(columns):
                made[c] = (
                    scale * given[c]
                    + along_columns * (here[c] + here[c + 2])
                    + along_lines * (above[c + 1] + below[c + 1])
                    + along_rows * (up[c + 1] + down[c + 1])
                )


@helper
def _clear(plane, lines, columns):  # type: ignore
    """Zeros within a padded row; an assignment to a slice takes a second to compile."""
    for line in range(lines):
        made = plane[line + 1]
        for c in range(columns):
            made[c + 1] = 0


@threaded
def sweep_bands(team: int, u: Any, f: Any, u_new: Any, factors: Any, room: Any) -> None:
    """Make several sweeps in one pass over the memory.

    Parameters
    ----------
    u, f, u_new : (rows, lines, columns) arrays of one dtype
        ``u_new`` gets what ``room.shape[1]`` sweeps make of ``u``; it must not be ``u``.
    factors : 4-tuple of that dtype
        1 / spacing^2 along rows, lines and columns, and 1, all over the matrix's diagonal.
    room : (bands, sweeps, 3, lines + 2, columns + 2) array of that dtype
        Zero at both ends of the last two axes; sweep s has its last three rows in room[:, s].
    """
    _sweep_bands(team, room.shape[0], (u, f, u_new, factors, room))


@part
def _sweep_bands(start, stop, u, f, u_new, factors, room):  # type: ignore
    rows, lines, columns = u.shape
    bands, depth = room.shape[0], room.shape[1]
    for band in range(start, stop):
        begin = band * rows // bands
        end = (band + 1) * rows // bands
        mine = room[band]
        for r in range(begin - depth, end + depth):
            fresh = mine[0, (r + 3 * depth) % 3]
            if 0 <= r < rows:
                for line in range(lines):
                    given, made = u[r, line], fresh[line + 1]
                    for c in range(columns):
                        made[c + 1] = given[c]
            else:
                _clear(fresh, lines, columns)
            for s in range(depth):
                q = r - s - 1
                spare = depth - s - 1
                if q < begin - spare or q >= end + spare:
                    continue
                phase = q + 3 * depth
                last = s == depth - 1
                if q < 0 or q >= rows:
                    _clear(mine[s + 1, phase % 3], lines, columns)
                    continue
                before, centre = mine[s, (phase - 1) % 3], mine[s, phase % 3]
                after = mine[s, (phase + 1) % 3]
                target = u_new[q] if last else mine[s + 1, phase % 3]
                shift = 0 if last else 1
                _update(before, centre, after, f[q], factors, target, shift, lines, columns)


@threaded
def residual_rows(team: int, u: Any, f: Any, weights: Any, sums: Any) -> None:
    """The sums of (f - A u)^2 over each row, in double.

    Parameters
    ----------
    u, f : (rows, lines, columns) arrays
    weights : 3-tuple of float
        1 / spacing^2 along rows, lines and columns.
    sums : (rows,) array of float64
        Gets the sums.
    """
    _residual_rows(team, u.shape[0], (u, f, weights, sums))


@part
def _residual_rows(start, stop, u, f, weights, sums):  # type: ignore
    rows, lines, columns = u.shape
    along_rows, along_lines, along_columns = weights
    diagonal = 2.0 * (along_rows + along_lines + along_columns)
    nothing = np.zeros(columns, u.dtype)
    for r in range(start, stop):
        total = 0.0
        for line in range(lines):
            here, given = u[r, line], f[r, line]
            up = u[r - 1, line] if r > 0 else nothing
            down = u[r + 1, line] if r < rows - 1 else nothing
            above = u[r, line - 1] if line > 0 else nothing
            below = u[r, line + 1] if line < lines - 1 else nothing
            for c in range(columns):
                left = np.float64(here[c - 1]) if c > 0 else 0.0
                right = np.float64(here[c + 1]) if c < columns - 1 else 0.0
                rest = (
                    np.float64(given[c])
                    - diagonal * here[c]
                    + along_rows * (np.float64(up[c]) + down[c])
                    + along_lines * (np.float64(above[c]) + below[c])
                    + along_columns * (left + right)
                )
                total += rest * rest
        sums[r] = total
