"""The right-hand side of Poisson's equation: f, the boundary's share, and both in numbers at hand.

Where the spacing, f or the boundary's values are so large or small that squares or quotients of
them overflow or vanish, the equation is solved in other units, powers of two, which change no
digit: A' v = g with spacing' = spacing / 2^e, g = f 2^(2 e - k) and u = v 2^k.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from hetero.arrays import HOST, describe, name_of
from hetero.imports import load
from hetero.ops.linear_systems.vectors import like, on_host

# Exponents of two between which spacings and right-hand sides are taken as they are. Sums of
# squares are in double; solutions and sine transforms are at most 2^70 times as large as f h^2.
_SPACING = {"float32": 16, "float64": 100}
_VALUES = {"float32": 32, "float64": 300}
_FARTHEST = 100  # a spacing 2^100 times the least decouples its axis whatever the extents
_START = 40  # an initial guess 2^40 times as large as f h^2 is farther from u than zero


class Face(NamedTuple):
    """Boundary values on one side: a number or an array of f's shape without the axis."""

    axis: int
    layer: int  # of the points next to it: 0 or -1
    value: np.ndarray


class Scaled(NamedTuple):
    """The equation in other units.

    Attributes
    ----------
    f : numpy.ndarray
        Right-hand side with the boundary's share.
    x0 : numpy.ndarray or None
        Initial guess.
    spacing : tuple of float
    solution : int
        u is 2^solution times what solves this equation.
    residual : int
        Likewise for f - A u.
    """

    f: np.ndarray
    x0: np.ndarray | None
    spacing: tuple[float, ...]
    solution: int
    residual: int


def checked_faces(shape: tuple[int, ...], boundary: Any) -> list[Face]:
    """The sides with values other than zero; ValueError for what are no boundary values."""
    if isinstance(boundary, float) and boundary == 0.0:
        return []
    ndim = len(shape)
    try:
        if not isinstance(boundary, (tuple, list)) and np.ndim(boundary) == 0:
            sides = [(boundary, boundary)] * ndim
        else:
            sides = [tuple(pair) for pair in boundary]
    except TypeError:  # a number in a pair's place
        sides = []
    if len(sides) != ndim or any(len(pair) != 2 for pair in sides):
        raise ValueError(f"boundary must be a number or {ndim} pairs, got {boundary!r}")
    faces = []
    for axis, pair in enumerate(sides):
        across = tuple(shape[:axis]) + tuple(shape[axis + 1 :])
        for layer, value in zip((0, -1), pair, strict=True):
            value = np.asarray(value)
            if value.dtype.kind not in "fiub":
                raise ValueError(f"boundary must be real, got dtype {value.dtype}")
            if value.shape not in ((), across):
                raise ValueError(
                    f"boundary of axis {axis} must be a number or of shape {across}, "
                    f"got shape {value.shape}"
                )
            if np.any(value):
                faces.append(Face(axis, layer, value))
    return faces


def with_boundary(f: Any, spacing: tuple[float, ...], faces: list[Face], dtype: np.dtype) -> Any:
    """f plus value / spacing**2 next to each side; an array of f's kind, or f itself."""
    if not faces or 0 in f.shape:
        return f
    operand = describe(f)
    total = np.array(on_host(f, operand, dtype))
    with np.errstate(all="ignore"):  # `out_of_range` sees to what is not finite
        _add(total, spacing, faces, 0)
    return total if operand.location == HOST else like(f, total)


def _add(total: np.ndarray, spacing: tuple[float, ...], faces: list[Face], exponent: int) -> None:
    for axis, layer, value in faces:
        index: list[Any] = [slice(None)] * total.ndim
        index[axis] = layer
        share = np.ldexp(value.astype(np.float64), exponent) / spacing[axis] ** 2
        total[tuple(index)] += share


def unusual(spacing: tuple[float, ...], dtype: np.dtype) -> bool:
    """Whether 1 / spacing^2 is not for numbers of that dtype."""
    most = _SPACING[name_of(dtype)]
    return any(not 2.0**-most <= h <= 2.0**most for h in spacing)


def out_of_range(
    f: Any,
    x0: Any,
    spacing: tuple[float, ...],
    faces: list[Face],
    dtype: np.dtype,
    right_side: float | None,
) -> bool:
    """Whether right-hand side or initial guess are too large or too small for their squares.

    ``right_side`` is the 2-norm of the whole right-hand side, if a solver found it: mostly it
    answers alone, and nothing is fetched from a device.
    """
    most = _VALUES[name_of(dtype)]
    start = None if x0 is None else _exponent(on_host(x0, describe(x0), dtype))
    if right_side is not None:
        least = math.ldexp(math.sqrt(math.prod(f.shape)), -most)
        if least <= right_side <= math.ldexp(1.0, most):  # and so is the largest value
            return (start or 0) > most
    found = [_exponent(on_host(f, describe(f), dtype)), *_shares(spacing, faces)]
    known = [e for e in found if e is not None]
    return bool(known) and (abs(max(known)) > most or (start or 0) > most)


def scaled(
    f: Any, x0: Any, spacing: tuple[float, ...], faces: list[Face], dtype: np.dtype
) -> Scaled:
    """The equation in units in which the largest value of the right-hand side is about 1."""
    values = on_host(f, describe(f), np.dtype(np.float64))
    e = math.frexp(min(spacing))[1]
    farther = [min(math.frexp(h)[1] - e, _FARTHEST) for h in spacing]
    spacings = tuple(math.ldexp(math.frexp(h)[0], n) for h, n in zip(spacing, farther, strict=True))
    magnitudes = [_shifted(_exponent(values), 2 * e), *_shares(spacings, faces)]
    known = [m for m in magnitudes if m is not None]
    k = max(known, default=0)
    if x0 is not None:
        x0 = on_host(x0, describe(x0), np.dtype(np.float64)).reshape(values.shape)
        if (_exponent(x0) or 0) - k > _START:
            x0 = None
    with np.errstate(all="ignore"):
        total = np.ldexp(values, 2 * e - k)
        _add(total, spacings, faces, -k)
        if x0 is not None:
            x0 = np.ldexp(x0, -k).astype(dtype)
        return Scaled(total.astype(dtype), x0, spacings, k, k - 2 * e)


def norm(values: np.ndarray) -> float:
    """2-norm, also where squares overflow or vanish."""
    cpu_vectors = load("hetero.ops.cpu_vectors")
    exponent = _exponent(values) or 0
    with np.errstate(all="ignore"):
        return float(
            np.ldexp(
                cpu_vectors.serving(values.dtype).norm(np.ldexp(values, -exponent).reshape(-1)),
                exponent,
            )
        )


def _shares(spacing: tuple[float, ...], faces: list[Face]) -> list[int | None]:
    """Exponents of the boundary's shares, or one more."""
    return [
        _shifted(_exponent(value.astype(np.float64)), 2 - 2 * math.frexp(spacing[axis])[1])
        for axis, _, value in faces
    ]


def _exponent(values: np.ndarray) -> int | None:
    """Of two, of the largest absolute value; None for zeros or what is not finite."""
    largest = max(float(values.max()), -float(values.min()))
    return math.frexp(largest)[1] if 0.0 < largest < math.inf else None


def _shifted(exponent: int | None, by: int) -> int | None:
    return None if exponent is None else exponent + by
