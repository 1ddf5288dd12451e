"""The ways to convolve: why each cannot do a problem, what it takes, what it runs; and the table.

What a method of the CPU runs is ``compute(image, filter, window, out)``: the image a stack
(batch, h, w) of float32 or float64 with contiguous rows, the `Filter` with its values on the host,
of which ``filter.taps`` are flipped already, and ``out``, which takes the result, C-contiguous
(batch, out_height, out_width), and is not cleared before. It gives False where the direct sum is to
take the place of a result that is not finite. The window may be of a band of the image, and then of
no mode of SciPy's; `Window.extended` tells whether anything but zeros lies beyond it, and
`fft.extended` gives one plane of it with that.

To add a method: name it in `problem`, write what it runs, as above or as `device` says, and copy
the row of the table that is most like it; one that adds up more than the filter covers is also in
`_SPREADS` of the package. `cut` gives the ranges in which any of them does a part of a call.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero import registry
from hetero.arrays import HOST, dense
from hetero.host import loops
from hetero.imports import load
from hetero.moving import ranges, streaming
from hetero.ops.convolve2d import fft, filters
from hetero.ops.convolve2d import problem as asked
from hetero.ops.convolve2d.filters import SUMS, Filter
from hetero.ops.convolve2d.problem import DIRECT, FFT, NAME, SCIPY, SEPARABLE, Window
from hetero.pricing import places
from hetero.registry import DEVICE_DTYPES, Arguments, Problem
from hetero.registry.models import Work

if TYPE_CHECKING:
    from hetero.devices.base import Device

Info = dict[str, Any]
Box = tuple[tuple[int, int], ...]
# What a filter's spectrum costs the host, in addition to what a convolution costs it.
_SPECTRUM_CALLS = 0.7
_WORKSPACE = 4  # of transforms, times a range and its result
_SERIAL = 1 << 17  # elements below which NumPy multiplies faster than our threads start

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
    """Two passes per rank need a filter of low rank; devices' shared memory holds a few taps."""
    if (obstacle := spreads(problem, info)) is not None:
        return obstacle
    if not problem.options.rank:
        return "the filter is not known to be of low rank"
    most = load("hetero.kernels.convolution.plan").SEPARABLE_TAPS
    fits = info["kind"] == "cpu" or max(problem.dims[2:]) <= most
    return None if fits else f"it takes filters up to {most} x {most}"


def loses(problem: Problem, info: Info) -> str | None:
    """A transform's error is as large for small values as for the largest; GPUs need cuFFT."""
    if (obstacle := spreads(problem, info)) is not None:
        return obstacle
    if problem.options.wide_range:
        return "values differ so much in size that a transform would lose the small ones"
    if info["kind"] == "cpu" or info.get("elsewhere"):
        return None
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
    """A filter of 2 or 3 taps counts as 2 x 2: only one of a single tap is a mere product; on the
    CPU a column and a row are one product each."""
    filter = problem.dims[2:]
    if info["kind"] == "cpu" and problem.options.is_outer:
        return _of_sum(problem, (1, 1))
    return _of_sum(problem, (2, 2) if 1 < prod(filter) < 4 else filter)


def of_separable(problem: Problem, info: Info) -> Work:
    """As the direct sum with a filter of as many taps as the passes have together."""
    return _of_sum(problem, (problem.options.rank * sum(problem.dims[2:]), 1))


def of_fft_on_cpu(problem: Problem, info: Info) -> Work:
    """One tile or several, as SciPy transforms them; on another machine by its cores."""
    w, cores = problem.options, info.get("cores") if info.get("elsewhere") else None
    return _of_points(problem, fft.weight_on_cpu(w, fft.on_cpu(w, cores), problem.batch, cores))


def of_fft_on_device(problem: Problem, info: Info) -> Work:
    """One tile or several, as cuFFT transforms them.

    A filter that is not remembered by its values is transformed too.
    """
    filter = problem.inputs[1]
    new = filter.location != HOST or filter.size > filters.LARGEST_REMEMBERED
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


# -- What the CPU runs -----------------------------------------------------------------------------


def _on_cpu(compute: Callable[..., Any]) -> Callable[..., None]:
    """``run`` of a function of the CPU."""

    def run(devices: tuple[()], problem: Problem, arguments: Arguments) -> None:
        (image,), out, filter = arguments
        filter, window = filter.downloaded(out.dtype), problem.options
        image = np.asarray(image, out.dtype)
        image = image.reshape(-1, *image.shape[-2:])
        if image.strides[-1] != out.itemsize and image.shape[-1] > 1:
            image = np.ascontiguousarray(image)
        out = out.reshape(-1, window.out_height, window.out_width)
        if compute(image, filter, window, out) is False:
            _direct(image, filter, window, out)

    return run


def _direct(image: np.ndarray, filter: Filter, window: Window, out: np.ndarray) -> None:
    """The sum over the filter's taps: SciPy's few products, outer products, or compiled loops."""
    taps = filter.array
    few = window.has_few(image.dtype.char, len(image))
    one = image.size < _SERIAL or taps.size > 1
    if not few and one and (window.height == 1 or len(taps) == 1) and window.is_outer:
        y, x = window.filter_height - 1 - window.top, window.filter_width - 1 - window.left
        with np.errstate(all="ignore"):  # as the loops, which look at no flags
            out[...] = (image * taps)[:, y : y + window.out_height, x : x + window.out_width]
        if taps.size == 1 or filters.is_finite(out):
            return  # else infinity in the filter meets the zeros beyond the image
    if few or (window.mode is not None and not loops.is_ready(loops.named(SUMS, image.dtype))):
        out[...] = _of_scipys(image, filter, window)
    else:
        _correlate(image, filter, window, out, filter.taps)


def _separable(image: np.ndarray, filter: Filter, window: Window, out: np.ndarray) -> bool:
    """Two one-dimensional passes for each factor."""
    _correlate(image, filter, window, out, *filter.found(filters.low_rank))
    return filters.is_finite(out)


def _correlate(
    image: np.ndarray, filter: Filter, window: Window, out: np.ndarray, *taps: np.ndarray
) -> None:
    """The compiled loops, which load Numba."""
    corner, code = (window.top, window.left), asked.BOUNDARIES.index(window.boundary)
    correlate = load("hetero.kernels.cpu.convolve").correlate
    correlate(image, out, corner, code, filter.fillvalue, *taps)


def examples(dtype: np.dtype) -> None:
    """Call every loop: the direct sum and the two passes share them; and the look at values."""
    image, taps = np.ones((1, 64, 64), dtype), np.ones((3, 3), dtype)
    convolve, vectors = (load(f"hetero.kernels.cpu.{name}") for name in ("convolve", "vectors"))
    convolve.correlate(image, np.zeros_like(image), (1, 1), convolve.WRAP, 0.0, taps)
    vectors.block_bounds(image, 9, np.empty((1, 9, 3)))


def _loops(problem: Problem) -> tuple[str, ...]:
    return (loops.named(SUMS, problem.dtype),)


def loops_of_direct(problem: Problem) -> tuple[str, ...]:
    """The compiled loops that the direct sum needs: where it is SciPy's or NumPy's none."""
    few = problem.options.has_few(np.dtype(problem.dtype).char, problem.batch)
    return () if few or problem.options.is_outer else _loops(problem)


# -- SciPy -----------------------------------------------------------------------------------------

# Taps, at 1.5 us each and more, that NumPy's sums have in a process before they have taken as long
# as to import `scipy.signal`, which does small images in less.
_MOST_TAPS = 300_000
_SUMMED = "fdbBhHiIlLqQ"  # dtypes of these sums
_summed = {"taps": 0}


def scipys(in1: Any, in2: Any, mode: str, boundary: str, fillvalue: Any) -> Any:
    """`scipy.signal.convolve2d`; where nobody imported it, which takes half a second, a sum by
    NumPy, where that gives what SciPy does and takes less."""
    if (
        "scipy.signal" in sys.modules
        or _summed["taps"] > _MOST_TAPS
        or type(fillvalue) not in (int, float)
        or fillvalue != 0
        or not in1.size * in2.size
        or (dtype := np.result_type(in1, in2)).char not in _SUMMED
    ):
        return load("scipy.signal").convolve2d(in1, in2, mode, boundary, fillvalue)
    _summed["taps"] += in2.size
    if mode == "valid" and asked.swapped(in1.shape, in2.shape):
        in1, in2 = in2, in1
    image, filter = in1.astype(dtype, copy=False), in2.astype(dtype, copy=False)
    window = asked.window_of(image.shape, filter.shape, mode, boundary)
    height, width = window.out_height, window.out_width
    down = slice(-window.top, height + window.filter_height - 1 - window.top)
    across = slice(-window.left, width + window.filter_width - 1 - window.left)
    image = fft.extended(image, window, 0, down, across)
    out, product = np.zeros((height, width), dtype), np.empty((height, width), dtype)
    with np.errstate(all="ignore"):  # as SciPy's loop, which looks at no flags
        for (i, j), tap in np.ndenumerate(filter[::-1, ::-1]):
            out += np.multiply(image[i : i + height, j : j + width], tap, out=product)
    return out


def _by_scipy(devices: tuple[()], problem: Problem, arguments: Arguments) -> None:
    (image,), out, filter = arguments
    out[...] = _of_scipys(image, filter, problem.options)


def _of_scipys(image: np.ndarray, filter: Filter, window: Window) -> np.ndarray:
    """`scipy.signal.convolve2d` of each image of a stack (..., h, w)."""
    boundary, fillvalue = window.boundary, filter.fillvalue
    if not image.size:  # SciPy divides by the extents of what it repeats
        boundary, fillvalue = "fill", fillvalue if boundary == "fill" else 0
    given = filter.array, window.mode, boundary, fillvalue
    front, shape, number = image.shape[:-2], image.shape[-2:], prod(image.shape[:-2])
    planes = image.reshape(number, *shape) if number else np.zeros((1, *shape), image.dtype)
    found = np.stack([scipys(plane, *given) for plane in planes])
    return found[:number].reshape(*front, *found.shape[1:])


# -- What devices run, and the table ---------------------------------------------------------------


_device = functools.partial(load, "hetero.ops.convolve2d.device")


def _on_device(name: str) -> dict[str, Callable[..., Any]]:
    """``run`` and ``prepare`` of a function of `device`, of which no launch is made ahead."""

    def run(devices: tuple[Device], problem: Problem, arguments: Arguments) -> None:
        (image,), output, filter = arguments
        getattr(_device(), name)(devices[0], problem, image, filter, output)

    def prepare(device: Any, problem: Problem, aligned: int, given: Filter) -> Any:
        storage, kept = load("hetero.devices.storage"), given.at(0)

        def launch(image: int, filter: int, out: int) -> None:
            with device.active(), storage.limited_to(places.memory_limit()):
                getattr(_device(), name)(device, problem, image, kept.at(filter), out)

        return launch

    return {"run": run, "prepare": prepare}


_DIRECT = {"run": _on_device("direct")["run"]}
_PREPARED = {"prepare": lambda *given: _device().prepared_direct(*given)}
for kinds, method, excludes, work, more in (
    (("cpu",), DIRECT, not_real, of_direct, {"run": _on_cpu(_direct), "loops": loops_of_direct}),
    (("cpu",), SEPARABLE, high_rank, of_separable, {"run": _on_cpu(_separable), "loops": _loops}),
    (("cpu",), FFT, loses, of_fft_on_cpu, {"run": _on_cpu(fft.convolve)}),
    (("cpu",), SCIPY, not_plain, of_direct, {"run": _by_scipy}),
    (("cuda",), DIRECT, not_real, of_direct, _DIRECT | _PREPARED),
    (("opencl",), DIRECT, not_real, of_direct, _DIRECT),
    (registry.PORTABLE, SEPARABLE, high_rank, of_separable, _on_device("separable")),
    (("cuda",), FFT, loses, of_fft_on_device, _on_device("convolve")),
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
        window, (first, last) = band(whole, *box[1])[0], box[0]
        shape = (*(last - first,) * stacked, window.height, window.width)
        some = dense(shape, dtype, place)
        if place == HOST:
            some = image._replace(shape=shape, strides=image.strides[-len(shape) :])
        return asked.described(some, filter, dtype, window)

    def arrays(box: Box, given: tuple[np.ndarray]) -> tuple[np.ndarray]:
        return (images(np.asarray(given[0], dtype), box)[..., band(whole, *box[1])[1], :],)

    def output(box: Box, out: np.ndarray) -> np.ndarray:
        return images(out, box)[..., slice(*box[1]), :]

    def images(stack: np.ndarray, box: Box) -> np.ndarray:
        return stack.reshape(-1, *stack.shape[-2:])[slice(*box[0])] if stacked else stack

    def look(plan: Any, found: np.ndarray, filter: Filter) -> Problem:
        """The problem of a range as its values decide it: a transform might lose some."""
        problem = plan.problem
        if plan.chosen.method != FFT:
            return problem
        wide = filters.is_wide(found, filter, problem.options)
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
        priced=lambda plan, constants: filters.with_look(plan, constants.machine()),
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
            rows = fft.places(first, last, whole.height, whole.boundary)
        height, top = last - first, 0
    return whole._replace(height=height, out_height=end - begin, top=top, mode=None), rows
