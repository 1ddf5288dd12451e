"""Results that stay on the device that computed them: ``hetero.use(results="device")``.

A call on operands in host memory leaves its result where it was computed, as an array of a library
that is here; the next call takes it as it is. Calls on arrays of a device leave their results there
in any case, so what is decided here is the first call of a chain.

The rule by which staying is priced: the next call is expected on the device that was named, or else
on the first one. A result that stays on a device costs no download. What is computed on the host is
charged its upload to that device. Devices that bring a result to the host, several together or in
blocks, are taken by name only, or where no other can: each of the next calls would move it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import numpy as np

from hetero import devices
from hetero.arrays import HOST, Operand, describe, maker_for
from hetero.devices.base import Device
from hetero.errors import DeviceError, DeviceMemoryError
from hetero.pricing import settings
from hetero.pricing.plan import CPU, Plan
from hetero.profile import inventory
from hetero.registry.problem import Problem

# ``look(device, dtype, buffer, count)`` may enqueue a look at packed values of a host call's result
# where a device has computed them, before they are downloaded.
look: ContextVar[Callable[[Device, str, Any, int], None] | None] = ContextVar("look", default=None)


def wanted() -> bool:
    """Whether the enclosing `use` blocks let results stay."""
    outer = settings.forced.get()
    return outer is not None and outer.results == "device"


def staying(problem: Problem, device: str | None) -> Problem:
    """The problem, its result to stay where it is computed, if the `use` blocks say so.

    Unchanged where an operand lies on a device, and where there is no device that keeps arrays.

    Parameters
    ----------
    problem : Problem
        Of a call without ``out``.
    device : str or None
        The device that the caller named.
    """
    if not wanted() or problem.device is not None:
        return problem
    place = _next_device(device)
    return problem if place is None else replace(problem, next_device=place)


def _next_device(device: str | None) -> str | None:
    """Where the next call is expected."""
    for name, info in inventory.devices().items():
        if info["kind"] == CPU or info.get("set_aside"):
            continue
        named = device in (name, info["kind"], f"{info['kind']}:*")
        if named or (device is None and not info.get("is_host_cpu")):
            return name if devices.get(name).has_arrays else None
    return None


def on_host(plan: Plan) -> Plan:
    """A plan whose result goes to the host, whatever `staying` said."""
    if plan.problem.next_device is None:
        return plan
    return replace(plan, problem=replace(plan.problem, next_device=None))


def placed(device: Device, problem: Problem, call: Any) -> tuple[Problem, Any]:
    """Problem and `execution.Call` of a run on a device, with an array there for what stays."""
    if problem.next_device is None or call.out is not None or not device.has_arrays:
        return problem, call
    made, target = new_array(device, problem.output.shape, problem.output.dtype)
    output = problem.output._replace(location=device.name)
    return replace(problem, output=output), call._replace(out=made, target=target)


def new_array(device: Device, shape: tuple[int, ...], dtype: np.dtype) -> tuple[Any, Operand]:
    """A new C-contiguous array on a device, of a library that is here, and its description.

    CuPy's on a CUDA device, else of the type of the device's own library.

    Raises
    ------
    DeviceError
        If there is no room for it, or the library fails.
    """
    make = maker_for(device.kind) if device.same_in_threads() else None
    with device.active():
        if make is None:
            made, _ = device.new_array(shape, dtype)
        else:
            try:
                made = make(device, shape, dtype)
            except MemoryError as error:
                raise DeviceMemoryError(f"out of device memory: {error}") from error
            except RuntimeError as error:
                raise DeviceError(str(error)) from error
    target = describe(made)
    assert target.location != HOST
    return made, target
