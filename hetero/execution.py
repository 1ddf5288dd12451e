"""Running a plan: operands to the chosen device, compute, the result to where it must be.

What runs is what the plan chose. If the device fails, the result still comes, from the CPU, with
one warning; a device that fails a second time is set aside for the process.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np

from hetero import devices, inventory, registry, transfer
from hetero.arrays import HOST, Operand
from hetero.devices.base import Device
from hetero.errors import DeviceError, GraphError
from hetero.planner import CPU, Plan, capturing
from hetero.problem import Problem
from hetero.registry import Implementation

log = logging.getLogger("hetero")
_without_fallback: ContextVar[bool] = ContextVar("hetero_without_fallback", default=False)


class Call(NamedTuple):
    """One call's data.

    Attributes
    ----------
    arrays, operands
        The caller's arrays and their descriptions.
    out, target
        The caller's ``out`` and its description, or None.
    also
        What the implementation gets after the arrays, as it is.
    """

    arrays: tuple[Any, ...]
    operands: tuple[Operand, ...]
    out: Any = None
    target: Operand | None = None
    also: tuple[Any, ...] = ()

    def with_output(self, problem: Problem) -> Call:
        """This call with an ``out`` on the device: the caller's, or a new array of their type."""
        if self.out is not None:
            return self
        like, operand = next(
            (a, o) for a, o in zip(self.arrays, self.operands, strict=True) if o.location != HOST
        )
        result = problem.output
        out, pointer = transfer.empty_like(like, operand, result.shape, result.dtype)
        target = result._replace(pointer=pointer, stream=operand.stream)
        return self._replace(out=out, target=target)


def execute(plan: Plan, call: Call) -> Any:
    """Run the chosen candidate of a plan.

    Returns
    -------
    ``out``, or a new array of the caller's type: NumPy where all operands lie on the host.
    """
    problem = plan.problem
    chosen = plan.chosen
    graph = capturing.get()
    if graph not in (None, chosen.device) and devices.get(graph).capturing:
        raise GraphError(f"a graph of {graph} holds no work of {chosen.device}")
    if chosen.device != CPU:
        device = devices.get(chosen.device)
        try:
            return _on_device(device, chosen.implementation, problem, call)
        except DeviceError as error:
            if device.capturing:
                raise
            report(device.name, error)
    implementation = chosen.implementation
    if implementation.kind != CPU:
        implementation = next(i for i in registry.lookup(problem.operation) if i.kind == CPU)
    return _on_cpu(implementation, problem, call)


@contextmanager
def without_fallback() -> Iterator[None]:
    """Inside the block a device that fails is an error of the call, as measuring wants it."""
    token = _without_fallback.set(True)
    try:
        yield
    finally:
        _without_fallback.reset(token)


def report(name: str, error: DeviceError) -> None:
    """Count a device's failure, and say once what becomes of the call."""
    if _without_fallback.get():
        raise error
    if devices.strike(name, error):
        log.warning("%s failed again (%s) and is set aside; its calls run on the CPU", name, error)
        inventory.changed()
    elif devices.set_aside(name) is None:
        log.warning("%s failed (%s); the CPU computes this call", name, error)


def _on_cpu(implementation: Implementation, problem: Problem, call: Call) -> Any:
    assert implementation.run is not None
    hosts = [
        array if operand.location == HOST else transfer.to_host(array, operand)
        for array, operand in zip(call.arrays, call.operands, strict=True)
    ]
    hosts += call.also
    if problem.output.location == HOST:
        return implementation.run(None, problem, hosts, call.out)
    return _to_caller(np.asarray(implementation.run(None, problem, hosts, None)), problem, call)


def _to_caller(result: np.ndarray, problem: Problem, call: Call) -> Any:
    """Host values as a device array of the caller's type, or in the caller's ``out``."""
    call = call.with_output(problem)
    assert call.target is not None
    transfer.from_host(result, call.out, call.target)
    return call.out


def _on_device(device: Device, implementation: Implementation, problem: Problem, call: Call) -> Any:
    run = implementation.run
    assert run is not None
    result = problem.output
    if device.capturing and {result.location, *(o.location for o in call.operands)} != {
        device.name
    }:
        raise GraphError(f"a graph of {device.name} takes operands and results there")
    with device.active():
        described = call.operands if call.target is None else (*call.operands, call.target)
        unordered = any(map(transfer.needs_synchronizing, described))
        if unordered:
            device.synchronize()
        staged = [
            transfer.stage(device, array, operand)
            for array, operand in zip(call.arrays, call.operands, strict=True)
        ]
        inputs = [*(buffer for buffer, _ in staged), *call.also]
        if result.location == device.name:
            call = call.with_output(problem)
            assert call.target is not None
            run(device, problem, inputs, call.target.pointer)
            device.keep(call.arrays, call.also, call.out)
            if unordered:
                device.synchronize()
            return call.out
        buffer, owner = device.allocate(max(result.nbytes, 1))
        run(device, problem, inputs, buffer)
        if result.location == HOST:
            values = transfer.fetch(device, buffer, result.shape, result.dtype, call.out)
            return values[()] if call.out is None else values  # NumPy gives a scalar for no axes
        values = transfer.fetch(device, buffer, result.shape, result.dtype, None)
        del owner
        return _to_caller(values, problem, call)
