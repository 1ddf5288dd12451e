"""Running a plan, with fallbacks where a device fails or has no room.

What runs is what the plan chose. If a device fails, the CPU computes the result, with one warning;
a device that fails a second time is set aside. If it has no room, the call is tried again with
cached memory freed, then in ranges, then on the CPU. Operands are not overwritten until the result
is complete, so that the CPU can start over. Of several devices that share a call each runs its
range in this way.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from hetero import devices, registry
from hetero.arrays import HOST, Operand, describe, release
from hetero.calling import planner
from hetero.devices import peers, storage
from hetero.devices.base import Device
from hetero.errors import DeviceError, MethodNotAvailable
from hetero.host import cpu
from hetero.imports import load
from hetero.moving import failures, keeping, streaming, transfer
from hetero.pricing import places
from hetero.pricing.plan import CPU, Plan, Share
from hetero.registry import Arguments, Implementation, Problem
from hetero.tables import setting

_GAIN = 1.25  # times as fast, from which on compiling is worth a line
_noted: set[str] = set()  # the method that the line was about
log = logging.getLogger("hetero")
_SMALLEST = 1 << 20  # bytes of operands and result; a device without room for them has none


class Call(NamedTuple):
    """One call's data."""

    arrays: tuple[Any, ...]  # the caller's
    operands: tuple[Operand, ...]  # their descriptions
    out: Any = None  # the caller's
    target: Operand | None = None  # its description
    # The operation's own, see `Arguments`; or ``options(devices)``, which gives them where they
    # depend on the devices (a tuple, empty on the CPU).
    options: Any = None
    start: np.ndarray | float | None = None  # of the output, if it matters: a host array, or 0.0
    read: tuple[Operand, ...] = ()  # descriptions of device arrays that the options hold

    def with_output(self, problem: Problem, device: Device | None = None) -> Call:
        """This call with an ``out`` on the device: the caller's, or a new array, of their type, or
        of a library that is here where no array of theirs is on a device."""
        if self.out is not None:
            return self
        shape, dtype = problem.output.shape, problem.output.dtype
        for array, operand in zip(self.arrays, self.operands, strict=True):
            if operand.location != HOST:
                out, pointer = transfer.empty_like(array, operand, shape, dtype)
                target = problem.output._replace(pointer=pointer, stream=operand.stream)
                return self._replace(out=out, target=target)
        assert device is not None
        out, target = transfer.new_array(device, shape, dtype)
        return self._replace(out=out, target=target)

    def on(self, used: tuple[Device, ...], inputs: tuple[Any, ...], output: Any) -> Arguments:
        """The arguments of a run on these devices."""
        options = self.options(used) if callable(self.options) else self.options
        return Arguments(inputs, output, options)


class Done(NamedTuple):
    """A result, and where and how it was computed."""

    value: Any  # ``out``, or a new array of the caller's type: NumPy's of operands on the host
    outcome: Any  # what the implementation gave
    device: str
    method: str


def execute(plan: Plan, call: Call) -> Any:
    """Run the chosen candidate of a plan; gives the result alone."""
    return run(plan, call).value


def run(plan: Plan, call: Call, remedy: str = "the CPU computes this call") -> Done:
    """Run the chosen candidate of a plan; ``remedy`` says what is done where a device fails."""
    if plan.kept:
        keeping.count(plan)
    chosen, problem = plan.chosen, plan.problem
    row = chosen.implementation
    if chosen.device == CPU:
        compile_loops(plan)
        return by_host((), row, problem, call)
    if chosen.shares:
        used = tuple([devices.get(share.plan.candidates[0].device) for share in chosen.shares])
        return by_host(used, replace(row, run=partial(_in_shares, chosen.shares)), problem, call)
    used, limit = members(chosen.device), places.memory_limit()
    failed: DeviceError | None = None
    for row, is_whole in _ways(used, plan, call):
        try:
            with storage.limited_to(limit):
                if limit is not None:
                    _shed(used, problem, call, limit)
                if is_whole:
                    return on_device(used[0], row, problem, call)
                return by_host(used, row, problem, call)
        except MethodNotAvailable:
            if failed is None:
                raise
            break  # the device was set aside meanwhile
        except DeviceError as error:
            failed = error
            failures.release(error)
            if not failures.out_of_memory(error):
                break
    assert failed is not None
    failures.report(used[0].name, failed, remedy)
    return by_host((), planner.plan(problem, CPU).chosen.implementation, problem, call)


def compile_loops(plan: Plan) -> None:
    """Compile the loops that a plan's choice needs; or say once what compiling would gain."""
    loops, chosen, problem = load("hetero.host.loops"), plan.chosen, plan.problem
    needed = chosen.implementation.loops
    names = [name for name in needed(problem) if not loops.is_ready(name)] if needed else []
    if names:
        log.warning("compiling the loops of %s, once for this machine", " and ".join(names))
        loops.ensure(names)
        return
    for c in plan.candidates if not _noted and chosen.seconds else ():
        if c.reason == registry.NOT_COMPILED and c.seconds and _GAIN * c.seconds < chosen.seconds:
            _noted.add(c.method)
            log.warning(
                "'hetero compile' compiles the CPU's loops, once for this machine: then "
                "method %r is expected to take %.2g s instead of %.2g s",
                *(c.method, c.seconds, chosen.seconds),
            )
            break


def members(name: str) -> tuple[Device, ...]:
    """The devices that a candidate's name stands for: one, or all of a kind with "cuda:*"."""
    if not name.endswith(":*"):
        return (devices.get(name),)
    alike = [device for device in devices.available().values() if device.kind == name[:-2]]
    return tuple([device for device in alike if devices.disabled(device.name) is None])


# -- What is tried on devices ----------------------------------------------------------------------


def _ways(
    used: tuple[Device, ...], plan: Plan, call: Call
) -> Iterator[tuple[Implementation, bool]]:
    """(method, whether with all operands on one device) in turn, as long as the one before ran out
    of memory: as planned; with what pools and array libraries keep freed, then kept copies; at last
    in ranges."""
    row, problem = plan.chosen.implementation, plan.problem
    is_whole = len(used) == 1 and not row.from_host
    if is_whole and row.blocks and problem.device is None:
        is_whole = not places.too_large(problem, used[0].name, places.described(used[0]))
    yield row, is_whole
    if any([device.trim() | release(device) for device in used]):  # noqa: C419  # each of them
        yield row, is_whole
    nbytes = sum(o.nbytes for o in (*call.operands, problem.output)) // 4
    while any([storage.shed(device, nbytes) for device in used]):  # noqa: C419
        yield row, is_whole
        nbytes *= 2
    if len(used) == 1 and (ranged := _in_ranges(used[0], row, problem)) is not None:
        yield ranged, False


def _in_ranges(device: Device, row: Implementation, problem: Problem) -> Implementation | None:
    """The method that does a call range by range on a device without room for the whole; None where
    there is none, or where it is the plan's anyway."""
    if row.blocks == registry.WHEN_SHORT and problem.device is None:
        return row
    nbytes = sum(o.nbytes for o in (*problem.inputs, problem.output))
    if row.blocks == registry.ALWAYS or nbytes < _SMALLEST:
        return None
    info = places.described(device)
    rows = [i for i in registry.lookup(problem.operation) if i.kind == device.kind]
    rows = [i for i in rows if i.blocks == registry.ALWAYS and i.obstacle(problem, info) is None]
    return rows[0] if rows else None


def _shed(used: tuple[Device, ...], problem: Problem, call: Call, limit: int) -> None:
    """Free kept copies beyond a memory limit."""
    for device in used:
        moved = (o for o in call.operands if device.name not in (o.location, *o.copies))
        needed = problem.output.nbytes + sum(o.nbytes for o in moved)
        with device.active():
            storage.shed(device, device.storage().copied() + min(needed, limit) - limit)


def _in_shares(
    parts: tuple[Share, ...], used: tuple[Device, ...], problem: Problem, arguments: Arguments
) -> None:
    """``run`` of a host call that several devices share: ranges at once, each written to its part
    of the result."""
    found = places.cut(problem, len(parts))
    assert found is not None  # as it was planned
    cut, axis = found

    def do(share: Share) -> None:
        box = cut.box(axis, share.begin, share.end)
        arrays = cut.arrays(box, arguments.inputs)
        operands = tuple([describe(x).unkept() for x in arrays])
        out = cut.output(box, arguments.output)
        call = Call(arrays, operands, out, describe(out), arguments.options)
        run(share.plan, call, f"the CPU does its {share.along}")

    nbytes = min(places.moved(share.plan.problem) for share in parts)
    streams = nbytes >= peers.LEAST and parts[0].plan.candidates[0].implementation.from_host
    whole = [number for number, axes in enumerate(cut.needs) if axis not in axes]
    relay = streaming.between(used, whole) if streams else None  # what every range reads
    with setting(streaming.relay, relay):
        peers.run(used, [partial(do, share) for share in parts], nbytes)


# -- One run of a method ---------------------------------------------------------------------------


def by_host(
    used: tuple[Device, ...], implementation: Implementation, problem: Problem, call: Call
) -> Done:
    """Run on the CPU, on several devices that share host arrays, or on one in ranges."""
    pairs = zip(call.arrays, call.operands, strict=True)
    hosts = tuple([x if o.location == HOST else transfer.to_host(x, o) for x, o in pairs])
    result, out = problem.output, call.out
    # The operands of devices stay as they are, for the CPU.
    if out is None or result.location != HOST or (used and _overlap(out, call.arrays)):
        out = cpu.empty(result.shape, result.dtype)
    if isinstance(call.start, np.ndarray):
        out[...] = call.start.reshape(out.shape)
    elif call.start is not None and len(used) < 2:  # several devices begin from zero themselves
        out[...] = call.start
    if call.read and used:
        with used[0].active():
            transfer.follow(used[0], call.read)
    outcome = implementation.run(used, problem, call.on(used, hosts, out))
    place = CPU if not used else used[0].name if len(used) == 1 else used[0].kind + ":*"
    out = _delivered(out, problem, call)
    return Done(out, outcome, place, implementation.method)


def on_device(device: Device, implementation: Implementation, problem: Problem, call: Call) -> Done:
    """Run a method on one device: operands are uploaded where needed, and the result is left on the
    device or downloaded, as the problem says. If the device fails, what `call.out` held is as it
    was where it overlaps an operand."""
    if problem.next_device is not None and call.out is None:
        problem = replace(problem, output=problem.output._replace(location=device.name))
    result, stays, owner = problem.output, problem.output.location == device.name, None
    with device.active():
        staged = transfer.stage_all(device, call.arrays, call.operands)
        if stays:
            call = call.with_output(problem, device)
        described = [o for o in (*call.operands, call.target, *call.read) if o is not None]
        transfer.follow(device, described)
        if stays:
            buffer = call.target.pointer
        else:
            buffer, owner = device.allocate(max(result.nbytes, 1))
        arguments = call.on((device,), tuple(buffer for buffer, _ in staged), buffer)
        # The start of a solve is copied to its output, which has the strides of a new array.
        if isinstance(call.start, np.ndarray):
            device.upload(np.ascontiguousarray(call.start, result.dtype), buffer)
        elif call.start is not None:
            device.fill(buffer, result.nbytes)
        outcome = implementation.run((device,), problem, arguments)
        if stays:
            transfer.precede(device, described)
            if outcome is not None:  # a solve's failures are to show up here
                device.synchronize()
            return Done(call.out, outcome, device.name, implementation.method)
        if (look := streaming.look.get()) is not None:
            look(device, problem.dtype, buffer, result.size)
        values = call.out if result.location == HOST else None
        if values is None or _overlap(values, call.arrays):
            # Of its own, or the CPU would find operands half overwritten.
            values = cpu.empty(result.shape, result.dtype)
        device.download(buffer, values)
        if result.location == HOST and call.out is None and outcome is None:
            source = problem.operation, problem.dims, problem.dtype
            copy = storage.Copy(device.name, buffer, owner, values.nbytes)
            values = keeping.held_result(device, values, copy, source)
        del owner
    values = _delivered(values, problem, call)
    return Done(values, outcome, device.name, implementation.method)


def _overlap(out: np.ndarray, arrays: tuple[Any, ...]) -> bool:
    """Whether ``out`` may share memory with an operand on the host."""
    return any(isinstance(x, np.ndarray) and np.may_share_memory(out, x) for x in arrays)


def _delivered(values: np.ndarray, problem: Problem, call: Call) -> Any:
    """A result on the host as the caller wants it: a device array of theirs, in their ``out``, or
    as it is; NumPy gives a scalar for no axes."""
    if problem.output.location != HOST:
        call = call.with_output(problem)
        assert call.target is not None
        transfer.from_host(values, call.target)
        return call.out
    if call.out is None:
        return values if values.ndim else values[()]
    if call.out is not values:
        call.out[...] = values
    return call.out
