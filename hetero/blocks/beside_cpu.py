"""A range of a call that the CPU computes in the caller's thread while a device does another one.

Where a device reads the operands of its range from pinned memory by itself, their copies and the
kernel go onto its queue one after another, which takes tens of microseconds; the caller's thread
goes on to the CPU's range, and then brings the device's result home. No thread of ours is started,
waits or copies meanwhile, so BLAS has all cores. It cuts its work evenly over them and waits for
the last one: on a core that another thread is on as well, that comes later by time slices of the
system's, which are milliseconds. Else a thread of ours does the device's range.
"""

from __future__ import annotations

import contextlib
import contextvars
import time
from collections.abc import Callable, Iterator
from typing import Any

from hetero import registry
from hetero.arrays import HOST
from hetero.devices import at_once
from hetero.devices.base import Device
from hetero.errors import DeviceError
from hetero.moving import failures, transfer
from hetero.moving.calls import Call
from hetero.pricing import memory_limit
from hetero.pricing.plan import CPU
from hetero.registry import Implementation
from hetero.registry.problem import Problem

_SMALL = 1 << 20  # bytes of ordinary memory, which hold up the host for 0.1 ms
DEVICE = "device"
_taken: contextvars.ContextVar[dict[str, float] | None] = contextvars.ContextVar(
    "hetero_taken", default=None
)


@contextlib.contextmanager
def timed() -> Iterator[dict[str, float]]:
    """A context in which a call that the CPU shares with a device tells what each range takes.

    `CPU` and `DEVICE` -> seconds, of the latest call.
    """
    seconds: dict[str, float] = {}
    token = _taken.set(seconds)
    try:
        yield seconds
    finally:
        _taken.reset(token)


def together(
    device: Device,
    own: Callable[[], None],
    begin: Callable[[], Enqueued | None],
    whole: Callable[[], None],
) -> DeviceError | None:
    """Do the CPU's range and a device's; what made the device fail.

    Returns when neither is under way any longer.

    Parameters
    ----------
    device : Device
    own : callable
        Does the CPU's range.
    begin : callable
        Puts the device's on its queue, see `enqueued`; None where that does not work.
    whole : callable
        Does the device's.
    """
    own = _noting(CPU, own)
    try:
        started = begin()
    except DeviceError as error:
        if not failures.out_of_memory(error):
            own()
            return error
        failures.release(error)
        started = None  # there are ways to make room, and to take less
    if started is None:
        return _by_a_thread(device, own, _noting(DEVICE, whole))
    try:
        own()
    except BaseException:
        started.drop()
        raise
    try:
        seconds = started.finish()
    except BaseException as error:
        started.drop()
        if isinstance(error, DeviceError):
            return error
        raise
    if (taken := _taken.get()) is not None:
        taken[DEVICE] = seconds
    return None


def _by_a_thread(
    device: Device, own: Callable[[], None], whole: Callable[[], None]
) -> DeviceError | None:
    errors = []

    def task() -> None:
        try:
            whole()
        except DeviceError as error:
            errors.append(error)

    if at_once.independent([device]):
        at_once.side_by_side([own, task])
    else:
        task()
        own()
    return errors[0] if errors else None


def _noting(place: str, task: Callable[[], None]) -> Callable[[], None]:
    """A task that tells what it takes, where that is wanted."""
    taken = _taken.get()
    if taken is None:
        return task

    def run() -> None:
        begin = time.perf_counter()
        task()
        taken[place] = time.perf_counter() - begin

    return run


def suits(problem: Problem, implementation: Implementation) -> bool:
    """Whether a device that `Device.enqueues` can be given a range of a call in this way."""
    if implementation.blocks == registry.ALWAYS:
        return False
    largest = max(problem.inputs, key=lambda o: o.nbytes)
    return largest.pinned and all(
        o.location == HOST and o.is_dense() and (o.pinned or o.nbytes <= _SMALL)
        for o in problem.inputs
    )


def enqueued(device: Device, problem: Problem, row: Implementation, call: Call) -> Enqueued | None:
    """A range that was put on a device's queue; None where another thread must do it.

    Raises
    ------
    DeviceError
        With nothing under way.
    """
    if not device.enqueues or device.capturing or memory_limit.current() is not None:
        return None
    if not suits(problem, row):
        return None
    begun = Enqueued(device, problem, call, _taken.get() is not None)
    try:
        begun.compute(row)
    except BaseException:
        begun.drop()
        raise
    return begun


class Enqueued:
    """A range that is under way. Its arrays must stay until `finish` or `drop` returns."""

    def __init__(self, device: Device, problem: Problem, call: Call, timed: bool) -> None:
        self._device, self._problem, self._call = device, problem, call
        self._timed, self._marks = timed, []
        self._owners: list[Any] = []
        self._buffer: Any = None

    def compute(self, implementation: Implementation) -> None:
        """Enqueue the copies of the operands, and what computes the result from them."""
        with self._device.active():
            self._mark()
            inputs = self._uploaded(self._call.arrays)
            self._buffer = self._allocated(self._problem.output.nbytes)
            arguments = self._call.on((self._device,), inputs, self._buffer)
            implementation.run((self._device,), self._problem, arguments)
            self._mark()

    def _mark(self) -> None:
        if self._timed:
            self._marks.append(self._device.event())

    def _allocated(self, nbytes: int) -> Any:
        buffer, owner = self._device.allocate(max(nbytes, 1))
        self._owners.append(owner)
        return buffer

    def _uploaded(self, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        """A buffer for each array; one that is given twice is moved once.

        The smallest first: a driver lets a copy of ordinary memory wait for the queue.
        """
        found: dict[int, Any] = {}
        for array in sorted(arrays, key=lambda array: array.nbytes):
            if id(array) not in found:
                found[id(array)] = self._allocated(array.nbytes)
                self._device.enqueue_upload(transfer.as_dense(array), found[id(array)])
        return tuple([found[id(array)] for array in arrays])

    def finish(self) -> float:
        """Wait for it, and bring its result to its place on the host.

        Returns
        -------
        float
            Seconds that the device took, also where the caller came later; 0.0 unless timed.
        """
        out, seconds = self._problem.output, 0.0
        with self._device.active():
            if self._marks:
                seconds = self._device.elapsed(*self._marks)
            begin = time.perf_counter()
            transfer.fetch(self._device, self._buffer, out.shape, out.dtype, self._call.out)
            if self._marks:
                seconds += time.perf_counter() - begin
        self._owners.clear()
        return seconds

    def drop(self) -> None:
        """Return when the device touches nothing of it any more."""
        with contextlib.suppress(DeviceError), self._device.active():
            self._device.synchronize()
        self._owners.clear()
