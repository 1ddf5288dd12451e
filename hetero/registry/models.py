"""Cost forms: functions that turn work and constants into seconds.

A model is a plain dict as stored in a profile: ``{"form": NAME, "constants": {...}, ...}``.
``bind(model)`` turns it into a function of a `Work` that returns ``(overhead, compute)``, two
numbers of seconds that add up to the prediction.

=========  =====================================================================================
form       seconds
=========  =====================================================================================
roofline   overhead + max(flops / flop rate, bytes / byte rate)
table      log seconds interpolated over the log of each dimension, between measured shapes; or
           overhead + White's waves x a ratio that is interpolated
solve      set-up + iterations x step, each a table over measured sizes
bandwidth  accessed bytes / effective bandwidth (White 2013, sections 3.5 and 4.6), and a constant:
           the form of the profile tesla-t10
segments   b / T_x + c0 b + c1 per range of sizes (White 2013, eq. 3.14-3.15); for links
=========  =====================================================================================
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
    """What an implementation must do for a problem."""

    dims: tuple[int, ...]  # in the order that the operation defines, batch folded in
    flops: float  # a multiplication and an addition counted as two
    bytes: float  # fewest that move through the memory: each operand and the result once
    repeat: int = 1  # how many times the work above is repeated, one after another
    calls: float = 1.0  # how many times the fixed overhead of a call is incurred
    estimate: float = 0.0  # seconds by the implementation's own estimate, for tables of ratios
    # What a step's seconds are a sum of, for the form "solve" beyond the measured sizes: (0, 0) is
    # the square of the first dimension. Empty: the rate of the last size holds.
    terms: Terms = ()


class ModelKey(NamedTuple):
    """The implementation that a model of a profile predicts; stored as a string."""

    place: str  # a device, "cuda:*" for every device of a kind, or "cuda*2" for two together
    operation: str
    method: str
    dtype: str
    layout: str  # what besides dims decides the speed; "*" stands for every layout

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
    """The overhead, and the longer one of flops and bytes over their rates."""
    names = ("overhead", "flops_per_second", "bytes_per_second")
    overhead, flop_rate, byte_rate = (constants[name] for name in names)
    return lambda work: (
        overhead,
        work.repeat * max(work.flops / flop_rate, work.bytes / byte_rate),
    )


def _table(constants: dict[str, Any]) -> Cost:
    """Seconds interpolated between knots; beyond the last one its rate holds.

    With a ``block`` the knots are points of an image's result and of its filter, four extents in
    pairs; the result is made in whole blocks of that many columns. With ``ratios`` in place of
    seconds it is the implementation's own estimate times a ratio. That of hetero's matrix products
    counts waves of blocks (White 2013, section 3.3): its steps would be lost between measured
    shapes. Beyond the last knot the last ratio holds.
    """
    axes, overhead, block = constants["axes"], constants["overhead"], constants.get("block")
    surface = _surface(axes, constants.get("ratios") or constants["seconds"], overhead)

    def of_seconds(work: Work) -> tuple[float, float]:
        dims = work.dims
        if block is not None:
            h, w, fh, fw = dims
            dims = h * -(-w // block) * block, fh * fw
        return overhead, max(surface(dims) - overhead, 0.0) * work.repeat

    def of_estimate(work: Work) -> tuple[float, float]:
        if work.estimate <= 0.0:
            raise KeyError("table of ratios: nothing is estimated for it")
        inside = [min(size, axis[-1]) for size, axis in zip(work.dims, axes, strict=True)]
        return overhead, work.repeat * work.estimate * surface(inside)

    return of_estimate if "ratios" in constants else of_seconds


def _surface(
    axes: Sequence[Sequence[float]], seconds: Sequence[float], overhead: float = 0.0
) -> Callable[[Sequence[float]], float]:
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
    strides = [prod(map(len, axes[i + 1 :])) for i in range(len(axes))]
    log_seconds = [log(s) for s in seconds]

    def cost(dims: Sequence[float]) -> float:
        corners = [(0, 1.0)]
        beyond = 1.0
        for size, axis, log_axis, stride in zip(dims, axes, log_axes, strides, strict=True):
            if size >= axis[-1]:
                beyond *= size / axis[-1]
                step = (len(axis) - 1) * stride
                corners = [(index + step, weight) for index, weight in corners]
            elif size > axis[0]:
                i = bisect_right(axis, size) - 1
                t = (log(size) - log_axis[i]) / (log_axis[i + 1] - log_axis[i])
                low = i * stride
                corners = [
                    (index + end, weight * part)
                    for index, weight in corners
                    for end, part in ((low, 1.0 - t), (low + stride, t))
                ]
        found = exp(sum(weight * log_seconds[index] for index, weight in corners))
        return overhead + max(found - overhead, 0.0) * beyond if beyond > 1.0 else found

    return cost


def _bandwidth(constants: dict[str, Any]) -> Cost:
    """White's estimate: every operand of every multiplication counts as accessed.

    2 floats (8 bytes) are accessed for each multiplication, less by the factor ``reuse`` where the
    tile lets threads share them (2 for matvec, 16 for matmul, min(FS, 16) for convolution).
    ``seconds`` are what each repetition takes besides, for launches and answers. The effective
    bandwidth (sections 3.5 and 4.6) is a "constant", or one of the kinds below.
    """
    rate, reuse = constants["bandwidth"], constants.get("reuse", 1)
    seconds = constants.get("seconds", 0.0)

    def bandwidth(dims: tuple[int, ...]) -> float:
        if rate["kind"] == "clamped":  # section 3.5.1, n the mean extent
            n = prod(dims) ** (1 / len(dims))
            return min(max(rate["numerator"] / n, rate["low"]), rate["high"])
        if rate["kind"] == "constant":
            return rate["value"]
        # "filter": a / sqrt(FS) - n / b + c, section 3.5.1. The gain of small filters was fitted
        # where they are much smaller than the image; the crossover stated for FS ~ n (n <= 11)
        # holds only without it.
        n, filter_size = sqrt(dims[0] * dims[1]), sqrt(dims[2] * dims[3])
        gain = rate["a"] / sqrt(filter_size) if filter_size < n else 0.0
        return max(gain - n / rate["b"] + rate["c"], rate["least"])

    def cost(work: Work) -> tuple[float, float]:
        factor = min(work.dims[-1], 16) if reuse == "min(filter_size, 16)" else reuse
        accessed = 4.0 * work.flops / (factor * rate["unit"] * bandwidth(work.dims))
        return 0.0, work.repeat * (seconds + accessed)

    return cost


def _solve(constants: dict[str, Any]) -> Cost:
    """Set-up and the work's number of steps, each a surface over the dimensions."""
    setup, step = (_part(**constants[part]) for part in ("setup", "step"))
    return lambda work: (setup(work), step(work) * work.repeat)


def _part(axes: Sequence[Sequence[float]], seconds: Sequence[float]) -> Callable[[Work], float]:
    """Seconds of one step, or of a solve's set-up.

    Beyond the last knots they grow as the sum of products that fits all knots best, where the work
    names its terms: a launch does not grow with the rows, nor do bytes of rows with the clusters.
    """
    surface = _surface(axes, seconds)
    fitted = cache(lambda terms: _growth(axes, seconds, terms))

    def cost(work: Work) -> float:
        inside = tuple([min(size, axis[-1]) for size, axis in zip(work.dims, axes, strict=True)])
        if inside == work.dims or not work.terms:
            return surface(work.dims)
        grown = fitted(work.terms)
        return surface(inside) * grown(work.dims) / grown(inside)

    return cost


def _growth(
    axes: Sequence[Sequence[float]], seconds: Sequence[float], terms: Terms
) -> Callable[[Sequence[float]], float]:
    """The sum of products that comes nearest to measured seconds, as a function of the dimensions:
    none less for more.

    Least squares of relative errors over all knots of the grid; terms with negative coefficients
    are left out, the most negative one first.
    """

    def products(dims: Sequence[float], left: Sequence[int]) -> list[float]:
        return [float(prod([dims[axis] for axis in terms[i]])) for i in left]

    left = list(range(len(terms)))
    rows = np.array([products(dims, left) for dims in product(*axes)]) / np.array(seconds)[:, None]
    largest = rows.max(axis=0)  # of a column: then a solver's tolerance is the same for each
    while True:
        solution = np.linalg.lstsq(rows[:, left] / largest[left], np.ones(len(rows)), rcond=None)[0]
        if solution.min() >= 0.0:
            break
        left.pop(int(solution.argmin()))
    coefficients = solution / largest[left]
    return lambda dims: float(np.dot(coefficients, products(dims, left)))


FORMS = {"roofline": _roofline, "table": _table, "solve": _solve, "bandwidth": _bandwidth}


def bind(model: dict[str, Any]) -> Cost:
    """The cost function of a stored model; ``KeyError`` for an unknown form."""
    return FORMS[model["form"]](model["constants"])


def try_out(model: dict[str, Any]) -> None:
    """Ask a stored model for a prediction, by its own form and number of dimensions; the error says
    what is wrong with it, as Python does."""
    constants = model["constants"]
    axes = None if "block" in constants else constants.get("step", constants).get("axes")
    number = 4 if axes is None else len(axes)  # as of an image and its filter
    predicted = bind(model)(Work((64, 64, *(8,) * number)[:number], 1e6, 1e6, estimate=1e-3))
    if not all(0.0 <= seconds < inf for seconds in predicted):
        raise ValueError(f"it gives {predicted} seconds")


def bind_link(model: dict[str, Any]) -> Callable[[int], float]:
    """Seconds to move a number of bytes: White's T = b / T_x + c0 b + c1 (eq. 3.14-3.15).

    Constants are segments, each with ``below`` (bytes; the last one has None), ``bytes_per_second``
    (T_x), ``seconds_per_byte`` (c0) and ``seconds`` (c1).
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
