"""The ways to convolve: why each cannot do a problem, what it takes, what it runs; and the table.

To add a method: write what it runs, as `cpu` or `device` says, and copy the row of the table that
is most like it. `cut` gives the ranges in which any of them does a part of a call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero import registry
from hetero.arrays import HOST, dense
from hetero.imports import load
from hetero.moving import ranges, streaming
from hetero.ops.convolve2d import cpu, fft
from hetero.ops.convolve2d.filters import LARGEST_REMEMBERED, FilterOptions, is_wide, with_look
from hetero.ops.convolve2d.problem import (
    DIRECT,
    FFT,
    NAME,
    SCIPY,
    SEPARABLE,
    Window,
    described,
)
from hetero.pricing import places
from hetero.registry import Arguments
from hetero.registry.models import Work
from hetero.registry.problem import DEVICE_DTYPES, Problem

if TYPE_CHECKING:
    from hetero.devices.base import Device

Info = dict[str, Any]
Box = tuple[tuple[int, int], ...]
Run = Callable[..., None]
# What a filter's spectrum costs the host, in addition to what a convolution costs it.
_SPECTRUM_CALLS = 0.7
_WORKSPACE = 4  # of transforms, times a range and its result

# -- Why a method cannot do a problem --------------------------------------------------------------


def not_real(problem: Problem, info: Info) -> str | None:
    """Own methods compute in real floats, and something."""
    if problem.dtype not in DEVICE_DTYPES:
        return f"dtype {problem.dtype}: it computes in {' and '.join(DEVICE_DTYPES)}"
    if not (problem.batch and all(problem.dims)):
        return "nothing to compute: an operand has no elements"
    return None


def spreads(problem: Problem, info: Info) -> str | None:
    """Methods that add up more than the filter covers spread what is not finite."""
    if not problem.options.finite:
        return "values that are not finite would spread further than in the direct sum"
    return not_real(problem, info)


def high_rank(problem: Problem, info: Info) -> str | None:
    """Two passes per rank need a filter of low rank."""
    known = "the filter is not known to be of low rank" if not problem.options.rank else None
    return spreads(problem, info) or known


def too_large(problem: Problem, info: Info) -> str | None:
    """Shared memory holds columns of a number of taps."""
    most = load("hetero.kernels.convolution.plan").SEPARABLE_TAPS
    fits = max(problem.options.filter_height, problem.options.filter_width) <= most
    return high_rank(problem, info) or (None if fits else f"it takes filters up to {most} x {most}")


def loses(problem: Problem, info: Info) -> str | None:
    """A transform's error is as large for small values as for the largest."""
    lost = "values differ so much in size that a transform would lose the small ones"
    return spreads(problem, info) or (lost if problem.options.wide_range else None)


def no_cufft(problem: Problem, info: Info) -> str | None:
    """Transforms on this machine's GPUs."""
    if (obstacle := loses(problem, info)) or info.get("elsewhere"):
        return obstacle
    return load("hetero.devices.cuda.libraries").cufft_obstacle()


def not_in_ranges(problem: Problem, info: Info) -> str | None:
    """Ranges of real floats that lie on the host."""
    return not_real(problem, info) or places.not_in_ranges(problem, info)


def not_plain(problem: Problem, info: Info) -> str | None:
    """SciPy's loop takes long: it is for what no other method computes, or can here."""
    if problem.options.mode is None:
        return "the part of the convolution that is wanted is none of SciPy's modes"
    if not_real(problem, info) or registry.missing(loops_of_direct(problem), info):
        return None
    return registry.Unasked(f"for dtypes that no other method computes, not {problem.dtype}")


# -- What it takes ---------------------------------------------------------------------------------


def of_direct(problem: Problem, info: Info) -> Work:
    """A filter of 2 or 3 taps counts as 2 x 2: only one of a single tap is a mere product."""
    filter = problem.options.filter_height, problem.options.filter_width
    return _of_sum(problem, (2, 2) if 1 < prod(filter) < 4 else filter)


def of_direct_on_cpu(problem: Problem, info: Info) -> Work:
    """As `of_direct`, but of a column and a row one product each."""
    return _of_sum(problem, (1, 1)) if problem.options.is_outer else of_direct(problem, info)


def of_separable(problem: Problem, info: Info) -> Work:
    """As the direct sum with a filter of as many taps as the passes have together."""
    w = problem.options
    return _of_sum(problem, (w.rank * (w.filter_height + w.filter_width), 1))


def of_fft_on_cpu(problem: Problem, info: Info) -> Work:
    """One tile or several, as SciPy transforms them; on another machine by its cores."""
    w, cores = problem.options, info.get("cores") if info.get("elsewhere") else None
    return _of_points(problem, fft.weight_on_cpu(w, fft.on_cpu(w, cores), problem.batch, cores))


def of_fft_on_device(problem: Problem, info: Info) -> Work:
    """One tile or several, as cuFFT transforms them.

    A filter that is not remembered by its values is transformed too.
    """
    filter = problem.inputs[1]
    new = filter.location != HOST or filter.size > LARGEST_REMEMBERED
    weight = fft.weight_on_device(fft.on_device(problem.options), problem.batch, new)
    return _of_points(problem, weight, 1.0 + _SPECTRUM_CALLS * new)


def _of_sum(problem: Problem, filter: tuple[int, int]) -> Work:
    w = problem.options
    dims = (problem.batch * w.out_height, w.out_width, *filter)
    return Work(dims, 2.0 * prod(dims), _moved(problem))


def _of_points(problem: Problem, weight: int, calls: float = 1.0) -> Work:
    """All tiles' points, each counted as often as a transform passes over it."""
    return Work((weight,), 10.0 * weight, 8.0 * _moved(problem), calls=calls)


def _moved(problem: Problem) -> float:
    return float(sum(o.nbytes for o in (*problem.inputs, problem.output)))


# -- What it runs ----------------------------------------------------------------------------------


def _on_cpu(compute: Run) -> Run:
    """``run`` of a function of the CPU."""

    def run(devices: tuple[()], problem: Problem, arguments: Arguments) -> None:
        (image,), out, options = arguments
        options = options._replace(filter=options.filter.downloaded(out.dtype))
        window, image = problem.options, np.asarray(image, out.dtype)
        image = image.reshape(-1, *image.shape[-2:])
        if image.strides[-1] != out.itemsize and image.shape[-1] > 1:
            image = np.ascontiguousarray(image)
        compute(image, options, window, out.reshape(-1, window.out_height, window.out_width))

    return run


def _by_scipy(devices: tuple[()], problem: Problem, arguments: Arguments) -> None:
    (image,), out, options = arguments
    out[...] = cpu.by_scipy(image, options, problem.options)


def _on_device(name: str) -> dict[str, Callable[..., Any]]:
    """``run`` and ``prepare`` of a function of `device`, of which no launch is made ahead."""

    @cache
    def compute() -> Run:
        return getattr(load("hetero.ops.convolve2d.device"), name)

    def run(devices: tuple[Device], problem: Problem, arguments: Arguments) -> None:
        (image,), output, options = arguments
        compute()(devices[0], problem, image, options, output)

    def prepare(device: Any, problem: Problem, aligned: int, options: FilterOptions) -> Any:
        convolve, storage, kept = compute(), load("hetero.devices.storage"), options.filter.at(0)

        def launch(image: int, filter: int, out: int) -> None:
            given = FilterOptions(kept.at(filter), options.fillvalue)
            with device.active(), storage.limited_to(places.memory_limit()):
                convolve(device, problem, image, given, out)

        return launch

    return {"run": run, "prepare": prepare}


def _prepare_direct(device: Any, problem: Problem, aligned: int, options: Any) -> Any:
    prepared_direct = load("hetero.ops.convolve2d.device").prepared_direct
    return prepared_direct(device, problem, aligned, options)


def _loops(problem: Problem) -> tuple[str, ...]:
    return (cpu.SUMS.of(problem.dtype),)


def loops_of_direct(problem: Problem) -> tuple[str, ...]:
    """The compiled loops that the direct sum needs: where it is SciPy's or NumPy's none."""
    few = problem.options.has_few(np.dtype(problem.dtype).char, problem.batch)
    return () if few or problem.options.is_outer else _loops(problem)


_DIRECT = {"run": _on_device("direct")["run"]}
for kinds, method, excludes, work, more in (
    (("cpu",), DIRECT, not_real, of_direct_on_cpu,
        {"run": _on_cpu(cpu.direct), "loops": loops_of_direct}),
    (("cpu",), SEPARABLE, high_rank, of_separable,
        {"run": _on_cpu(cpu.separable), "loops": _loops}),
    (("cpu",), FFT, loses, of_fft_on_cpu, {"run": _on_cpu(fft.convolve)}),
    (("cpu",), SCIPY, not_plain, of_direct, {"run": _by_scipy}),
    (("cuda",), DIRECT, not_real, of_direct, {**_DIRECT, "prepare": _prepare_direct}),
    (("opencl",), DIRECT, not_real, of_direct, _DIRECT),
    (registry.PORTABLE, SEPARABLE, too_large, of_separable, _on_device("separable")),
    (("cuda",), FFT, no_cufft, of_fft_on_device, _on_device("convolve")),
    (registry.PORTABLE, "streamed", not_in_ranges, of_direct,
        {"run": streaming.run, "blocks": registry.ALWAYS, "price": ranges.price}),
):  # fmt: skip
    registry.register_method(
        operation=NAME, method=method, kinds=kinds, excludes=excludes, work=work, **more
    )


# -- Ranges, for several devices and for images that go through one --------------------------------


def cut(problem: Problem) -> registry.Cut:
    """How a convolution is cut: groups of whole images, or bands of rows of each.

    What convolves a range is what the plan of that convolution, with the range on the device,
    chooses.
    """
    image, filter = problem.inputs
    whole, dtype = problem.options, np.dtype(problem.dtype)
    stacked = len(image.shape) > 2

    def part(box: Box, place: str) -> Problem:
        (window, rows), (first, last) = band(whole, *box[1]), box[0]
        shape = (*(last - first,) * stacked, window.height, window.width)
        if place != HOST:
            return described(dense(shape, dtype, place), filter, dtype, window)
        some = image._replace(shape=shape, strides=image.strides[-len(shape) :])
        if type(rows) is not slice and some.is_dense():
            strides = *some.strides[:-2], *(2 * s for s in some.strides[-2:])
            some = some._replace(strides=strides)  # so that packing is priced
        return described(some, filter, dtype, window)

    def arrays(box: Box, given: tuple[np.ndarray]) -> tuple[np.ndarray]:
        return (images(np.asarray(given[0], dtype), box)[..., band(whole, *box[1])[1], :],)

    def output(box: Box, out: np.ndarray) -> np.ndarray:
        return images(out, box)[..., slice(*box[1]), :]

    def images(stack: np.ndarray, box: Box) -> np.ndarray:
        return stack.reshape(-1, *stack.shape[-2:])[slice(*box[0])] if stacked else stack

    def look(plan: Any, found: np.ndarray, options: FilterOptions) -> Problem:
        """The problem of a range as its values decide it: a transform might lose some."""
        problem = plan.problem
        if plan.chosen.method != FFT:
            return problem
        wide = is_wide(found, options.filter, problem.options, options.fillvalue)
        seen = problem.options._replace(finite=wide is not None, wide_range=bool(wide))
        return replace(problem, options=seen)

    return registry.Cut(
        axes=(("images", problem.batch), ("rows", whole.out_height)),
        needs=((0, 1),),
        problem=part,
        arrays=arrays,
        output=output,
        steps=(1, 1),
        seconds=(0.0, 2.8e-4),  # H100, 16 cores
        both=0.7,
        workspace=_WORKSPACE,
        priced=lambda plan, constants: with_look(plan, plan.problem, constants.machine()),
        look=look,
    )


def band(whole: Window, begin: int, end: int) -> tuple[Window, slice | np.ndarray]:
    """The window of rows ``begin`` to ``end`` of the result, and the rows of the image it is in.

    With boundary "fill" these end where the image does. Else they are those of the image extended
    above and below, so that nothing beyond them is read but to the left and right.
    """
    if (begin, end) == (0, whole.out_height):
        return whole, slice(None)
    first, last = begin - whole.top, end - whole.top + whole.filter_height - 1
    rows: slice | np.ndarray = slice(max(first, 0), min(last, whole.height))
    height, top = rows.stop - rows.start, rows.start - first
    if whole.boundary != "fill":
        if (rows.start, rows.stop) != (first, last):
            rows = fft.places(first, last - first, whole.height, whole.boundary)
        height, top = last - first, 0
    return whole._replace(height=height, out_height=end - begin, top=top, mode=None), rows
