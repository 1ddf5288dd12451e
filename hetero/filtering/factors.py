"""Filters of low rank: sums of a few products of a column and a row."""

from __future__ import annotations

import functools

import numpy as np

_MOST = 8  # factors; more are not looked for
_SAMPLE = 24  # rows and columns that are looked at first


def low_rank(filter: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Factors of a filter whose rank is low enough to save work.

    Parameters
    ----------
    filter : (fh, fw) ndarray of float32 or float64

    Returns
    -------
    (columns, rows) : (r, fh) and (r, fw) ndarray, or None
        Their products add up to the filter up to twice the rounding of its dtype, in the 1-norm:
        ``abs(filter - columns.T @ rows).sum() <= 2 eps abs(filter).sum()``, less than the bound on
        the rounding of the direct sum. r is at most 8, and r (fh + fw) < fh fw. None where there
        is no such r.

    Notes
    -----
    By adaptive cross approximation with full pivoting: the largest element's row and column are
    taken out until nothing is left. It needs r passes over the filter and, unlike an SVD, no
    LAPACK, whose threads would hold up the loops that follow.

    References
    ----------
    M. Bebendorf, "Approximation of boundary element matrices", Numer. Math. 86 (2000), 565-589.
    """
    fh, fw = filter.shape
    most = min(_MOST, (fh * fw - 1) // (fh + fw))
    if most < 1:
        return None
    if max(fh, fw) > 2 * _SAMPLE:
        sample = filter[:: -(-fh // _SAMPLE), :: -(-fw // _SAMPLE)]
        limit = min(most, *sample.shape)
        if limit < min(sample.shape) and _crosses(sample, limit) is None:
            return None  # no part has a higher rank than the whole
    return _crosses(filter, most)


def _crosses(filter: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray] | None:
    whole = filter.astype(np.float64)
    rest = whole.copy()
    total = float(np.abs(rest).sum())
    if not np.isfinite(total):
        return None
    enough = 2.0 * float(np.finfo(filter.dtype).eps) * total
    columns: list[np.ndarray] = []
    rows: list[np.ndarray] = []
    while len(rows) < most:
        i, j = divmod(int(np.abs(rest).argmax()), rest.shape[1])
        pivot = rest[i, j]
        if pivot == 0.0:
            break
        scale = abs(pivot) ** 0.5
        column, row = rest[:, j] / np.copysign(scale, pivot), rest[i] / scale
        rest -= column[:, None] * row
        columns.append(column)
        rows.append(row)
        if float(np.abs(rest).sum()) > enough:
            continue
        rounded = np.array(columns).astype(filter.dtype), np.array(rows).astype(filter.dtype)
        made = sum(c[:, None].astype(np.float64) * r for c, r in zip(*rounded, strict=True))
        if float(np.abs(whole - made).sum()) <= enough:
            return rounded
        return None
    return None


@functools.lru_cache(maxsize=256)
def remembered(
    content: bytes, shape: tuple[int, int], dtype: str
) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]] | None:
    """`low_rank` of a small filter by its content, and the same `turned`."""
    found = low_rank(np.frombuffer(content, dtype).reshape(shape))
    return found and (found, turned(found))


def turned(factors: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The factors of the filter turned by 180 degrees."""
    columns, rows = factors
    return np.ascontiguousarray(columns[:, ::-1]), np.ascontiguousarray(rows[:, ::-1])
