"""Copies between the host and several devices at the same time, by a thread for each device.

The copy of one device leaves most of the host's memory and of the other devices' links idle: two
GPUs at once copy 1.4 to 1.9 times as fast as one after the other.
"""

from __future__ import annotations

import contextvars
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

from hetero.devices.base import Device
from hetero.imports import load

LEAST = 1 << 22  # bytes for each; below that, waking a thread takes what is gained
NAME = "hetero-copy"  # of the threads
_MOST = 64  # threads; to wake one takes a tenth of what starting it does


def run(devices: Sequence[Device], tasks: Sequence[Callable[[], object]], nbytes: int) -> None:
    """Do one task for each device: at once where they copy much, else one after the other.

    Returns when all are done, also where one fails; then the first one's error is raised. So it is
    after an interrupt: what the tasks write to may be gone then.

    Parameters
    ----------
    devices : sequence of Device
    tasks : sequence of callable
        Each makes its device active itself.
    nbytes : int
        What each of them copies, about.
    """
    if nbytes < LEAST or len(devices) < 2 or not independent(devices):
        for task in tasks:
            task()
        return
    side_by_side(tasks)


def side_by_side(tasks: Sequence[Callable[[], object]]) -> None:
    """Do tasks at once: the first one in this thread, each other one in a thread of its own, or in
    this one where there are no more.

    Returns, and raises, as `run` does.
    """
    left = dict(enumerate(tasks))
    errors: dict[int, BaseException] = {}

    def do(number: int) -> None:
        task = left.pop(number, None)
        if task is not None:
            try:
                task()
            except BaseException as error:
                errors[number] = error

    begun = []
    try:
        for number in range(1, len(tasks)):
            # What `use` blocks say holds in the threads, too; a context is entered only once.
            begun.append(_pool().submit(contextvars.copy_context().run, do, number))
    except RuntimeError:  # the interpreter is ending, or there are too many threads
        _pool.cache_clear()  # which counts its threads wrongly from now on
    except BaseException as error:  # an interrupt
        errors[-1] = error
    for number in (0, *range(len(begun) + 1, len(tasks))):
        do(number)
    for one in begun:
        while not one.done():
            try:
                one.result()
            except BaseException as error:  # an interrupt
                errors.setdefault(-1, error)
    if errors:
        raise errors[min(errors)]


@functools.cache
def _pool() -> Any:
    return load("concurrent.futures").ThreadPoolExecutor(_MOST, NAME)


os.register_at_fork(after_in_child=_pool.cache_clear)  # none of its threads is there


def independent(devices: Sequence[Device]) -> bool:
    """Whether all differ, and each is in the same context whichever thread makes it active."""
    differ = len(devices) == len({id(device) for device in devices})
    return differ and all(device.same_in_threads() for device in devices)
