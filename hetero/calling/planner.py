"""This machine's plans: made once for each problem, remembered, forced where the caller says so."""

from __future__ import annotations

import logging
import math
import sys
from contextlib import ContextDecorator, suppress
from contextvars import Token
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any

from hetero import devices as registered
from hetero import profile, registry, tables
from hetero.arrays import HOST
from hetero.errors import DeviceNotAvailable, one_of
from hetero.host import cpu
from hetero.moving import keeping
from hetero.moving.results import staying
from hetero.pricing import places
from hetero.pricing.places import check_method, matching_devices, moves
from hetero.pricing.plan import CPU, Plan
from hetero.pricing.pricing import price
from hetero.profile import inventory
from hetero.registry.problem import Problem
from hetero.tables import Settings, forced, placement

_AT_ONCE = 1e-3  # seconds of a call on the CPU; many of them take as long as looking for devices
_START, _LEAST = 0.2, 1e-3  # seconds: to look for devices; what a call takes that is not remembered
_taken = {"seconds": 0.0}  # by calls that were placed at once
log = logging.getLogger("hetero")

_plans = tables.new_table()


class use(ContextDecorator):
    """Force placement for all calls inside the ``with`` block, in this thread or task.

    Parameters
    ----------
    device : str, optional
        "cpu", "cuda", "cuda:0", "opencl:0", or "cuda:*" for all GPUs.
    method : str, optional
        Name of an implementation, such as "blas" or "tiled".
    results : {"host", "device"}, optional
        "device": results of NumPy operands stay where they are computed: on a GPU they are CuPy's
        arrays, PyCUDA's or our own where there is no CuPy, on an OpenCL device PyOpenCL's. The next
        call takes them as they are, and `hetero.to_host` brings one to the host. What the CPU
        computes is a NumPy array. "host": NumPy operands give NumPy arrays, as outside the block.
    memory_limit : int or str, optional
        What a call may take of each device's memory: bytes, or such as "4 GB". What needs more goes
        through the device in blocks, or to the CPU. Default: the environment's
        ``HETERO_MEMORY_LIMIT``; without it, and with a warning where that is no number of bytes,
        what the device has.
    watch : bool, optional
        False: no copies are made of arrays that are merely used again (docs/keeping.md); those of
        `keep` stay. Default: the environment's ``HETERO_WATCH``, "0" for False.

    Raises
    ------
    DeviceNotAvailable, MethodNotAvailable
        If there is no such kind of device, or no operation has the method there; the message names
        those that there are. If the device is not here, when the block begins.
    ValueError, TypeError
        For other ``results`` or ``watch``, and where the limit is no number of bytes.

    Notes
    -----
    With ``results="device"`` each call is priced with what staying saves the next one: a result
    that stays on a device is not charged its download, and one that the CPU computes is charged its
    upload to the device that is named, or else to the first one ("upload next" in a plan). Several
    devices together, and methods that move blocks, leave theirs on the host: taken by name only.

    A copy, also one that was pickled, asks for the same and is not entered, whether or not the
    original is.

    Results of arrays on a device lie there in any case. Those of several devices together, of
    complex convolutions, and of calls that a device has no room for as a whole, are on the host.

    Examples
    --------
    >>> import numpy as np, hetero
    >>> with hetero.use(device="cpu"):
    ...     hetero.matmul(np.eye(2), np.eye(2)).sum()
    np.float64(2.0)
    """

    def __init__(
        self,
        device: str | None = None,
        method: str | None = None,
        results: str | None = None,
        memory_limit: float | str | None = None,
        watch: bool | None = None,
    ) -> None:
        self._given = device, method, results, memory_limit, watch
        self._token: Token[Settings | None] | None = None
        kinds = {part.partition(":")[0] for part in str(device).split("+")}
        if device is not None and not kinds <= {CPU, *registered.kinds}:
            _require(device)  # of a kind that there is, devices are looked for when it is entered
        rows = [i for o in registry.operations() for i in registry.lookup(o.name)]
        if rows:  # where a block is unpickled first of all there are none yet
            check_method(method, [i for i in rows if device is None or i.kind in kinds])
        if results not in (None, "host", "device"):
            raise ValueError(one_of("results", ("host", "device"), results))
        if watch not in (None, True, False):
            raise ValueError(f"watch must be True or False, got {watch!r}")
        limit = None if memory_limit is None else places.parsed_limit(memory_limit)
        watch = None if watch is None else bool(watch)
        self._settings = Settings(device, method, results, limit, watch)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._given

    def _recreate_cm(self) -> use:  # for each call of a decorated function
        return type(self)(*self._given)

    def __enter__(self) -> None:
        if self._token is not None:
            raise RuntimeError("this block was entered already: call hetero.use for each one")
        if self._settings.device is not None:
            _require(self._settings.device)
        outer = forced.get() or Settings()
        inner = (o if g is None else g for g, o in zip(self._settings, outer, strict=True))
        self._token = forced.set(Settings(*inner))

    def __exit__(self, *error: object) -> None:
        token, self._token = self._token, None
        # A generator may be closed by another thread or task, in which the block never began.
        with suppress(ValueError):
            forced.reset(token)


def check_placement(operation: str, device: str | None, method: str | None) -> None:
    """Raise what a plan would if ``device=`` or ``method=`` names nothing that is here:
    `DeviceNotAvailable`, `MethodNotAvailable`; the message names what is."""
    if device is not None:
        _require(device)
    check_method(method, registry.lookup(operation))


def _require(device: str) -> None:
    """Raise `DeviceNotAvailable` if a name stands for no device that works here."""
    if device in inventory.devices():
        inventory.believed(device)
    if device in inventory.broken():
        raise DeviceNotAvailable(f"{device} is broken: {inventory.broken()[device]}")
    matching_devices(device, inventory.devices())


_options = attrgetter(*(f.name for f in fields(Problem) if f.name not in ("inputs", "output")))


def _key(problem: Problem) -> tuple[Any, ...]:
    """All that a price can depend on: every field, and of the operands all but address, stream and
    whether they may be written to."""
    operands = [
        (o.shape, o.strides, o.dtype, o.location, o.copies, o.pinned) for o in problem.inputs
    ]
    o = problem.output
    return (*_options(problem), *operands, o.shape, o.strides, o.dtype, o.location, o.pinned)


def plan(problem: Problem, device: str | None = None, method: str | None = None) -> Plan:
    """The plan of a problem on this machine, from memory where it was made before; as
    `check_placement` where the forced placement is not possible."""
    limit = places.memory_limit()
    key = (device, method, limit, _key(problem))
    planned = _plans.get(key)
    if planned is None and device is not None:
        _require(device)
    while planned is None:  # each round but the last finds a broken device
        now, here = tables.generation(), places.limited(inventory.devices(), limit)
        bare = problem  # what is remembered has no operand that is kept
        if any([o.kept is not None for o in problem.inputs]):  # noqa: C419  # of every new shape
            inputs = tuple([o._replace(kept=None) for o in problem.inputs])
            bare = replace(problem, inputs=inputs)
        found = price(bare, profile.current(), here, device, method)
        first = found.candidates[0] if found.candidates else None
        used = []  # the devices on which its choice runs
        if first is not None and first.reason is None and first.device != CPU:
            used = matching_devices(first.device, here)
        doubted = [name for name in used if not inventory.believed(name)]
        for name in doubted:
            log.warning("%s is broken and not used: %s", name, inventory.broken().get(name))
        if doubted:
            inventory.changed()  # the list that named them is out of date
        else:
            tables.remember(_plans, key, found, now)
            planned = found
    known = [o for o in problem.inputs if o.kept is not None]
    if known and (planned.keepable or any([o.copies for o in known])):  # noqa: C419  # of every call
        return keeping.placed(planned, problem)
    return planned


def at_once(problem: Problem) -> Plan | None:
    """The CPU's plan of a call that ends before a device could begin, or Numba be imported. Only
    where devices were not looked for, and until such calls have taken as long as that does.
    Conservative constants are enough."""
    if inventory.looked() or any(o.location != HOST for o in (*problem.inputs, problem.output)):
        return None
    without_numba = "numba" not in sys.modules
    here = {CPU: dict(cpu.describe()) | {"plain": without_numba}}
    constants = profile.shipped("conservative")
    result = price(problem, constants, here, CPU)
    seconds = result.candidates[0].seconds or math.inf
    if seconds >= _AT_ONCE or _taken["seconds"] >= _START:
        return None
    _taken["seconds"] += max(seconds, _LEAST)
    return result


def of_call(problem: Problem, device: str | None, method: str | None) -> Plan:
    """The plan of a call without ``out``: that of `at_once` where nothing is forced, if there is
    one, and the result stays on a device where `use` blocks say so."""
    now = at_once(problem) if device is method is None else None
    return now or plan(staying(problem, device), device, method)


def plan_call(
    operation: registry.Operation,
    operands: tuple[Any, ...],
    options: dict[str, Any],
    device: str | None = None,
    method: str | None = None,
) -> Plan:
    """The plan of a call, as the operation makes it; `use` counts. Raises what the call would."""
    device, method = placement(device, method)
    inventory.devices()  # so that it is no plan of `at_once`
    if operation.plan is not None:
        return operation.plan(operands, options, device, method)
    problem = staying(operation.problem(*operands, **options), device)
    return plan(problem, device, method)


class Machine:
    """A machine that makes plans: this one, with its constants and devices as they are for each
    plan, or one that is known by its profile and `Profile.machine`, of which nothing is remembered.
    """

    def __init__(
        self,
        constants: profile.Profile | None = None,
        devices: dict[str, dict[str, Any]] | None = None,
    ) -> None:
        self.is_here, self._constants, self._devices = constants is None, constants, devices

    def devices(self) -> dict[str, dict[str, Any]]:
        """Device name -> description."""
        if self._devices is not None:
            return self._devices
        return places.limited(inventory.devices(), places.memory_limit())

    def plan(self, problem: Problem, device: str | None = None, method: str | None = None) -> Plan:
        """The plan of a problem; see `plan`."""
        if self.is_here:
            return plan(problem, device, method)
        return price(problem, self._constants, self._devices, device, method)

    def moved_by_host(self, problem: Problem) -> dict[str, float]:
        """Seconds of "download" and "upload" around a computation of device operands from copies on
        the host; empty where nothing is moved, and where the links are not known."""
        with suppress(KeyError):
            if problem.device:
                before, after, _ = moves(problem, CPU, self._constants or profile.current())
                return before | after
        return {}


HERE = Machine()
