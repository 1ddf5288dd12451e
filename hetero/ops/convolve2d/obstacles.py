"""Why a way to convolve cannot do a problem."""

from __future__ import annotations

from collections.abc import Callable

from hetero.imports import load
from hetero.moving import pipeline
from hetero.ops.convolve2d.window import mode_of
from hetero.ops.convolve2d.work import Axes, Info
from hetero.registry.problem import DEVICE_DTYPES, Problem

Excludes = Callable[[Problem, Info], str | None]


def not_real(problem: Problem, info: Info) -> str | None:
    """Own methods compute in real floats, and something."""
    if problem.dtype not in DEVICE_DTYPES:
        return f"dtype {problem.dtype}: it computes in {' and '.join(DEVICE_DTYPES)}"
    if not (problem.batch and all(problem.dims)):
        return "nothing to compute: an operand has no elements"
    return None


def not_streamed(problem: Problem, info: Info) -> str | None:
    """Parts move between the host's arrays and the device."""
    return not_real(problem, info) or pipeline.obstacle(problem, info)


def stands_in(problem: Problem) -> str | None:
    """SciPy's loop takes long, but for real numbers there is nothing to compile."""
    if not_real(problem, {}) is not None:
        return None
    return f"dtype {problem.dtype}: it is for what no other method computes"


def no_mode(problem: Problem, info: Info) -> str | None:
    """SciPy knows three parts of the full convolution."""
    if mode_of(problem.options) is None:
        return "the part of the convolution that is wanted is none of SciPy's modes"
    return None


def _spreads(problem: Problem, info: Info) -> str | None:
    """Methods that add up more than the filter covers spread what is not finite."""
    if not problem.options.finite:
        return "values that are not finite would spread further than in the direct sum"
    return not_real(problem, info)


def loses(problem: Problem, info: Info) -> str | None:
    """A transform's error is as large for small values as for the largest."""
    if (reason := _spreads(problem, info)) is not None:
        return reason
    if problem.options.wide_range:
        return "values differ so much in size that a transform would lose the small ones"
    return None


def loses_or_no_cufft(problem: Problem, info: Info) -> str | None:
    """As `loses`, for transforms on this machine's GPUs."""
    if (reason := loses(problem, info)) is not None or info.get("elsewhere"):
        return reason
    cufft = load("hetero.devices.cuda.cufft")
    return cufft.obstacle()


def or_one_tile(excludes: Excludes, axes: Axes) -> Excludes:
    """As ``excludes``, and where there would be one tile, which the whole transform is."""

    def obstacle(problem: Problem, info: Info) -> str | None:
        if (reason := excludes(problem, info)) is not None:
            return reason
        if axes(problem, info) is None:
            return (
                "one tile is all there is: the filter is about as large as the image, or both are "
                "small"
            )
        return None

    return obstacle


def high_rank(problem: Problem, info: Info) -> str | None:
    """Two passes per rank need a filter of low rank."""
    if (reason := _spreads(problem, info)) is not None:
        return reason
    return None if problem.options.rank else "the filter is not known to be of low rank"


def high_rank_or_large(problem: Problem, info: Info) -> str | None:
    """As `high_rank`, with columns that shared memory holds."""
    if (reason := high_rank(problem, info)) is not None:
        return reason
    plan_convolve = load("hetero.kernels.convolution.plan")
    most = plan_convolve.separable_limit(dtype=problem.dtype)
    if max(problem.options.filter_height, problem.options.filter_width) > most:
        return f"it takes filters up to {most} x {most}"
    return None


def not_opencvs(problem: Problem, info: Info) -> str | None:
    """What OpenCV's filter2D does not do, or OpenCV is not here."""
    opencv = load("hetero.ops.convolve2d.opencv")
    here = not info.get("elsewhere")
    return not_real(problem, info) or opencv.obstacle(problem.options, here)
