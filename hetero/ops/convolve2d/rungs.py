"""The rungs of convolution: kernels on the way to "direct", each taken by its name only."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero import registry
from hetero.imports import load
from hetero.kernels import LaunchPlan
from hetero.kernels.convolution.rungs import RUNGS, Shape, chosen, plan_rung, shapes
from hetero.kernels.procedure.card import Card
from hetero.ops import rungs
from hetero.ops.convolve2d.window import Window
from hetero.registry import Arguments
from hetero.registry.problem import Problem

if TYPE_CHECKING:
    from hetero.devices.base import Device


@functools.lru_cache(maxsize=1024)
def _plan(
    rung: str,
    window: Window,
    batch: int,
    dtype: str,
    strides: tuple[tuple[int, ...], ...],
    tap_strides: tuple[int, int] | None,
    card: Card,
    shape: Shape | None,
) -> LaunchPlan:
    image_strides, out_strides = strides
    return plan_rung(
        rung,
        **window.extents,
        batch=batch,
        dtype=dtype,
        image_strides=image_strides,
        out_strides=out_strides,
        tap_strides=tap_strides,
        card=card,
        shape=shape,
    )


def _launch(
    rung: str, device: Device, problem: Problem, arguments: Arguments, shape: Shape | None = None
) -> None:
    taps_on = load("hetero.ops.convolve2d.direct_device").taps_on
    (image,), output, options = arguments
    taps, owner, strides = taps_on(device, options.filter, problem)
    p, card = problem, device.card()
    planned = _plan(rung, p.options, p.batch, p.dtype, p.strides, strides, card, shape)
    buffers = {"image": image, "taps": taps, "out": output, "fillvalue": options.fillvalue}
    device.run_launches(planned, buffers, np.dtype(problem.dtype).itemsize)
    del owner


def _blocks(rung: str, device: Device, problem: Problem) -> tuple[tuple[Shape, ...], Shape]:
    w, card, dtype = problem.options, device.card(), problem.dtype
    taps = w.filter_height, w.filter_width
    own = chosen(rung, dtype, problem.batch * w.out_height, w.out_width, taps, card)
    return shapes(rung, dtype, card), own


def register(operation: str, excludes: Callable[..., Any], work: Callable[..., Any]) -> None:
    """Add the rungs' rows for an operation."""
    for name, rung in RUNGS.items():
        registry.register_method(
            operation=operation,
            method=name,
            kinds=registry.PORTABLE,
            excludes=excludes,
            work=work,
            **rungs.fields(name, _launch, _blocks),
            rung=rung,
        )
