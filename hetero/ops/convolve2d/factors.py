"""Filters of low rank: sums of a few products of a column and a row."""

from __future__ import annotations

import functools

import numpy as np

_MOST = 8  # factors; more are not looked for
_SAMPLE = 24  # rows and columns that are looked at first
_LOST = 1e3  # eps by which a tap may be off, and how much larger its products may be


@np.errstate(all="ignore")  # what underflows is too small to count, and NaN ends the search
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
        the rounding of the direct sum; and no tap is lost beside larger ones: see `_kept`. r is at
        most 8, and r (fh + fw) < fh fw. None where there is no such r.

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
    if not filter.size:
        return None
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
    info = np.finfo(filter.dtype)
    enough = 2.0 * float(info.eps) * total
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
        products = [c[:, None].astype(np.float64) * r for c, r in zip(*rounded, strict=True)]
        error, size = np.abs(whole - sum(products)), sum(map(np.abs, products))
        right = float(error.sum()) <= enough and _kept(np.abs(whole), error, size, info)
        return rounded if right else None
    return None


def _kept(taps: np.ndarray, error: np.ndarray, size: np.ndarray, info: np.finfo) -> bool:
    """Whether small taps count where the image is small, or 0, beneath the large ones.

    Each tap is right to 1e3 eps of itself; or its products nearly cancel, and it is right to their
    rounding. The products' ``size`` is no more than 1e3 times the taps around.
    """
    around = np.lib.stride_tricks.sliding_window_view(np.pad(taps, 1), (3, 3)).max(axis=(2, 3))
    right = (error <= _LOST * info.eps * taps + info.tiny) | (error <= 4.0 * info.eps * size)
    return bool((right & (size <= _LOST * around + info.tiny)).all())


@functools.lru_cache(maxsize=256)
def remembered(
    content: bytes, shape: tuple[int, int], dtype: str
) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]] | None:
    """`low_rank` of a small filter by its content, and the same `flipped`."""
    found = low_rank(np.frombuffer(content, dtype).reshape(shape))
    return found and (found, flipped(found))


def flipped(factors: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The factors of the flipped filter."""
    columns, rows = factors
    return np.ascontiguousarray(columns[:, ::-1]), np.ascontiguousarray(rows[:, ::-1])
