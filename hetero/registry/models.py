"""Cost forms: functions that turn work and constants into seconds.

A model is a plain dict as stored in a profile: ``{"form": NAME, "constants": {...}, ...}``.
``bind(model)`` turns it into a function of a `Work` that returns ``(overhead, compute)``, two
numbers of seconds that add up to the prediction. Each form is one entry of `FORMS`.

=================  ==============================================================================
form               seconds
=================  ==============================================================================
roofline           overhead + max(flops / flop rate, bytes / byte rate)
table              log seconds interpolated over the log of each dimension, between measured
                   shapes; or overhead + White's waves x a ratio that is interpolated
solve              set-up + iterations x step, each a table over measured sizes
bandwidth          accessed bytes / effective bandwidth (White 2013, sections 3.5 and 4.6), and a
                   constant: the form of the profile tesla-t10
segments           b / T_x + c0 b + c1 per range of sizes (White 2013, eq. 3.14-3.15); for links
=================  ==============================================================================
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise, product
from math import exp, inf, log, prod, sqrt
from typing import Any, NamedTuple

import numpy as np

Terms = tuple[tuple[int, ...], ...]
"""Products of dimensions, each by the dimensions' positions; () is what does not grow."""


class Work(NamedTuple):
    """What an implementation must do for a problem.

    Attributes
    ----------
    dims : tuple of int
        The problem's dimensions in the order the operation defines, batch folded in.
    flops : float
        Floating-point operations, a multiplication and an addition counted as two.
    bytes : float
        Fewest bytes moved through the device's memory: each operand and the result once.
    repeat : int
        How many times the work above is repeated, one after another.
    calls : float
        How many times the fixed overhead of a call is incurred.
    estimate : float
        Seconds by the implementation's own estimate, for tables of ratios; 0 where it has none.
    terms : tuple of tuple of int
        Products of dimensions that a step's seconds are a sum of, for the form "solve" beyond the
        measured sizes: (0, 0) is the square of the first. Empty: the rate of the last size holds.
    """

    dims: tuple[int, ...]
    flops: float
    bytes: float
    repeat: int = 1
    calls: float = 1.0
    estimate: float = 0.0
    terms: Terms = ()


class ModelKey(NamedTuple):
    """The implementation that a model of a profile predicts; stored as a string.

    Attributes
    ----------
    place : str
        A device, "cuda:*" for every device of a kind, or "cuda*2" for two together.
    operation, method, dtype : str
    layout : str
        What besides dims decides the speed; "*" stands for every layout.
    """

    place: str
    operation: str
    method: str
    dtype: str
    layout: str

    def __str__(self) -> str:
        return "|".join(self)

    @classmethod
    def parse(cls, text: str) -> ModelKey:
        """The key that a string stands for; ValueError where it stands for none."""
        parts = text.split("|")
        if len(parts) != len(cls._fields):
            raise ValueError(f"a model's key must be {'|'.join(cls._fields)}, got {text!r}")
        return cls(*parts)


Cost = Callable[[Work], tuple[float, float]]


def _roofline(constants: dict[str, Any]) -> Cost:
    overhead = constants["overhead"]
    flop_rate = constants["flops_per_second"]
    byte_rate = constants["bytes_per_second"]
    if not (flop_rate > 0.0 and byte_rate > 0.0):
        raise ValueError(f"rates must be positive, got {flop_rate} and {byte_rate}")

    def cost(work: Work) -> tuple[float, float]:
        return overhead, work.repeat * max(work.flops / flop_rate, work.bytes / byte_rate)

    return cost


def _table(constants: dict[str, Any]) -> Cost:
    """Seconds interpolated between knots; beyond the last one its rate holds.

    With a ``block`` the knots are points of an image's result and of its filter, four extents in
    pairs; the result is made in whole blocks of that many columns. With ``ratios`` in place of
    seconds it is the implementation's own estimate times a ratio. That of hetero's matrix products
    counts waves of blocks (White 2013, section 3.3): its steps would be lost between measured
    shapes. Beyond the last knot the last ratio holds.
    """
    axes, overhead = constants["axes"], constants["overhead"]
    block = constants.get("block")
    if "ratios" not in constants:
        cost = _interpolated(axes, constants["seconds"], overhead)
        if block is None:
            return cost

        def of_image(work: Work) -> tuple[float, float]:
            h, w, fh, fw = work.dims
            return cost(work._replace(dims=(h * -(-w // block) * block, fh * fw)))

        return of_image
    ratio = _interpolated(axes, constants["ratios"])

    def of_estimate(work: Work) -> tuple[float, float]:
        if work.estimate <= 0.0:
            raise KeyError("table of ratios: nothing is estimated for it")
        inside = [min(size, axis[-1]) for size, axis in zip(work.dims, axes, strict=True)]
        _, factor = ratio(Work(tuple(inside), 0.0, 0.0))
        return overhead, work.repeat * work.estimate * factor

    return of_estimate


def _interpolated(
    axes: Sequence[Sequence[float]], seconds: Sequence[float], overhead: float = 0.0
) -> Cost:
    """Multilinear interpolation of log(seconds) over the log of each dimension.

    Straight lines between knots in log-log space are exact for any power law, so both the flat part
    (overhead) and the steep part (constant rate) are met exactly; beyond the last knot the
    rate of the last knot holds.
    """
    axes = [[float(p) for p in axis] for axis in axes]
    if not axes or any(a >= b for axis in axes for a, b in pairwise(axis)):
        raise ValueError("a surface's axes must increase")
    if prod(map(len, axes)) != len(seconds):
        raise ValueError("a surface must have seconds for each knot")
    log_axes = [[log(p) for p in axis] for axis in axes]
    strides = [1] * len(axes)
    for i in range(len(axes) - 2, -1, -1):
        strides[i] = strides[i + 1] * len(axes[i + 1])
    log_seconds = [log(s) for s in seconds]

    def cost(work: Work) -> tuple[float, float]:
        corners = [(0, 1.0)]
        beyond = 1.0
        for size, axis, log_axis, stride in zip(work.dims, axes, log_axes, strides, strict=True):
            if size >= axis[-1]:
                beyond *= size / axis[-1]
                step = (len(axis) - 1) * stride
                corners = [(index + step, weight) for index, weight in corners]
            elif size <= axis[0]:
                pass
            else:
                i = bisect_right(axis, size) - 1
                t = (log(size) - log_axis[i]) / (log_axis[i + 1] - log_axis[i])
                low = i * stride
                corners = [
                    pair
                    for index, weight in corners
                    for pair in (
                        (index + low, weight * (1.0 - t)),
                        (index + low + stride, weight * t),
                    )
                ]
        seconds = exp(sum(weight * log_seconds[index] for index, weight in corners))
        if beyond > 1.0:
            seconds = overhead + max(seconds - overhead, 0.0) * beyond
        return overhead, max(seconds - overhead, 0.0) * work.repeat

    return cost


def _bandwidth_rate(bandwidth: dict[str, Any]) -> Callable[[tuple[int, ...]], float]:
    """Effective bandwidth in bytes per second as a function of the dimensions (White 2013, sections
    3.5 and 4.6)."""
    kind = bandwidth["kind"]
    unit = bandwidth["unit"]
    if kind == "constant":
        value = bandwidth["value"] * unit
        return lambda dims: value
    if kind == "clamped":  # min(max(numerator / n, low), high), section 3.5.1, n the mean extent
        numerator, low, high = bandwidth["numerator"], bandwidth["low"], bandwidth["high"]

        def of_square(dims: tuple[int, ...]) -> float:
            return unit * min(max(numerator / prod(dims) ** (1 / len(dims)), low), high)

        return of_square
    if kind == "filter":  # a / sqrt(FS) - n / b + c, section 3.5.1
        a, b, c = bandwidth["a"], bandwidth["b"], bandwidth["c"]

        def of_filter(dims: tuple[int, ...]) -> float:
            n, filter_size = sqrt(dims[0] * dims[1]), sqrt(dims[2] * dims[3])
            # The gain of small filters was fitted where they are much smaller than the image;
            # the crossover stated for FS ~ n (n <= 11) holds only without it.
            gain = a / sqrt(filter_size) if filter_size < n else 0.0
            return unit * max(gain - n / b + c, bandwidth["least"])

        return of_filter
    raise KeyError(f"unknown kind of bandwidth {kind!r}")


def _bandwidth(constants: dict[str, Any]) -> Cost:
    """White's estimate: every operand of every multiplication counts as accessed.

    2 floats (8 bytes) are accessed for each multiplication, less by the factor ``reuse`` where the
    tile lets threads share them (2 for matvec, 16 for matmul, min(FS, 16) for convolution).
    ``seconds`` are what each repetition takes besides, for launches and answers.
    """
    seconds = constants.get("seconds", 0.0)
    rate = _bandwidth_rate(constants["bandwidth"])
    reuse = constants.get("reuse", 1)

    def cost(work: Work) -> tuple[float, float]:
        accessed = 4.0 * work.flops
        factor = min(work.dims[-1], 16) if reuse == "min(filter_size, 16)" else reuse
        return 0.0, work.repeat * (seconds + accessed / (factor * rate(work.dims)))

    return cost


def _solve(constants: dict[str, Any]) -> Cost:
    """Set-up and the work's number of steps, each a surface over the dimensions."""

    setup, step = (_part(constants[part]) for part in ("setup", "step"))
    return lambda work: (setup(work), step(work) * work.repeat)


def _part(constants: dict[str, Any]) -> Callable[[Work], float]:
    """Seconds of one step, or of a solve's set-up.

    Beyond the last knots they grow as the sum of products that fits all knots best, where the work
    names its terms: a launch does not grow with the rows, nor do bytes of rows with the clusters.
    """
    axes, seconds = constants["axes"], constants["seconds"]
    surface = _interpolated(axes, seconds)
    fitted = cache(lambda terms: _growth(axes, seconds, terms))

    def cost(work: Work) -> float:
        dims = work.dims
        inside = tuple([min(size, axis[-1]) for size, axis in zip(dims, axes, strict=True)])
        if inside == dims or not work.terms:
            return sum(surface(Work(dims, work.flops, work.bytes)))
        grown = fitted(work.terms)
        return sum(surface(Work(inside, work.flops, work.bytes))) * grown(dims) / grown(inside)

    return cost


def _growth(
    axes: Sequence[Sequence[float]], seconds: Sequence[float], terms: Terms
) -> Callable[[Sequence[float]], float]:
    """The sum of products that comes nearest to measured seconds, as a function of the dimensions:
    none less for more.

    ``axes`` are the knots of each dimension, ``seconds`` those of each knot of the grid, the last
    dimension fastest; all are positive. Least squares of relative errors; terms with negative
    coefficients are left out, the most negative one first.
    """
    grid = np.array([_products(dims, terms) for dims in product(*axes)])
    rows = grid / np.array(seconds)[:, None]
    largest = rows.max(axis=0)  # of a column: then a solver's tolerance is the same for each
    left = list(range(len(terms)))
    while True:
        solution = np.linalg.lstsq(rows[:, left] / largest[left], np.ones(len(rows)), rcond=None)[0]
        if solution.min() >= 0.0:
            break
        left.pop(int(solution.argmin()))
    kept, coefficients = tuple(terms[i] for i in left), solution / largest[left]

    def predicted(dims: Sequence[float]) -> float:
        return float(np.dot(coefficients, _products(dims, kept)))

    return predicted


def _products(dims: Sequence[float], terms: Terms) -> list[float]:
    return [float(prod([dims[axis] for axis in term])) for term in terms]


FORMS: dict[str, Callable[[dict[str, Any]], Cost]] = {
    "roofline": _roofline,
    "table": _table,
    "solve": _solve,
    "bandwidth": _bandwidth,
}


def bind(model: dict[str, Any]) -> Cost:
    """The cost function of a stored model; ``KeyError`` for an unknown form."""
    return FORMS[model["form"]](model["constants"])


def try_out(model: dict[str, Any]) -> None:
    """Ask a stored model for a prediction, by its own form and number of dimensions.

    Raises
    ------
    KeyError, TypeError, ValueError, AttributeError, ArithmeticError, IndexError
        If it is wrong in any way.
    """
    constants = model["constants"]
    axes = None if "block" in constants else constants.get("step", constants).get("axes")
    number = 4 if axes is None else len(axes)  # as of an image and its filter
    predicted = bind(model)(Work((64, 64, *(8,) * number)[:number], 1e6, 1e6, estimate=1e-3))
    if not all(0.0 <= seconds < inf for seconds in predicted):
        raise ValueError(f"it gives {predicted} seconds")


def bind_link(model: dict[str, Any]) -> Callable[[int], float]:
    """Seconds to move a number of bytes: White's T = b / T_x + c0 b + c1 (eq. 3.14-3.15).

    Parameters
    ----------
    model : dict
        ``constants``: a list of segments, each with ``below`` (bytes; the last one has None),
        ``bytes_per_second`` (T_x), ``seconds_per_byte`` (c0) and ``seconds`` (c1).
    """
    if model["form"] != "segments":
        raise KeyError(f"a link's form must be 'segments', got {model['form']!r}")
    segments = model["constants"]
    ends = [s["below"] for s in segments[:-1]]
    lines = [(1.0 / s["bytes_per_second"] + s["seconds_per_byte"], s["seconds"]) for s in segments]

    def seconds(nbytes: int) -> float:
        slope, intercept = lines[bisect_right(ends, nbytes)]
        return slope * nbytes + intercept

    return seconds
