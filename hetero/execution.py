"""Running a plan: operands to the chosen device, compute, the result to where it must be.

What runs is what the plan chose. If the device fails, the result still comes, from the CPU, with
one warning; a device that fails a second time is set aside for the process.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from hetero import devices, inventory, registry, transfer
from hetero.arrays import HOST, Operand, overlap
from hetero.devices.base import Device, DeviceArray
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
    out = transfer.empty_like(like, operand, problem.output.shape, problem.output.dtype)
    return out, transfer.describe(out)


def _on_device(
    device: Device,
    implementation: Implementation,
    problem: Problem,
    arrays: tuple[Any, ...],
    operands: tuple[Operand, ...],
    out: Any,
    target: Operand | None,
) -> Any:
    assert implementation.run is not None
    with device.active():
        unordered = any(transfer.needs_synchronizing(o) for o in operands) or (
            target is not None and transfer.needs_synchronizing(target)
        )
        if unordered:
            device.synchronize()
        inputs = [
            transfer.stage(device, array, operand)
            for array, operand in zip(arrays, operands, strict=True)
        ]
        if problem.output.location != device.name:
            output = device.empty(problem.output.shape, problem.output.dtype)
            implementation.run(device, problem, inputs, output)
            if problem.output.location == HOST:
                result = transfer.fetch(device, output, out)
                return result[()] if out is None else out  # NumPy gives a scalar for no axes
            result = transfer.fetch(device, output, None)
            return _to_caller(result, problem, arrays, operands, out, target)
        if out is None:
            out, target = _new_output(problem, arrays, operands)
        assert target is not None
        if any(overlap(target, operand) for operand in operands):
            # Written only after everything is read: computed apart, then put in its place.
            output = device.empty(problem.output.shape, problem.output.dtype)
            implementation.run(device, problem, inputs, output)
            transfer.from_host(transfer.fetch(device, output, None), out, target)
        else:
            strides = target.staged_strides()
            assert strides is not None
            output = DeviceArray(target.pointer, target.shape, strides, target.dtype, out)
            implementation.run(device, problem, inputs, output)
        if unordered:
            device.synchronize()
        return out
