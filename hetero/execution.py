"""Running a plan: operands to the chosen device, compute, the result to where it must be.

What runs is what the plan chose. If the device fails, the result still comes, from the CPU, with
one warning; a device that fails a second time is set aside for the process.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from hetero import devices, inventory, registry, transfer
from hetero.arrays import HOST, Operand
from hetero.devices.base import Device
from hetero.errors import DeviceError
from hetero.planner import CPU, Plan
from hetero.problem import Problem
from hetero.registry import Implementation

log = logging.getLogger("hetero")


def execute(
    plan: Plan,
    arrays: tuple[Any, ...],
    operands: tuple[Operand, ...],
    out: Any,
    target: Operand | None,
) -> Any:
    """Run the chosen candidate of a plan.

    Parameters
    ----------
    plan : Plan
    arrays, operands
        The caller's arrays and their descriptions.
    out, target
        The caller's ``out`` and its description, or None.

    Returns
    -------
    ``out``, or a new array of the caller's type: NumPy where all operands lie on the host.
    """
    problem = plan.problem
    chosen = plan.chosen
    if chosen.device != CPU:
        device = devices.get(chosen.device)
        try:
            return _on_device(device, chosen.implementation, problem, arrays, operands, out, target)
        except DeviceError as error:
            _report(device.name, error)
    implementation = chosen.implementation
    if implementation.kind != CPU:
        implementation = next(i for i in registry.lookup(problem.operation) if i.kind == CPU)
    return _on_cpu(implementation, problem, arrays, operands, out, target)


def _report(name: str, error: DeviceError) -> None:
    if devices.strike(name, error):
        log.warning("%s failed again (%s) and is set aside; its calls run on the CPU", name, error)
        inventory.changed()
    elif devices.set_aside(name) is None:
        log.warning("%s failed (%s); the CPU computes this call", name, error)


def _on_cpu(
    implementation: Implementation,
    problem: Problem,
    arrays: tuple[Any, ...],
    operands: tuple[Operand, ...],
    out: Any,
    target: Operand | None,
) -> Any:
    assert implementation.run is not None
    hosts = [
        array if operand.location == HOST else transfer.to_host(array, operand)
        for array, operand in zip(arrays, operands, strict=True)
    ]
    if problem.output.location == HOST:
        return implementation.run(None, problem, hosts, out)
    result = np.asarray(implementation.run(None, problem, hosts, None))
    return _to_caller(result, problem, arrays, operands, out, target)


def _to_caller(
    result: np.ndarray,
    problem: Problem,
    arrays: tuple[Any, ...],
    operands: tuple[Operand, ...],
    out: Any,
    target: Operand | None,
) -> Any:
    """Host values as a device array of the caller's type, or in the caller's ``out``."""
    if out is None:
        out, target = _new_output(problem, arrays, operands)
    assert target is not None
    transfer.from_host(result, out, target)
    return out


def _new_output(
    problem: Problem, arrays: tuple[Any, ...], operands: tuple[Operand, ...]
) -> tuple[Any, Operand]:
    like, operand = next(
        (a, o) for a, o in zip(arrays, operands, strict=True) if o.location != HOST
    )
    out, pointer = transfer.empty_like(like, operand, problem.output.shape, problem.output.dtype)
    return out, problem.output._replace(pointer=pointer, stream=operand.stream)


def _on_device(
    device: Device,
    implementation: Implementation,
    problem: Problem,
    arrays: tuple[Any, ...],
    operands: tuple[Operand, ...],
    out: Any,
    target: Operand | None,
) -> Any:
    run = implementation.run
    assert run is not None
    result = problem.output
    with device.active():
        unordered = any(transfer.needs_synchronizing(o) for o in operands) or (
            target is not None and transfer.needs_synchronizing(target)
        )
        if unordered:
            device.synchronize()
        staged = [
            transfer.stage(device, array, operand)
            for array, operand in zip(arrays, operands, strict=True)
        ]
        inputs = [buffer for buffer, _ in staged]
        if result.location == device.name:
            if out is None:
                out, target = _new_output(problem, arrays, operands)
            run(device, problem, inputs, target.pointer)
            if unordered:
                device.synchronize()
            return out
        buffer, owner = device.allocate(max(result.nbytes, 1))
        run(device, problem, inputs, buffer)
        if result.location == HOST:
            values = transfer.fetch(device, buffer, result.shape, result.dtype, out)
            del owner
            return values[()] if out is None else out  # NumPy gives a scalar for no axes
        values = transfer.fetch(device, buffer, result.shape, result.dtype, None)
        return _to_caller(values, problem, arrays, operands, out, target)
