"""The ways to convolve: the rows of the registry, and what each runs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero import registry
from hetero.imports import load
from hetero.moving import pipeline
from hetero.ops.convolve2d import loops, obstacles, rungs, streamed, work
from hetero.ops.convolve2d.operands import NAME
from hetero.registry import Arguments
from hetero.registry.problem import Problem

if TYPE_CHECKING:
    from hetero.devices.base import Device


def _loops(problem: Problem) -> tuple[str, ...]:
    return (loops.SUMS.of(problem.dtype),)


def _loops_of_direct(problem: Problem) -> tuple[str, ...]:
    dtype = np.dtype(problem.dtype)
    few = loops.are_few(problem.options, problem.batch, dtype)
    return () if few or loops.is_one(problem.options, problem.batch) else _loops(problem)


def _on_cpu(module: str, name: str) -> Callable[..., Any]:
    """``run`` of a method on the CPU, whose module is loaded when it is first used."""

    @functools.cache
    def loaded() -> Callable[..., Any]:
        return getattr(load(f"hetero.ops.convolve2d.{module}"), name)

    def run(devices: tuple[()], problem: Problem, arguments: Arguments) -> None:
        (image,), out, options = arguments
        if options.filter.array is None:
            options = options._replace(filter=options.filter.downloaded())
        window = problem.options
        planes = out.reshape(-1, window.out_height, window.out_width)
        loaded()(as_stack(image, out.dtype), options, window, planes)

    return run


def as_stack(image: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The image as (batch, h, w) of the dtype that is computed in, rows contiguous."""
    image = np.asarray(image, dtype)
    image = image.reshape(-1, *image.shape[-2:])
    if image.strides[-1] != dtype.itemsize and image.shape[-1] > 1:
        image = np.ascontiguousarray(image)
    return image


def _by_scipy(devices: tuple[()], problem: Problem, arguments: Arguments) -> None:
    by_scipy = load("hetero.ops.convolve2d.scipy_cpu").by_scipy
    (image,), out, options = arguments
    out[...] = by_scipy(image, options, problem.options)


def _on_device(name: str) -> Callable[..., Any]:
    def run(devices: tuple[Device], problem: Problem, arguments: Arguments) -> None:
        direct_device = load("hetero.ops.convolve2d.direct_device")
        (image,), output, options = arguments
        getattr(direct_device, name)(devices[0], problem, image, options, output)

    return run


def _prepare_direct(device: Any, problem: Problem, aligned: int, options: Any) -> Any:
    direct_device = load("hetero.ops.convolve2d.direct_device")
    return direct_device.prepared_direct(device, problem, aligned, options)


def _by_cufft(axes: work.Axes) -> Callable[..., Any]:
    def run(devices: tuple[Device], problem: Problem, arguments: Arguments) -> None:
        fft_device = load("hetero.ops.convolve2d.fft_device")
        (image,), output, options = arguments
        fft_device.run(devices[0], problem, image, options, output, axes(problem, {}))

    return run


_COMPILED, _SCIPY = ("loops", "numba"), ("scipy",)
_CUFFT = ("nvmath-python", "nvidia-cufft")
registry.register_method(
    operation=NAME,
    method="direct",
    kinds=("cpu",),
    excludes=obstacles.not_real,
    work=work.of_direct,
    run=_on_cpu("direct_cpu", "direct"),
    loops=_loops_of_direct,
    uses=_COMPILED,
)
registry.register_method(
    operation=NAME,
    method="separable",
    kinds=("cpu",),
    excludes=obstacles.high_rank,
    work=work.of_separable_on_cpu,
    run=_on_cpu("direct_cpu", "separable"),
    loops=_loops,
    uses=_COMPILED,
)
registry.register_method(
    operation=NAME,
    method="fft",
    kinds=("cpu",),
    excludes=obstacles.loses,
    work=work.of_transforms_on_cpu(work.whole_on_cpu),
    run=_on_cpu("fft_cpu", "whole"),
    uses=_SCIPY,
)
registry.register_method(
    operation=NAME,
    method="overlap_save",
    kinds=("cpu",),
    excludes=obstacles.or_one_tile(obstacles.loses, work.tiles_on_cpu),
    work=work.of_transforms_on_cpu(work.tiles_on_cpu),
    run=_on_cpu("fft_cpu", "overlap_save"),
    uses=_SCIPY,
)
registry.register_method(
    operation=NAME,
    method="library",
    kinds=("cpu",),
    excludes=obstacles.not_opencvs,
    work=work.of_direct,
    run=_on_cpu("opencv", "filter2d"),
    uses=("opencv-python", "opencv-python-headless"),
)
registry.register_method(
    operation=NAME,
    method="scipy",
    kinds=("cpu",),
    excludes=obstacles.no_mode,
    work=work.of_direct,
    run=_by_scipy,
    stands_in=obstacles.stands_in,
    uses=_SCIPY,
)
registry.register_method(
    operation=NAME,
    method="direct",
    kinds=("cuda",),
    excludes=obstacles.not_real,
    work=work.of_direct,
    run=_on_device("direct"),
    prepare=_prepare_direct,
)
registry.register_method(
    operation=NAME,
    method="direct",
    kinds=("opencl",),
    excludes=obstacles.not_real,
    work=work.of_direct,
    run=_on_device("direct"),
)
registry.register_method(
    operation=NAME,
    method="separable",
    kinds=registry.PORTABLE,
    excludes=obstacles.high_rank_or_large,
    work=work.of_separable,
    run=_on_device("separable"),
)
registry.register_method(
    operation=NAME,
    method="fft",
    kinds=("cuda",),
    excludes=obstacles.loses_or_no_cufft,
    work=work.of_transforms_by_cufft(work.whole_on_device),
    run=_by_cufft(work.whole_on_device),
    uses=_CUFFT,
)
registry.register_method(
    operation=NAME,
    method="overlap_save",
    kinds=("cuda",),
    excludes=obstacles.or_one_tile(obstacles.loses_or_no_cufft, work.tiles_on_device),
    work=work.of_transforms_by_cufft(work.tiles_on_device),
    run=_by_cufft(work.tiles_on_device),
    uses=_CUFFT,
)
registry.register_method(
    operation=NAME,
    method="streamed",
    kinds=registry.PORTABLE,
    excludes=obstacles.not_streamed,
    work=work.of_direct,
    run=streamed.STREAMED.run,
    blocks=registry.ALWAYS,
    price=streamed.STREAMED.price,
    stands_in=pipeline.stands_in,
)
rungs.register(NAME, obstacles.not_real, work.of_direct)
