"""A method of convolve2d that somebody adds: its own file, of which a row in the registry tells.

It transforms, by SciPy's function, and pretends to be good at it.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator

import numpy as np
from scipy.signal import fftconvolve

from hetero import profile, registry
from hetero.ops.convolve2d.traits import Traits
from hetero.registry.models import Work
from hetero.registry.problem import DEVICE_DTYPES, Problem

METHOD = "toy"
CONSTANT = {
    "form": "roofline",
    "constants": {"overhead": 1e-6, "flops_per_second": 1e13, "bytes_per_second": 1e12},
}


def excludes(problem: Problem, info: dict) -> str | None:
    w = problem.options
    if problem.dtype not in DEVICE_DTYPES or problem.batch != 1 or w.extended:
        return "one image of real numbers, with zeros beyond it"
    if not w.finite or w.wide_range:
        return "a transform would spread these values"
    return None


def work(problem: Problem, info: dict) -> Work:
    number = problem.output.size
    return Work((number,), 10.0 * number, 8.0 * number)


def run(devices: tuple, problem: Problem, arguments: registry.Arguments) -> None:
    (image,), out, options = arguments
    w = problem.options
    whole = fftconvolve(image.reshape(w.height, w.width), options.filter.array)
    top, left = w.filter_height - 1 - w.top, w.filter_width - 1 - w.left
    out[...] = whole[top : top + w.out_height, left : left + w.out_width].reshape(out.shape)


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Its row, and its constant where nothing was calibrated; afterwards all is as it was."""
    before = registry._implementations
    registry._implementations = {name: [*rows] for name, rows in before.items()}
    data = copy.deepcopy(profile.shipped("conservative").data)
    for dtype in DEVICE_DTYPES:
        data["models"][f"cpu|convolve2d|{METHOD}|{dtype}|*"] = CONSTANT
    profile.set_current(profile.Profile(data))
    try:
        registry.register_method(
            operation="convolve2d",
            method=METHOD,
            kinds=("cpu",),
            excludes=excludes,
            work=work,
            run=run,
            traits=Traits(spreads=True, transforms=True, form="surface", images=(32, 128, 512)),
        )
        yield
    finally:
        registry._implementations = before
        profile.set_current(None)


def image(shape: tuple[int, int], spoil: float | None = None) -> np.ndarray:
    """Random numbers, one of which may be another one."""
    found = np.random.default_rng(0).random(shape)
    if spoil is not None:
        found[shape[0] // 2, 3] = spoil
    return found
