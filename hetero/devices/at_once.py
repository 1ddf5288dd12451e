"""Copies between the host and several devices at the same time, by a thread for each device.

The copy of one device leaves most of the host's memory and of the other devices' links idle: two
GPUs at once copy 1.4 to 1.9 times as fast as one after the other.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Sequence

from hetero.devices.base import Device

LEAST = 1 << 23  # bytes for each; below that, starting threads takes what is gained
_NAME = "hetero-copy"


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
    """Do tasks at once: the first one in this thread, each other one in a thread of its own.

    Returns, and raises, as `run` does.
    """
    errors: list[BaseException | None] = [None] * len(tasks)

    def guarded(number: int) -> None:
        try:
            tasks[number]()
        except BaseException as error:
            errors[number] = error

    threads = []
    try:
        for number in range(1, len(tasks)):
            # What `use` blocks say holds in the threads, too; a context is entered only once.
            here = contextvars.copy_context()
            thread = threading.Thread(target=here.run, args=(guarded, number), name=_NAME)
            try:
                thread.start()
            except RuntimeError:  # the interpreter is ending, or there are too many
                guarded(number)
            else:
                threads.append(thread)
        tasks[0]()
    finally:
        _join(threads)
    for error in errors:
        if error is not None:
            raise error


def _join(threads: Sequence[threading.Thread]) -> None:
    """Wait for all of them, whatever interrupts; the first interrupt is raised."""
    interrupt: BaseException | None = None
    for thread in threads:
        while thread.is_alive():
            try:
                thread.join()
            except BaseException as error:
                interrupt = interrupt or error
    if interrupt is not None:
        raise interrupt


def independent(devices: Sequence[Device]) -> bool:
    """Whether all differ, and each is in the same context whichever thread makes it active."""
    differ = len(devices) == len({id(device) for device in devices})
    return differ and all(device.same_in_threads() for device in devices)
