"""Calls on host arrays go through a device range by range; `ranges` says in which.

While one range is computed, parts of those after it go up and results of those before it come down.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hetero import profile, tables
from hetero.arrays import Operand
from hetero.errors import DeviceMemoryError
from hetero.moving import failures, passing, pipeline, ranges, results
from hetero.moving.pipeline import Load, Step, Store
from hetero.pricing import places, shares
from hetero.pricing.plan import CPU, Plan
from hetero.profile import inventory
from hetero.registry import Arguments
from hetero.registry.problem import Problem

if TYPE_CHECKING:
    from hetero.devices.base import Device

_ALIGNED = 16  # bytes that divide the addresses of slots
_LOOKED_AHEAD = 0.5  # of the host's memory: a larger array is a file, which is read but once
_schedules = tables.new_table()


def run(devices: tuple[Device], problem: Problem, arguments: Arguments) -> None:
    """``run`` of the method's rows; smaller ranges where the device runs out of memory.

    Raises
    ------
    DeviceMemoryError
        Where there is no room for the smallest ranges.
    """
    (device,) = devices
    room, relay = ranges.room_of(places.described(device)), passing.relay.get()
    while (schedule := _remembered(problem, device, room, relay)) is not None:
        try:
            homes = relay.joined(device, schedule.homes) if relay else nullcontext()
            with device.active(), homes as passed:  # which turns the driver's errors into ours
                _go_through(device, arguments, schedule, passed)
            return
        except DeviceMemoryError as error:
            failures.release(error)
        relay = None
        device.trim()
        room = schedule.choice.nbytes / 2
    raise DeviceMemoryError(f"{device.name} has no room for the smallest range")


class _Schedule(NamedTuple):
    """What calls of a problem have in common: `ranges.Ranges`, its boxes, their problems, which
    parts lie where, the plans of problems, and the homes of parts that devices pass on."""

    choice: ranges.Ranges
    boxes: list[tuple[tuple[int, int], ...]]
    problems: list[Problem]
    placed: list[list[tuple[int, bool]]]
    plans: dict[Problem, Plan]
    homes: dict[passing.Key, Device]


def _remembered(
    problem: Problem, device: Device, room: float, relay: passing.Relay | None
) -> _Schedule | None:
    """With this machine's constants; None where there is no room."""
    key = problem, device.name, room, relay and (relay.devices, relay.arrays)
    schedule = _schedules.get(key)
    if schedule is None:
        now = tables.generation()
        info, constants = inventory.devices()[device.name], profile.current()
        if relay is not None:  # as `shares` has planned it
            number = len(relay.devices)
            constants = constants.at_once(f"{device.kind}*{number}")
            given = problem.inputs, relay.arrays, device.name, number, constants
            info = {**info, "passed": shares.passed_on(*given)}
        choice = ranges.choose(problem, device.name, info, constants, room)
        if choice is None:
            return None
        order, homes = choice.order(), {}
        if relay is not None:
            order, homes = _passed_on(choice, order, device, relay)
        boxes = [choice.box(index) for index in order]
        problems = [choice.cut.problem(box, device.name) for box in boxes]
        schedule = _Schedule(choice, boxes, problems, choice.placed(order), {}, homes)
        tables.remember(_schedules, key, schedule, now)
    return schedule


def _passed_on(
    choice: ranges.Ranges, order: list[ranges.Index], device: Device, relay: passing.Relay
) -> tuple[list[ranges.Index], dict[passing.Key, Device]]:
    """The order that begins with the parts that this device uploads for the others, and the homes
    of all."""
    homes: dict[passing.Key, Device] = {}
    for number in relay.arrays:
        if choice.are_passed(number, len(relay.devices)):
            (axis,) = choice.cut.needs[number]
            count = choice.counts[axis]
            first = next(part for part in range(count) if relay.home(part, count) is device)
            order = [(*i[:axis], (i[axis] + first) % count, *i[axis + 1 :]) for i in order]
            for index in order:
                homes[number, choice.box(index)[axis]] = relay.home(index[axis], count)
    return order, homes


def _go_through(
    device: Device, arguments: Arguments, schedule: _Schedule, passed: Callable[..., Any] | None
) -> None:
    """Compute range after range; the device is active. ``passed(key)`` gives what begins the load
    of a part that devices pass on, None for others."""
    choice, boxes, problems, placed, plans, _ = schedule
    cut, slots_of = choice.cut, choice.slots
    whole, out, options = arguments
    parts = [cut.arrays(box, whole) for box in boxes]

    def planned(part: Problem) -> Plan:
        if part not in plans:
            info, constants = inventory.devices()[device.name], profile.current()
            plans[part] = ranges.planned(cut, part, device.name, info, constants)
        return plans[part]

    @cache
    def launch(part: Problem) -> Callable[..., None]:
        return _launch(device, planned(part), options, len(cut.needs))

    @cache
    def chosen(at: int) -> Problem:
        look, part = cut.look, problems[at]
        return look(planned(part), parts[at][0], options) if look else part

    sizes = [
        max(sum(v.nbytes for v in views) for views in column) for column in zip(*parts, strict=True)
    ]
    sizes.append(max(cut.output(box, out).nbytes for box in boxes))
    slots = [
        pipeline.slots(device, size, number) for size, number in zip(sizes, slots_of, strict=True)
    ]
    memory = inventory.devices()[CPU].get("memory_bytes", inf)
    if cut.look is None or sum(array.nbytes for array in whole) <= _LOOKED_AHEAD * memory:
        for at in range(len(boxes)):  # before anything moves: beside copies a look takes longer
            launch(chosen(at))

    def step(at: int) -> Step:
        part, used, loads = problems[at], [], []
        for number, (views, operand) in enumerate(zip(parts[at], part.inputs, strict=False)):
            slot, load = placed[number][at]
            used.append(slots[number][slot])
            if load:
                where = number, *(boxes[at][axis] for axis in cut.needs[number])
                begin = passed(where) if passed is not None else None
                offset = 0
                for view in views:  # one after the other; there is only one that is passed on
                    loads.append(Load(_as_packed(view, operand), used[-1], offset, begin))
                    offset += view.nbytes
        target = slots[-1][at % len(slots[-1])]

        def compute() -> None:
            buffers = [slot.buffer for slot in (*used, target)]
            launch(chosen(at))(*buffers)

        store = Store(target, _as_packed(cut.output(boxes[at], out), part.output))
        return Step(compute, tuple(loads), (store,), tuple(used))

    pipeline.run(device, map(step, range(len(boxes))))


def _as_packed(view: np.ndarray, operand: Operand) -> np.ndarray:
    """A view with the C order of an operand on the device."""
    by_columns = operand.strides[-1] > operand.strides[-2]
    return np.swapaxes(view, -1, -2) if by_columns else view


def _launch(device: Device, plan: Plan, options: Any, number: int) -> Callable[..., None]:
    """``launch(*parts, result)`` of buffers begins a range."""
    row, problem = plan.chosen.implementation, plan.problem
    if row.prepare is not None:  # launches with less overhead
        prepared = row.prepare(device, problem, _ALIGNED, options)

        def begin(*buffers: Any) -> None:
            prepared(*(buffers if number > 1 else (buffers[0], *buffers)))

    else:

        def begin(*buffers: Any) -> None:
            row.run((device,), problem, Arguments(buffers[:-1], buffers[-1], options))

    look = results.look.get()
    if look is None:
        return begin

    def begin_and_look(*buffers: Any) -> None:
        begin(*buffers)
        look(device, problem.dtype, buffers[-1], problem.output.size)

    return begin_and_look
