"""Running a plan: operands to the chosen devices, compute, the result to where it must be.

What runs is what the plan chose. If a device fails, the result still comes, from the CPU, with
one warning; a device that fails a second time is set aside. If it has no room, the call is tried
with the memory that we keep freed, then in blocks, before it is the CPU's. The operands stay
as they are until the result is there whole, so that the CPU can begin anew; of a solve it goes on
from the last iterate that was saved.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from hetero import devices
from hetero.arrays import HOST, Operand, release, reused
from hetero.devices import budget
from hetero.devices.base import Device
from hetero.errors import DeviceError, GraphError, HeteroError, MethodNotAvailable
from hetero.kernels.cpu import limits
from hetero.runtime import (
    beside_cpu,
    blas_use,
    candidate_pricing,
    compiling,
    failures,
    inventory,
    keeping,
    memory_limit,
    planner,
    profile,
    registry,
    results,
    share_out,
    ski_rental,
    streams,
    thread_counts,
    transfer,
)
from hetero.runtime.calls import Call, Done
from hetero.runtime.plan import CPU, Plan, Share
from hetero.runtime.planner import capturing
from hetero.runtime.problem import Problem
from hetero.runtime.registry import Implementation
from hetero.runtime.thread_counts import Threads

_SMALLEST = 1 << 20  # bytes of operands and result; a device without room for them has none


def execute(plan: Plan, call: Call) -> Any:
    """Run the chosen candidate of a plan; gives the result alone."""
    return run(plan, call).value


def run(plan: Plan, call: Call) -> Done:
    """Run the chosen candidate of a plan."""
    if plan.kept:
        with ski_rental.counted(plan):
            return run(replace(plan, kept=()), call)
    problem = plan.problem
    chosen = plan.chosen
    graph = capturing.get()
    if graph not in (None, chosen.device) and devices.get(graph).capturing:
        raise GraphError(f"a graph of {graph} holds no work of {chosen.device}")
    compiling.see_to(plan, chosen)
    if chosen.device == CPU:
        return _by_host((), chosen.implementation, problem, call, chosen.threads, chosen.seconds)
    begun = devices.failures()
    if chosen.shares:
        return _shared(plan, call, begun)
    used = members(chosen.device)
    try:
        return _attempt(used, plan, call)
    except DeviceError as error:
        if used[0].capturing:
            raise
        failures.report(used[0].name, error, begun=begun)
        failures.release(error)
        call = call.after(error)
    return _by_host((), _fallback(problem), problem, call)


def _shared(plan: Plan, call: Call, begun: int) -> Done:
    """Ranges of a host call on several devices at once, each written to its part of the result."""
    chosen, shares = plan.chosen, plan.chosen.shares
    cut = registry.cut(plan.problem, len(shares))
    out = _apart(call, plan.problem.output)

    def attempt(device: Device, part: Plan, share: Share) -> None:
        _attempt((device,), part, call.range(cut, share.begin, share.end, out))

    def begin(device: Device, part: Plan, share: Share) -> beside_cpu.Enqueued | None:
        row = part.candidates[0].implementation
        of_range = call.range(cut, share.begin, share.end, out)
        return beside_cpu.enqueued(device, part.problem, row, of_range)

    def by_cpu(share: Share) -> None:
        part, own = share.plan.problem, share.plan.candidates[0]
        of_range = part, call.range(cut, share.begin, share.end, out)
        if own.device != CPU:  # it failed
            _by_host((), _fallback(part), *of_range)
        else:
            compiling.see_to(share.plan, own)
            _by_host((), own.implementation, *of_range, own.threads, own.seconds)

    share_out.run(shares, attempt, begin, by_cpu, begun)
    return Done(_returned(call, out), None, chosen.device, chosen.method)


def members(name: str) -> tuple[Device, ...]:
    """The devices that a candidate's name stands for: one, or all of a kind with "cuda:*"."""
    kind, _, which = name.partition(":")
    if which != "*":
        return (devices.get(name),)
    return tuple(
        device
        for device in devices.available().values()
        if device.kind == kind and devices.disabled(device.name) is None
    )


def _fallback(problem: Problem) -> Implementation:
    """The CPU's fastest way, or any that can do the problem where none is priced."""
    try:
        return planner.plan(problem, CPU).chosen.implementation
    except HeteroError:
        info = inventory.devices()[CPU]
        rows = (i for i in registry.considered(problem.operation) if i.kind == CPU)
        return next(i for i in rows if i.excludes(problem, info) is None)


def _attempt(used: tuple[Device, ...], plan: Plan, call: Call) -> Done:
    """Run a plan on its devices, block by block where there is no room for the whole.

    Raises
    ------
    DeviceError
        With the operands as they were; ``out`` may be half written, unless it overlaps one.
    """
    try:
        return _on_devices(used, plan, call)
    except DeviceError as error:
        if used[0].capturing or not failures.out_of_memory(error):
            raise
        short = error
        failures.release(short)
    for _ in _made_room(used, sum(o.nbytes for o in (*call.operands, plan.problem.output))):
        again = call.after(short)
        try:
            return _on_devices(used, plan, again)
        except DeviceError as error:
            again.tell(error)
            if not failures.out_of_memory(error):
                raise
            short = error
            failures.release(short)
    row = _by_blocks(used, plan)
    if row is None:
        raise short
    with budget.of(memory_limit.current()):
        try:
            return _by_host(used, row, plan.problem, call.after(short))
        except MethodNotAvailable:  # the device was set aside meanwhile
            raise short from None


def _made_room(used: tuple[Device, ...], nbytes: int) -> Iterator[None]:
    """Each time that there is more room: what is easily made anew is let go of first, then what
    arrays' libraries keep, then copies of operands, a quarter of so many bytes, and twice as many
    each time."""
    if any([device.trim() for device in used]):  # noqa: C419  # each of them
        yield
    if any([release(device) for device in used]):  # noqa: C419
        yield
    nbytes //= 4
    while any([device.shed(nbytes) for device in used]):  # noqa: C419
        yield
        nbytes *= 2


def _takes_blocks(used: tuple[Device, ...], plan: Plan) -> bool:
    """Whether one device can do a call on host arrays that it has no room for, block by block."""
    if plan.chosen.implementation.blocks != registry.WHEN_SHORT or len(used) > 1:
        return False
    return all(o.location == HOST for o in (*plan.problem.inputs, plan.problem.output))


def _by_blocks(used: tuple[Device, ...], plan: Plan) -> Implementation | None:
    """What does a call block by block that one device has no room for as a whole; None where
    nothing does, or did already."""
    chosen, problem = plan.chosen.implementation, plan.problem
    if len(used) > 1 or chosen.blocks == registry.ALWAYS:
        return None
    if _takes_blocks(used, plan):
        return chosen
    if sum(o.nbytes for o in (*problem.inputs, problem.output)) < _SMALLEST:
        return None
    info = memory_limit.of(used[0])
    return next(
        (
            row
            for row in registry.lookup(problem.operation)
            if row.kind == used[0].kind
            and row.blocks == registry.ALWAYS
            and row.excludes(problem, info) is None
        ),
        None,
    )


def _apart(call: Call, result: Operand) -> np.ndarray:
    """Memory that takes a host call's result before all operands were read."""
    if call.out is None or _overlap(call.out, call.arrays):
        return reused.empty(result.shape, result.dtype)
    return call.out


def _returned(call: Call, result: np.ndarray) -> np.ndarray:
    """The result where the caller wants it."""
    if call.out is None or call.out is result:
        return result
    call.out[...] = result
    return call.out


def _on_devices(used: tuple[Device, ...], plan: Plan, call: Call) -> Done:
    limit = memory_limit.current()
    if limit is None:
        return _unlimited(used, plan, call)
    for device in used:
        keeping.shed_beyond(device, limit, (*call.operands, plan.problem.output))
    with budget.of(limit):
        return _unlimited(used, plan, call)


def _unlimited(used: tuple[Device, ...], plan: Plan, call: Call) -> Done:
    implementation = plan.chosen.implementation
    if (
        len(used) > 1
        or implementation.blocks == registry.ALWAYS
        or (
            _takes_blocks(used, plan)
            and candidate_pricing.too_large(plan.problem, used[0].name, memory_limit.of(used[0]))
            is not None
        )
    ):
        return _by_host(used, implementation, plan.problem, call)
    problem, call = results.placed(used[0], plan.problem, call)
    return _on_device(used[0], implementation, problem, call)


def _by_host(
    used: tuple[Device, ...],
    implementation: Implementation,
    problem: Problem,
    call: Call,
    threads: Threads | None = None,
    seconds: float | None = None,
) -> Done:
    """Run on the CPU, on several devices that share host arrays, or on one by blocks of them."""
    hosts = call.arrays
    for number, operand in enumerate(call.operands):
        if operand.location != HOST:
            copy = transfer.to_host(call.arrays[number], operand)
            hosts = (*hosts[:number], copy, *hosts[number + 1 :])
    if len(used) == 1 and used[0].capturing:
        raise GraphError(f"a graph of {used[0].name} takes operands and results there")
    result = problem.output
    here = result.location == HOST
    if not here:
        out = (reused.empty if used else np.empty)(result.shape, result.dtype)
    elif used:  # the operands stay as they are, for the CPU
        out = _apart(call, result)
    elif call.out is None:
        out = reused.maker(result.nbytes)(result.shape, result.dtype)
    else:
        out = call.out
    if isinstance(call.start, np.ndarray):
        out[...] = call.start.reshape(out.shape)
    elif call.start is not None:
        out[...] = call.start
    compute = thread_counts.limited(implementation, threads, implementation.run)
    if seconds is not None:
        least = profile.current().blas_sleep()
        compute = blas_use.undisturbed(implementation, seconds, compute, least)
    outcome = compute(used, problem, call.on(used, hosts, out))
    if not used and limits.BLAS in implementation.uses:
        blas_use.note()
    if not here:
        out = _to_caller(out, problem, call)
    elif call.out is None and not out.ndim:
        out = out[()]  # NumPy gives a scalar for no axes
    else:
        out = _returned(call, out)
    place = CPU if not used else used[0].name if len(used) == 1 else used[0].kind + ":*"
    return Done(out, outcome, place, implementation.method, call.done)


def _to_caller(result: np.ndarray, problem: Problem, call: Call) -> Any:
    """Host values as a device array of the caller's type, or in the caller's ``out``."""
    call = call.with_output(problem)
    assert call.target is not None
    transfer.from_host(result, call.out, call.target)
    return call.out


def _on_device(
    device: Device, implementation: Implementation, problem: Problem, call: Call
) -> Done:
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
        staged = transfer.stage_all(device, call.arrays, call.operands)
        inputs = tuple(buffer for buffer, _ in staged)
        others = streams.of(device, (*described, *call.read))
        streams.follow(device, others)
        if result.location == device.name:
            call = call.with_output(problem)
            assert call.target is not None
            arguments = call.on((device,), inputs, call.target.pointer)
            _begin(device, arguments.output, result, call)
            outcome = run((device,), problem, arguments)
            device.keep(call.arrays, arguments.options, call.out)
            streams.precede(device, others)
            if outcome is not None:  # a solve's failures are to show up here
                device.synchronize()
            return Done(call.out, outcome, device.name, implementation.method, call.done)
        buffer, owner = device.allocate(max(result.nbytes, 1))
        arguments = call.on((device,), inputs, buffer)
        _begin(device, buffer, result, call)
        outcome = run((device,), problem, arguments)
        values = transfer.fetch(device, buffer, result.shape, result.dtype, out)
        del owner
    if result.location != HOST:
        values = _to_caller(values, problem, call)
    elif call.out is None:
        values = values if values.ndim else values[()]
    elif out is None:
        call.out[...] = values
        values = call.out
    return Done(values, outcome, device.name, implementation.method, call.done)


def _begin(device: Device, output: Any, result: Operand, call: Call) -> None:
    """Bring the start of a solve to its output, which has the strides of a new array."""
    if isinstance(call.start, np.ndarray):
        device.upload(np.ascontiguousarray(call.start, result.dtype), output)
    elif call.start is not None:
        device.fill(output, result.nbytes)


def _overlap(out: np.ndarray, arrays: tuple[Any, ...]) -> bool:
    """Whether ``out`` may share memory with an operand on the host."""
    return any(isinstance(x, np.ndarray) and np.may_share_memory(out, x) for x in arrays)
