"""Images that do not fit a device: convolved there in bands of rows, one after the other.

`rows_with_room` cuts what is larger than a device's memory, `halves` what found no room in what is
free.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.arrays import HOST, describe
from hetero.errors import MethodNotAvailable
from hetero.ops.convolve2d.operands import Call, described
from hetero.ops.convolve2d.window import Window
from hetero.runtime import planner

LARGE = 1 << 30  # bytes of image and result below which every device is taken to have room
# Of a device's memory, for a band and its result; transforms need as much again, or more.
_SHARE = 0.3
_SMALLEST = 1 << 20  # bytes; a device without room for them has none


def rows_with_room(call: Call, found: Window) -> int | None:
    """How many rows of the result fit the largest device; None where all of them do.

    Parameters
    ----------
    call : Call
        Nothing but a single image on the host is cut.
    found : Window
        Of the whole.
    """
    a, b = call.a, call.b
    if not a.location == b.location == HOST or len(a.shape) > 2 or a.nbytes + b.nbytes <= LARGE / 2:
        return None
    needed = a.nbytes + found.out_height * found.out_width * call.dtype.itemsize
    rooms = [
        info["memory_bytes"]
        for name, info in call.machine.devices().items()
        if info["kind"] != planner.CPU
        and not info.get("set_aside")
        and call.device in (None, name, info["kind"])
    ]
    if not rooms or needed <= 0.9 * max(rooms):
        return None
    return min(max(int(found.out_height * _SHARE * max(rooms) / needed), 1), found.out_height)


def halves(plan: planner.Plan, call: Any) -> np.ndarray | None:
    """The convolution of a host image, or of a stack of them, in two halves on the plan's device.

    Parameters
    ----------
    plan : Plan
        Of the whole.
    call : hetero.runtime.execution.Call

    Returns
    -------
    array or None
        None where the call is small, has nothing to cut, or uses arrays on devices, and where the
        device is no longer used.

    Raises
    ------
    DeviceError
        If a half, which is done whole or in halves again, fails too.
    """
    problem, (image,) = plan.problem, call.arrays
    found, options = problem.window, call.options
    if (
        any(o.location != HOST for o in (*call.operands, problem.output))
        or call.operands[0].nbytes + problem.output.nbytes < _SMALLEST
        or image.shape[0] < 2
    ):
        return None
    out = np.empty(problem.output.shape, problem.output.dtype)
    middle = out.shape[0] // 2
    for begin, end in ((0, middle), (middle, out.shape[0])):
        if image.ndim > 2:
            part, half = image[begin:end], found
        else:
            half = band(found, end - begin)
            if half.height >= found.height:
                return None
            part = extended_rows(image, begin - found.top, half.height, found, options.fillvalue)
        made = _attempt_half(plan, half, part, options)
        if made is None:
            return None
        out[begin:end] = made
    return out


def _attempt_half(plan: planner.Plan, found: Window, image: np.ndarray, options: Any) -> Any:
    from hetero.runtime import execution

    operand, taps = describe(image), plan.problem.inputs[1]
    problem = described(operand, taps, np.dtype(plan.problem.dtype), found)
    try:
        half = planner.plan(problem, plan.chosen.device, plan.chosen.method)
    except MethodNotAvailable:
        return None
    if half.chosen.device != plan.chosen.device:  # which was set aside meanwhile
        return None
    call = execution.Call((image,), (operand,), options=options, pieces=halves)
    return execution.attempt(half, call)


def band(whole: Window, rows: int) -> Window:
    """The window of so many rows of the result, of the rows of the image that they read."""
    return whole._replace(height=rows + whole.filter_height - 1, out_height=rows, top=0)


def extended_rows(
    image: np.ndarray, first: int, count: int, found: Window, fillvalue: float
) -> np.ndarray:
    """Rows of the image extended above and below; a view where none of them lies outside."""
    h = found.height
    if first >= 0 and first + count <= h:
        return np.ascontiguousarray(image[first : first + count])
    at = np.arange(first, first + count)
    if found.boundary == "fill":
        part = np.full((count, found.width), fillvalue, image.dtype)
        inside = (at >= 0) & (at < h)
        part[inside] = image[at[inside]]
        return part
    at %= h if found.boundary == "wrap" else 2 * h
    return np.ascontiguousarray(image[np.where(at < h, at, 2 * h - 1 - at)])
