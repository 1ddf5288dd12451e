"""One run of a method: operands are moved to its device, the result to its destination."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.arrays import HOST, Operand
from hetero.devices.base import Device
from hetero.host import pages
from hetero.moving import keeping, results, transfer
from hetero.moving.calls import Call, Done
from hetero.pricing.plan import CPU
from hetero.registry import Implementation
from hetero.registry.problem import Problem


def by_host(
    used: tuple[Device, ...],
    implementation: Implementation,
    problem: Problem,
    call: Call,
) -> Done:
    """Run on the CPU, on several devices that share host arrays, or on one in blocks."""
    hosts = call.arrays
    for number, operand in enumerate(call.operands):
        if operand.location != HOST:
            copy = transfer.to_host(call.arrays[number], operand)
            hosts = (*hosts[:number], copy, *hosts[number + 1 :])
    result = problem.output
    here = result.location == HOST
    if not here:
        out = (pages.empty if used else np.empty)(result.shape, result.dtype)
    elif used:  # the operands stay as they are, for the CPU
        out = apart(call, result)
    elif call.out is None:
        out = pages.maker(result.nbytes)(result.shape, result.dtype)
    else:
        out = call.out
    if isinstance(call.start, np.ndarray):
        out[...] = call.start.reshape(out.shape)
    elif call.start is not None and len(used) < 2:  # several devices begin from zero themselves
        out[...] = call.start
    if call.read and used:
        with used[0].active():
            transfer.follow(used[0], transfer.of(used[0], call.read))
    assert implementation.run is not None
    outcome = implementation.run(used, problem, call.on(used, hosts, out))
    if not here:
        out = _to_caller(out, problem, call)
    elif call.out is None and not out.ndim:
        out = out[()]  # NumPy gives a scalar for no axes
    else:
        out = returned(call, out)
    place = CPU if not used else used[0].name if len(used) == 1 else used[0].kind + ":*"
    return Done(out, outcome, place, implementation.method, call.done)


def on_device(device: Device, implementation: Implementation, problem: Problem, call: Call) -> Done:
    """Run a method on one device: operands are uploaded where needed, and the result is left on the
    device or downloaded, as the problem says.

    Raises
    ------
    DeviceError
        If the device fails; what `call.out` held is then as it was where it overlaps an operand.
    """
    run = implementation.run
    assert run is not None
    result = problem.output
    out = call.out if result.location == HOST else None
    if out is not None and _overlap(out, call.arrays):
        out = None  # or the CPU would find operands half overwritten
    with device.active():
        described = call.operands if call.target is None else (*call.operands, call.target)
        staged = transfer.stage_all(device, call.arrays, call.operands)
        inputs = tuple(buffer for buffer, _ in staged)
        others = transfer.of(device, (*described, *call.read))
        transfer.follow(device, others)
        if result.location == device.name:
            call = call.with_output(problem)
            assert call.target is not None
            arguments = call.on((device,), inputs, call.target.pointer)
            _begin(device, arguments.output, result, call)
            outcome = run((device,), problem, arguments)
            transfer.precede(device, others)
            if outcome is not None:  # a solve's failures are to show up here
                device.synchronize()
            return Done(call.out, outcome, device.name, implementation.method, call.done)
        buffer, owner = device.allocate(max(result.nbytes, 1))
        arguments = call.on((device,), inputs, buffer)
        _begin(device, buffer, result, call)
        outcome = run((device,), problem, arguments)
        if (look := results.look.get()) is not None:
            look(device, problem.dtype, buffer, result.size)
        values = transfer.fetch(device, buffer, result.shape, result.dtype, out)
        if result.location == HOST and call.out is None and outcome is None:
            source = problem.operation, problem.dims, problem.dtype
            keeping.keep_result(device, values, source, buffer, owner)
        del owner
    if result.location != HOST:
        values = _to_caller(values, problem, call)
    elif call.out is None:
        values = values if values.ndim else values[()]
    elif out is None:
        call.out[...] = values
        values = call.out
    return Done(values, outcome, device.name, implementation.method, call.done)


def apart(call: Call, result: Operand) -> np.ndarray:
    """Temporary memory for a host call's result where ``out`` overlaps an operand."""
    if call.out is None or _overlap(call.out, call.arrays):
        return pages.empty(result.shape, result.dtype)
    return call.out


def returned(call: Call, result: np.ndarray) -> np.ndarray:
    """The result as the caller wants it."""
    if call.out is None or call.out is result:
        return result
    call.out[...] = result
    return call.out


def _to_caller(result: np.ndarray, problem: Problem, call: Call) -> Any:
    """Host values as a device array of the caller's type, or in the caller's ``out``."""
    call = call.with_output(problem)
    assert call.target is not None
    transfer.from_host(result, call.out, call.target)
    return call.out


def _begin(device: Device, output: Any, result: Operand, call: Call) -> None:
    """Copy the start of a solve to its output, which has the strides of a new array."""
    if isinstance(call.start, np.ndarray):
        device.upload(np.ascontiguousarray(call.start, result.dtype), output)
    elif call.start is not None:
        device.fill(output, result.nbytes)


def _overlap(out: np.ndarray, arrays: tuple[Any, ...]) -> bool:
    """Whether ``out`` may share memory with an operand on the host."""
    return any(isinstance(x, np.ndarray) and np.may_share_memory(out, x) for x in arrays)
