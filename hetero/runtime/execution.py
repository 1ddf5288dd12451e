"""Running a plan: operands to the chosen device, compute, the result to where it must be.

What runs is what the plan chose. If the device fails, the result still comes, from the CPU, with
one warning; a device that fails a second time is set aside. If it has no room, the call is tried
with the memory that we keep freed, then in pieces, before it is the CPU's. The operands stay
as they are until the result is there whole, so that the CPU can begin anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hetero import devices
from hetero.arrays import HOST, Operand
from hetero.devices.base import Device
from hetero.errors import DeviceError, DeviceMemoryError, GraphError, HeteroError
from hetero.runtime import failures, inventory, planner, registry, transfer
from hetero.runtime.planner import CPU, Plan, capturing
from hetero.runtime.problem import Problem
from hetero.runtime.registry import Arguments, Implementation


class Call(NamedTuple):
    """One call's data.

    Attributes
    ----------
    arrays, operands
        The caller's arrays and their descriptions.
    out, target
        The caller's ``out`` and its description, or None.
    options
        The operation's own; see `Arguments`.
    pieces
        ``pieces(plan, call)`` does the call in smaller pieces on the plan's device, by `attempt`;
        None where it cannot be cut further.
    """

    arrays: tuple[Any, ...]
    operands: tuple[Operand, ...]
    out: Any = None
    target: Operand | None = None
    options: Any = None
    pieces: Callable[[Plan, Call], Any] | None = None

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
        begun = devices.failures()
        try:
            return attempt(plan, call)
        except DeviceError as error:
            if devices.get(chosen.device).capturing:
                raise
            failures.report(chosen.device, error, begun=begun)
            failures.release(error)
        return _on_cpu(_fallback(problem), problem, call)
    return _on_cpu(chosen.implementation, problem, call)


def _fallback(problem: Problem) -> Implementation:
    """The CPU's fastest way, or any that can do the problem where none is priced."""
    try:
        return planner.plan(problem, CPU).chosen.implementation
    except HeteroError:
        info = inventory.devices()[CPU]
        rows = (i for i in registry.lookup(problem.operation) if i.kind == CPU)
        return next(i for i in rows if i.excludes(problem, info) is None)


def attempt(plan: Plan, call: Call) -> Any:
    """Run a plan on its device, in pieces where there is no room for the whole.

    Raises
    ------
    DeviceError
        With the operands as they were.
    """
    device = devices.get(plan.chosen.device)
    run = plan.chosen.implementation
    try:
        return _on_device(device, run, plan.problem, call)
    except DeviceMemoryError as error:
        if device.capturing:
            raise
        short = error
        failures.release(short)
    if device.trim():
        try:
            return _on_device(device, run, plan.problem, call)
        except DeviceMemoryError as error:
            short = error
            failures.release(short)
    made = None if call.pieces is None else call.pieces(plan, call)
    if made is None:
        raise short
    return made


def _on_cpu(implementation: Implementation, problem: Problem, call: Call) -> Any:
    assert implementation.run is not None
    hosts = tuple(
        array if operand.location == HOST else transfer.to_host(array, operand)
        for array, operand in zip(call.arrays, call.operands, strict=True)
    )
    result = problem.output
    here = result.location == HOST
    out = call.out if here and call.out is not None else np.empty(result.shape, result.dtype)
    implementation.run((), problem, Arguments(hosts, out, call.options))
    if not here:
        return _to_caller(out, problem, call)
    return out if call.out is not None or out.ndim else out[()]  # NumPy gives a scalar for no axes


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
    out = call.out if result.location == HOST else None
    if out is not None and _overlap(out, call.arrays):
        out = None  # or the CPU would find operands half overwritten
    with device.active():
        described = call.operands if call.target is None else (*call.operands, call.target)
        unordered = any(map(transfer.needs_synchronizing, described))
        if unordered:
            device.synchronize()
        staged = [
            transfer.stage(device, array, operand)
            for array, operand in zip(call.arrays, call.operands, strict=True)
        ]
        inputs = tuple(buffer for buffer, _ in staged)
        if result.location == device.name:
            call = call.with_output(problem)
            assert call.target is not None
            run((device,), problem, Arguments(inputs, call.target.pointer, call.options))
            device.keep(call.arrays, call.options, call.out)
            if unordered:
                device.synchronize()
            return call.out
        buffer, owner = device.allocate(max(result.nbytes, 1))
        run((device,), problem, Arguments(inputs, buffer, call.options))
        values = transfer.fetch(device, buffer, result.shape, result.dtype, out)
        del owner
    if result.location != HOST:
        return _to_caller(values, problem, call)
    if call.out is None:
        return values if values.ndim else values[()]
    if out is None:
        call.out[...] = values
    return call.out


def _overlap(out: np.ndarray, arrays: tuple[Any, ...]) -> bool:
    """Whether ``out`` may share memory with an operand on the host."""
    return any(isinstance(x, np.ndarray) and np.may_share_memory(out, x) for x in arrays)
