"""Running a plan, with fallbacks where a device fails or has no room.

What runs is what the plan chose. If a device fails, the CPU computes the result, with one warning;
a device that fails a second time is set aside. If it has no room, the call is tried again with
cached memory freed, then in blocks, then on the CPU. Operands are not overwritten until the result
is complete, so that the CPU can start over; a solve goes on from the last saved iterate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from hetero import devices, registry
from hetero.arrays import HOST, release
from hetero.blocks import share_out
from hetero.calling import computing, planner
from hetero.devices import budget
from hetero.devices.base import Device
from hetero.errors import DeviceError, HeteroError, MethodNotAvailable
from hetero.moving import failures, keeping, results, ski_rental
from hetero.moving.calls import Call, Done
from hetero.pricing import candidate_pricing, compiling, memory_limit
from hetero.pricing.plan import CPU, Plan, Share
from hetero.profile import inventory
from hetero.registry import Implementation
from hetero.registry.problem import Problem

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
    compiling.see_to(plan, chosen)
    if chosen.device == CPU:
        return computing.by_host((), chosen.implementation, problem, call)
    begun = devices.failures()
    if chosen.shares:
        return _shared(plan, call, begun)
    used = members(chosen.device)
    try:
        return _attempt(used, plan, call)
    except DeviceError as error:
        failures.report(used[0].name, error, begun=begun)
        failures.release(error)
        call = call.after(error)
    return computing.by_host((), _fallback(problem), problem, call)


def _shared(plan: Plan, call: Call, begun: int) -> Done:
    """Ranges of a host call on several devices at once, each written to its part of the result."""
    chosen, shares = plan.chosen, plan.chosen.shares
    cut = registry.cut(plan.problem, len(shares))
    out = computing.apart(call, plan.problem.output)

    def attempt(device: Device, part: Plan, share: Share) -> None:
        _attempt((device,), part, call.range(cut, share.begin, share.end, out))

    def by_cpu(share: Share) -> None:
        part, of_range = share.plan.problem, call.range(cut, share.begin, share.end, out)
        computing.by_host((), _fallback(part), part, of_range)

    share_out.run(shares, attempt, by_cpu, begun)
    return Done(computing.returned(call, out), None, chosen.device, chosen.method)


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
    """The CPU's fastest candidate, or any that can do the problem where none is priced."""
    try:
        return planner.plan(problem, CPU).chosen.implementation
    except HeteroError:
        info = inventory.devices()[CPU]
        rows = (i for i in registry.lookup(problem.operation) if i.kind == CPU)
        return next(i for i in rows if i.excludes(problem, info) is None)


def _attempt(used: tuple[Device, ...], plan: Plan, call: Call) -> Done:
    """Run a plan on its devices: as planned, then with more memory freed, at last in blocks.

    Raises
    ------
    DeviceError
        Operands are unchanged; ``out`` may be half written, unless it overlaps one.
    """
    short, limit = None, memory_limit.current()
    for run_once in _ways(used, plan, call):
        rest = call if short is None else call.after(short)
        try:
            with budget.of(limit):
                return run_once(rest)
        except MethodNotAvailable:
            if short is None:
                raise
            break  # the device was set aside meanwhile
        except DeviceError as error:
            rest.tell(error)
            if not failures.out_of_memory(error):
                raise
            short = error
            failures.release(short)
    raise short


def _ways(used: tuple[Device, ...], plan: Plan, call: Call) -> Iterator[Callable[[Call], Done]]:
    """What `_attempt` tries in turn, as long as the one before ran out of memory."""
    as_planned = partial(_as_planned, used, plan)
    yield as_planned
    for _ in _made_room(used, sum(o.nbytes for o in (*call.operands, plan.problem.output))):
        yield as_planned
    row = _by_blocks(used, plan)
    if row is not None:
        yield partial(computing.by_host, used, row, plan.problem)


def _as_planned(used: tuple[Device, ...], plan: Plan, call: Call) -> Done:
    """Run the chosen method, after freeing kept copies beyond the memory limit."""
    row, problem, limit = plan.chosen.implementation, plan.problem, memory_limit.current()
    if limit is not None:
        for device in used:
            keeping.shed_beyond(device, limit, (*call.operands, problem.output))
    if (
        len(used) > 1
        or row.from_host
        or (_takes_blocks(used, plan) and _too_large(used[0], problem))
    ):
        return computing.by_host(used, row, problem, call)
    problem, call = results.placed(used[0], problem, call)
    return computing.on_device(used[0], row, problem, call)


def _too_large(device: Device, problem: Problem) -> bool:
    info = memory_limit.of(device)
    return candidate_pricing.too_large(problem, device.name, info) is not None


def _made_room(used: tuple[Device, ...], nbytes: int) -> Iterator[None]:
    """Free memory in stages, and yield after each: the device's pools, what array libraries keep,
    then kept copies of operands, ``nbytes / 4`` at first and twice as much each time."""
    if any([device.trim() for device in used]):  # noqa: C419  # each of them
        yield
    if any([release(device) for device in used]):  # noqa: C419
        yield
    nbytes //= 4
    while any([device.shed(nbytes) for device in used]):  # noqa: C419
        yield
        nbytes *= 2


def _takes_blocks(used: tuple[Device, ...], plan: Plan) -> bool:
    """Whether one device can do a call on host arrays block by block."""
    if plan.chosen.implementation.blocks != registry.WHEN_SHORT or len(used) > 1:
        return False
    return all(o.location == HOST for o in (*plan.problem.inputs, plan.problem.output))


def _by_blocks(used: tuple[Device, ...], plan: Plan) -> Implementation | None:
    """The method that does a call block by block on a device without room for the whole; None where
    there is none, or where it ran already."""
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
