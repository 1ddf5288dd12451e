"""Jacobi sweeps and residuals of -div grad u = f on the CPU.

Grids are (rows, lines, columns), with one line in 2-D; u is zero outside.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.host.threads import compiled, no_overlap, part

__all__ = ["residual_rows", "sweep"]


@compiled
def sweep(team: int, u: Any, f: Any, u_new: Any, factors: Any) -> None:
    """Make one sweep, each thread some rows.

    Parameters
    ----------
    u, f, u_new : (rows, lines, columns) arrays of one dtype
        ``u_new`` gets what a sweep makes of ``u``; it must not be ``u``.
    factors : 4-tuple of that dtype
        1 / spacing^2 along rows, lines and columns, and 1, all over the matrix's diagonal.
    """
    _sweep_rows(team, u.shape[0], (u, f, u_new) + factors)


@part
def _sweep_rows(start, stop, u, f, u_new, along_rows, along_lines, along_columns, scale):  # type: ignore
    """Per point, in 3-D: 6 additions, 4 multiplications."""
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


@compiled
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
    _residual_rows(team, u.shape[0], (u, f, sums) + weights)


@part
def _residual_rows(start, stop, u, f, sums, along_rows, along_lines, along_columns):  # type: ignore
    no_overlap()
    rows, lines, columns = u.shape
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
