"""This machine's plans: made once for each problem, remembered, forced where the caller says so.

Calls on device arrays are remembered, too, where they come down to a launch.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable
from contextlib import ContextDecorator, suppress
from contextvars import Token
from dataclasses import fields, replace
from functools import reduce
from operator import attrgetter, or_
from typing import Any

from hetero import devices as registered
from hetero import profile, registry, tables
from hetero.arrays import HOST, Access, Operand, alignment, library_of
from hetero.errors import DeviceError, DeviceNotAvailable, one_of
from hetero.host import cpu
from hetero.moving import keeping
from hetero.pricing import places
from hetero.pricing.places import check_method, matching_devices, moves
from hetero.pricing.plan import CPU, Plan
from hetero.pricing.pricing import price
from hetero.profile import inventory
from hetero.registry import Problem
from hetero.tables import MISS, Settings, bound, find, forced, placement

_AT_ONCE = 1e-3  # seconds of a call on the CPU; many of them take as long as looking for devices
_START, _LEAST = 0.2, 1e-3  # seconds: to look for devices; what a call takes that is not remembered
_taken = {"seconds": 0.0}  # by calls that were placed at once
log = logging.getLogger("hetero")
_forced = forced.get
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
        outer = _forced() or Settings()
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


def wanted() -> bool:
    """Whether the enclosing `use` blocks let results stay."""
    outer = _forced()
    return outer is not None and outer.results == "device"


def staying(problem: Problem, device: str | None) -> Problem:
    """The problem, its result to stay where it is computed, if the `use` blocks say so.

    ``device`` is the one that the caller named, and the call has no ``out``. Unchanged where an
    operand lies on a device, and where the next call is expected on one that keeps no arrays.
    """
    if not wanted() or problem.device is not None:
        return problem
    for name, info in inventory.devices().items():
        named = device in (name, info["kind"], f"{info['kind']}:*")
        is_next = named or (device is None and not info.get("is_host_cpu"))
        if is_next and info["kind"] != CPU and not info.get("set_aside"):
            return replace(problem, next_device=name)
    return problem


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


# -- Remembered calls on device arrays that come down to a launch ----------------------------------

# Reading an array's CUDA array interface takes longer than a small product. For libraries with an
# `Access` the key is read from attributes directly; the rest of a call, down to the packed
# arguments of its kernels, is made once. Anything unusual, from another stream to a failing launch,
# is a `MISS`, and the call goes the general way. They lie in the call cache, `hetero.tables.bound`:
# under the type of the arrays the function that looks up their calls.


def learn(
    operation: str,
    plan: Plan,
    arrays: tuple[Any, Any],
    out: Any,
    operands: tuple[Operand, ...],
    given: tuple[str | None, Any],
    generation: int,
    options: Any = None,
) -> None:
    """Remember a call on device arrays that just ran, if it comes down to a launch.

    ``arrays`` and ``out`` are the caller's, a single array twice, and ``operands`` describe them.
    ``given`` are the device that the caller named and what else the call depends on, hashable.
    ``generation`` is `tables.generation` before the plan; ``options`` are the implementation's.
    """
    chosen, problem, kind = plan.chosen, plan.problem, type(arrays[0])
    if chosen.implementation.prepare is None or (access := _access_to(arrays[0])) is None:
        return
    every = arrays if out is None else (*arrays, out)
    if (
        any(type(x) is not kind or (access.usable and not access.usable(x)) for x in every)
        or any(o.readonly for o in operands[len(arrays) :])
        or any(o.location != chosen.device for o in (*operands, problem.output))
        or not all(operand.is_ordered() for operand in operands)
        or _is_placed()
        or registered.disabled(chosen.device)
    ):
        return
    device = registered.get(chosen.device)
    try:
        with device.active():
            run = _launched(device, access, plan, operands, options)
    except DeviceError:  # the call itself failed too, and the CPU answered
        return
    tables.remember(bound, (operation, kind, *given, access.facts(*arrays, out)), run, generation)
    if kind not in bound:
        tables.remember(bound, kind, _finder(kind, access), generation)


def _access_to(array: Any) -> Access | None:
    """How remembered calls use an array; None where its calls go the general way."""
    several = sum(device.is_cuda for device in registered.available().values()) > 1
    library = library_of(array)
    try:
        return library and library.access(type(array), several)
    except (ImportError, AttributeError) as error:  # another version, arranged differently
        log.info("calls on %s arrays go the general way: %s", type(array).__module__, error)
        return None


def _is_placed() -> bool:
    """Whether a `use` block sets what calls on device arrays heed."""
    outer = _forced()
    return outer is not None and (outer.device, outer.method, outer.memory_limit) != (None,) * 3


def _finder(kind: type, access: Access) -> Callable[..., Any]:
    """The function that looks up and runs remembered calls on one type of arrays.

    ``lookup(operation, A, B, out, device, rest)`` gives the result, or `MISS`.
    """
    facts, usable, ordered = access.facts, access.usable, access.ordered

    def lookup(operation: str, A: Any, B: Any, out: Any, device: str | None, rest: Any) -> Any:
        if type(B) is not kind or not ordered():
            return MISS
        if _forced() is not None and _is_placed():
            return MISS
        if usable is not None and not (usable(A) and usable(B)):
            return MISS
        if out is not None and not (type(out) is kind and (usable is None or usable(out))):
            return MISS
        run = find((operation, kind, device, rest, facts(A, B, out)))
        return MISS if run is None else run(A, B, out)

    return lookup


def _launched(
    device: Any, access: Access, plan: Plan, operands: tuple[Operand, ...], options: Any
) -> Callable[[Any, Any, Any], Any]:
    """The function that launches a call in the context that is current: ``run(A, B, out)`` gives
    the result, or `MISS`. A launch is prepared for the lowest bits of all addresses, which decide
    how wide a kernel's loads may be."""
    problem, prepare = plan.problem, plan.chosen.implementation.prepare
    launches: dict[int, Callable[..., None]] = {}

    def prepared(bits: int) -> Callable[..., None]:
        with device.active():
            launch = launches[bits] = prepare(device, problem, alignment(bits), options)
        return launch

    prepared(reduce(or_, [o.pointer & 15 for o in operands]))
    context, current = device.context_handle(), access.context or device.context_handle
    shape, dtype = problem.output.shape, problem.output.dtype
    address, empty = access.address, access.maker(device)
    spans = [operand.span() for operand in operands]
    (a_low, a_high), (b_low, b_high), (c_low, c_high) = (*spans, (0, 0))[:3]
    # Of the driver, by way of PyCUDA or cuBLAS, and of libraries that make the result.
    failures = (DeviceError, MemoryError, RuntimeError, *device.errors)

    def run(A: Any, B: Any, out: Any) -> Any:
        try:
            here = current()
            if here != context:
                if here:
                    return MISS
                with device.active():
                    return run(A, B, out) if current() == context else MISS
            a = address(A)
            b = a if B is A else address(B)
            if out is None:
                out = empty(shape, dtype, A)
                c = address(out)
            else:
                c = address(out)
                low, high = c + c_low, c + c_high
                if (low < a + a_high and a + a_low < high) or (
                    low < b + b_high and b + b_low < high
                ):
                    return MISS
            bits = (a | b | c) & 15
            (launches.get(bits) or prepared(bits))(a, b, c)
        except failures:  # the general way reports it, or does better
            return MISS
        return out

    return run
