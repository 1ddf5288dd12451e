"""Images that do not fit a device: convolved there in bands of rows, one after the other.

`attempt` cuts what is larger than a device's memory, `halves` what found no room in what is free.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.arrays import HOST, Spec, describe
from hetero.errors import MethodNotAvailable
from hetero.ops.convolve2d.operands import described, rank_of, request_of, window
from hetero.runtime import planner
from hetero.runtime.problem import Window

LARGE = 1 << 30  # bytes of image and result below which every device is taken to have room
_SHARE = (
    0.3  # of a device's memory for a band and its result; transforms need as much again, or more
)
_SMALLEST = 1 << 20  # bytes; a device without room for them has none


def attempt(call: Any, filter: Any) -> np.ndarray | None:
    """The result by bands; None where a device has room, or the CPU is faster.

    Parameters
    ----------
    call : hetero.ops.convolve2d._Call
        Its image a (h, w) array on the host.
    filter : Filter
        Its values known.
    """
    from hetero.runtime import execution, inventory

    found = window(
        call.a.shape, call.b.shape, call.mode, call.boundary, bool(call.fillvalue), rank_of(filter)
    )
    size = call.dtype.itemsize
    needed = call.a.nbytes + found.out_height * found.out_width * size
    rooms = [
        info["memory_bytes"]
        for name, info in inventory.devices().items()
        if info["kind"] != planner.CPU
        and not info.get("set_aside")
        and call.device in (None, name, info["kind"])
    ]
    if not rooms or needed <= 0.9 * max(rooms):
        return None
    rows = max(int(found.out_height * _SHARE * max(rooms) / needed), 1)
    taps = Spec(call.b.shape, call.dtype).operand()

    def plan(number: int) -> planner.Plan:
        band = _band(found, number)
        image = Spec((band.height, band.width), call.dtype).operand()
        problem = described(image, taps, call.dtype, band)
        return planner.plan(problem, call.device, call.method)

    first = plan(min(rows, found.out_height))
    if first.chosen.device == planner.CPU:
        return None
    if call.device is None:
        whole = planner.plan(described(call.a, taps, call.dtype, found), planner.CPU)
        bands = -(-found.out_height // rows)
        if (first.seconds or 0.0) * bands >= (whole.seconds or float("inf")):
            return None
    out = np.empty((found.out_height, found.out_width), call.dtype)
    for begin in range(0, found.out_height, rows):
        number = min(rows, found.out_height - begin)
        top = begin - found.top
        part = _rows(call.image, top, number + found.filter_height - 1, found, call.fillvalue)
        request = request_of(filter, call.fillvalue)
        made = execution.execute(
            plan(number), execution.Call((part,), (describe(part),), options=request, pieces=halves)
        )
        out[begin : begin + number] = made
    return out


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
    found, request = problem.window, call.options
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
            part, band = image[begin:end], found
        else:
            band = _band(found, end - begin)
            if band.height >= found.height:
                return None
            part = _rows(image, begin - found.top, band.height, found, request.fillvalue)
        made = _attempt_half(plan, band, part, request)
        if made is None:
            return None
        out[begin:end] = made
    return out


def _attempt_half(plan: planner.Plan, found: Window, image: np.ndarray, request: Any) -> Any:
    from hetero.runtime import execution

    operand, taps = describe(image), plan.problem.inputs[1]
    problem = described(operand, taps, np.dtype(plan.problem.dtype), found)
    try:
        half = planner.plan(problem, plan.chosen.device, plan.chosen.method)
    except MethodNotAvailable:
        return None
    if half.chosen.device != plan.chosen.device:  # which was set aside meanwhile
        return None
    call = execution.Call((image,), (operand,), options=request, pieces=halves)
    return execution.attempt(half, call)


def _band(whole: Window, rows: int) -> Window:
    """The window of so many rows of the result, of the rows of the image that they read."""
    return whole._replace(height=rows + whole.filter_height - 1, out_height=rows, top=0)


def _rows(image: np.ndarray, first: int, count: int, found: Window, fillvalue: float) -> np.ndarray:
    """Rows of the image extended above and below; a view where none of them lies outside."""
    h = found.height
    if first >= 0 and first + count <= h:
        return np.ascontiguousarray(image[first : first + count])
    at = np.arange(first, first + count)
    if found.boundary == "wrap":
        return image[at % h]
    if found.boundary == "symm":
        at %= 2 * h
        return image[np.where(at < h, at, 2 * h - 1 - at)]
    part = np.full((count, found.width), fillvalue, image.dtype)
    inside = (at >= 0) & (at < h)
    part[inside] = image[at[inside]]
    return part
