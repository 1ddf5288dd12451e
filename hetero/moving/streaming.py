"""Calls on host arrays go through devices range by range; `ranges` says in which.

While one range is computed, parts of those after it go up and results of those before it come down.

Of several devices that share a call each goes through ranges of its own. A part of an array that
all of them read whole has a home: the device that uploads it. Once it is up, it is copied to the
other devices, while all compute. So every byte goes over the host's bus once, not once for each
device. That takes direct paths between all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import cache, partial
from itertools import combinations
from math import inf, prod
from typing import Any, NamedTuple

import numpy as np

from hetero import locks, profile, tables
from hetero.arrays import Operand
from hetero.devices import peers
from hetero.devices.base import Copy, Device
from hetero.errors import DeviceError, DeviceMemoryError
from hetero.host.copying.staging import Flight
from hetero.moving import failures, pipeline, ranges
from hetero.moving.pipeline import Load, Slot, Step, Store
from hetero.pricing import places
from hetero.pricing.plan import CPU, Plan
from hetero.profile import inventory
from hetero.registry import Arguments, Problem

Key = tuple[Any, ...]  # number of an array, and the part of it
Part = Future["tuple[Slot, Sequence[Any]] | None"]
_LOOKED_AHEAD = 0.5  # of the host's memory: a larger array is a file, which is read but once
_LATE = 0.5  # seconds that a home may take to begin, before the others do without it
_schedules = tables.new_table()

# ``look(device, dtype, buffer, count)`` may enqueue a look at packed values of a host call's result
# where a device has computed them, before they are downloaded.
look: ContextVar[Callable[[Device, str, Any, int], None] | None] = ContextVar("look", default=None)
relay: ContextVar[Relay | None] = ContextVar("relay", default=None)  # of the call, in its threads


def run(devices: tuple[Device], problem: Problem, arguments: Arguments) -> None:
    """``run`` of the method's rows; smaller ranges where the device runs out of memory, until there
    is no room for the smallest ones: DeviceMemoryError."""
    (device,) = devices
    room, others = ranges.ROOM * places.room(places.described(device)), relay.get()
    while (schedule := _remembered(problem, device, room, others)) is not None:
        try:
            joined = others.joined(device, schedule.own) if others else nullcontext()
            with device.active(), joined as passed:  # which turns the driver's errors into ours
                _go_through(device, arguments, schedule, passed)
            return
        except DeviceMemoryError as error:
            failures.release(error)
        others = None
        device.trim()
        room = schedule.choice.nbytes / 2
    raise DeviceMemoryError(f"{device.name} has no room for the smallest range")


class _Schedule(NamedTuple):
    """What calls of a problem have in common: `ranges.Ranges`, its boxes, their problems, which
    parts lie where, the plans of problems, and the parts that this device passes on to others."""

    choice: ranges.Ranges
    boxes: list[ranges.Box]
    problems: list[Problem]
    placed: list[list[tuple[int, bool]]]
    plans: dict[Problem, Plan]
    own: set[Key]


def _remembered(
    problem: Problem, device: Device, room: float, others: Relay | None
) -> _Schedule | None:
    """With this machine's constants; None where there is no room."""
    key = problem, device.name, room, others and (others.devices, others.arrays)
    schedule = _schedules.get(key)
    if schedule is None:
        now = tables.generation()
        info, constants = inventory.devices()[device.name], profile.current()
        if others is not None:  # as it was planned
            constants = constants.at_once(f"{device.kind}*{len(others.devices)}")
        choice = ranges.choose(problem, device.name, info, constants, room)
        if choice is None:
            return None
        order, own = choice.order(), set()
        if others is not None:
            order, own = _passed_on(choice, order, device, others)
        boxes = [choice.box(index) for index in order]
        problems = [choice.cut.problem(box, device.name) for box in boxes]
        schedule = _Schedule(choice, boxes, problems, choice.placed(order), {}, own)
        tables.remember(_schedules, key, schedule, now)
    return schedule


def _passed_on(
    choice: ranges.Ranges, order: list[ranges.Index], device: Device, others: Relay
) -> tuple[list[ranges.Index], set[Key]]:
    """The order that begins with the parts that this device uploads for the others, and these: of
    arrays of which all parts stay on each device, which uploads at least one of them."""
    own, turn, devices = set(), others.devices.index(device), len(others.devices)
    for number in others.arrays:
        axes = choice.cut.needs[number]
        count = prod(choice.counts[axis] for axis in axes)
        is_used_again = len(axes) == 1 and count < prod(choice.counts)
        if is_used_again and devices <= count == choice.slots[number]:
            (axis,) = axes
            first, end = -(-turn * count // devices), -(-(turn + 1) * count // devices)
            order = [(*i[:axis], (i[axis] + first) % count, *i[axis + 1 :]) for i in order]
            own |= {(number, choice.box(i)[axis]) for i in order if first <= i[axis] < end}
    return order, own


def _go_through(
    device: Device, arguments: Arguments, schedule: _Schedule, passed: Callable[..., Any] | None
) -> None:
    """Compute range after range; the device is active. ``passed(key)`` gives what begins the load
    of a part that devices pass on, None for others."""
    choice, boxes, problems, placed, plans, _ = schedule
    cut, (whole, out, options) = choice.cut, arguments
    parts = [cut.arrays(box, whole) for box in boxes]
    targets = [cut.output(box, out) for box in boxes]

    def planned(part: Problem) -> Plan:
        if part not in plans:
            info, constants = inventory.devices()[device.name], profile.current()
            plans[part] = ranges.planned(cut, part, device.name, info, constants)
        return plans[part]

    @cache
    def chosen(at: int) -> Plan:
        plan = planned(problems[at])
        return planned(cut.look(plan, parts[at][0], options)) if cut.look else plan

    def compute(at: int, inputs: tuple[Any, ...], result: Any) -> None:
        plan, seen = chosen(at), look.get()
        arguments = Arguments(inputs, result, options)
        plan.chosen.implementation.run((device,), plan.problem, arguments)
        if seen is not None:
            seen(device, plan.problem.dtype, result, plan.problem.output.size)

    columns = [*zip(*parts, strict=True), targets]
    sizes = [max(view.nbytes for view in views) for views in columns]
    slots = [pipeline.slots(device, *pair) for pair in zip(sizes, choice.slots, strict=True)]
    memory = inventory.devices()[CPU].get("memory_bytes", inf)
    if cut.look is None or sum(array.nbytes for array in whole) <= _LOOKED_AHEAD * memory:
        for at in range(len(boxes)):  # before anything moves: a look takes longer during copies
            chosen(at)

    def step(at: int) -> Step:
        used, loads, operands = [], [], problems[at].inputs
        for number, (view, operand) in enumerate(zip(parts[at], operands, strict=False)):
            slot, load = placed[number][at]
            used.append(slots[number][slot])
            if load:
                where = number, *(boxes[at][axis] for axis in cut.needs[number])
                start = passed(where) if passed is not None else None
                loads.append(Load(_as_packed(view, operand), used[-1], start))
        target = slots[-1][at % len(slots[-1])]
        begin = partial(compute, at, tuple([slot.buffer for slot in used]), target.buffer)
        store = Store(target, _as_packed(targets[at], problems[at].output))
        return Step(begin, tuple(loads), (store,), tuple(used))

    pipeline.run(device, map(step, range(len(boxes))))


def _as_packed(view: np.ndarray, operand: Operand) -> np.ndarray:
    """A view with the C order of an operand on the device."""
    by_columns = operand.strides[-1] > operand.strides[-2]
    return np.swapaxes(view, -1, -2) if by_columns else view


# -- Parts that several devices need ---------------------------------------------------------------


class Relay:
    """Which parts lie on which of the devices that share a call, and are passed on to the others:
    those of ``arrays``, the numbers of the arrays that all devices read whole."""

    def __init__(self, devices: Sequence[Device], arrays: Sequence[int]) -> None:
        self.devices, self.arrays = tuple(devices), frozenset(arrays)
        self.news = locks.condition()
        self.begun: set[Device] = set()
        self.ended: set[Device] = set()  # who need no part any longer
        # Part -> its home, which uploads it, and where it lies and the events that come when it is
        # up, or None. It is gone from here with the home's memory.
        self._parts: dict[Key, tuple[Device, Part]] = {}

    @contextmanager
    def joined(self, device: Device, own: set[Key]) -> Iterator[Callable[..., Any]]:
        """``begin(key)`` gives what begins a load of a part that one of the devices passes on; this
        one uploads its ``own``.

        Devices that are late are not waited for: what they have comes from the host. Until the
        others have what lies on this device, it stays there.
        """
        promised: dict[Key, Part] = {key: Future() for key in own}

        def begin(key: Key) -> Callable[[np.ndarray, Slot], Copy] | None:
            if key in promised:
                return partial(_upload, promised[key], device)
            home, part = self._parts.get(key, (None, None))
            return part and partial(_Passed, part, home, device)

        def end() -> None:
            for part in promised.values():
                _settle(part, None)
            with self.news:
                self.ended.add(device)
                self.news.notify_all()
                self.news.wait_for(lambda: self.begun <= self.ended)
                for key in own:
                    self._parts.pop(key, None)

        try:
            with self.news:
                self._parts |= {key: (device, part) for key, part in promised.items()}
                self.begun.add(device)
                self.ended.discard(device)  # where it tries a call again
                self.news.notify_all()
                if own:
                    self.news.wait_for(lambda: len(self.begun) == len(self.devices), _LATE)
            yield begin
            end()
        finally:
            pipeline.settle([end])


def _settle(part: Part, value: tuple[Slot, Sequence[Any]] | None) -> None:
    with suppress(InvalidStateError):  # by another thread
        part.set_result(value)


def _upload(part: Part, device: Device, source: np.ndarray, slot: Slot) -> Copy:
    """Begin the home's upload; then the part is sent to the others."""
    copy = device.begin_upload(source, slot.buffer, 0, slot.free)
    copy.then(lambda marks: _settle(part, None if marks is None else (slot, marks)))
    return copy


class _Passed(Copy):
    """A part on its way from its home to another device; from the host where it does not come."""

    def __init__(
        self, part: Part, home: Device, device: Device, source: np.ndarray, slot: Slot
    ) -> None:
        super().__init__(device, Flight())
        self._home, self._source, self._slot = home, source, slot
        part.add_done_callback(self._begin)

    def _begin(self, part: Part) -> None:
        """Begin the copy, by the thread that has the part: behind its upload, on the device."""
        device, marks = self._device, []
        error: Exception | None = DeviceError("the part does not come")
        try:
            if (found := part.result()) is not None:
                source, up = found
                with device.active():
                    stream = device.new_stream()
                    for mark in (self._slot.free, *up):
                        device.wait(mark, stream)
                    given = self._slot.buffer, self._home, source.buffer, self._source.nbytes
                    device.copy_from_peer(*given, 0, 0, stream)
                    marks, error = [device.record(stream)], None
        except Exception as failed:
            error = failed
        finally:
            self._flight.end(marks, error)

    def wait(self) -> None:
        try:
            super().wait()
        except DeviceError:
            self._flight = None
            self._device.begin_upload(self._source, self._slot.buffer, 0, self._slot.free).wait()


def between(devices: Sequence[Device], arrays: Sequence[int]) -> Relay:
    """A relay; without arrays where not all of the devices copy directly from each other."""
    direct = bool(arrays) and peers.independent(devices)
    direct = direct and all(peers.trusted(*pair) for pair in combinations(devices, 2))
    return Relay(devices, arrays if direct else ())
