"""An array on the host that several devices need whole for one call.

Each device uploads a part, and has the others' parts from these: so every byte goes over the host's
bus once, not once for each device. That takes direct paths between all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np

from hetero.arrays.kept import Kept
from hetero.devices import at_once, peers
from hetero.devices.base import Device
from hetero.errors import DeviceError
from hetero.moving import failures, keeping, transfer
from hetero.moving.shares import bounds
from hetero.pricing import memory_limit


def placed(devices: Sequence[Device], array: np.ndarray) -> Kept | None:
    """Copies of an array on each of the devices, until `Kept.drop`; None where they would not come
    faster by way of each other, or one of the devices fails."""
    number = len(devices)
    if not (
        number > 1
        and array.flags.forc
        and array.nbytes >= number * at_once.LEAST
        and memory_limit.current() is None
        and at_once.independent(devices)
        and all(peers.trusted(*pair) for pair in combinations(devices, 2))
    ):
        return None
    known, flat = Kept(array), transfer.as_dense(array).reshape(-1)
    parts = [
        (begin * flat.itemsize, (end - begin) * flat.itemsize, flat[begin:end])
        for begin, end in bounds(flat.size, [1.0] * number)
    ]
    there: list[tuple[Any, Any]] = [(None, None)] * number

    def upload(own: int) -> None:
        offset, _, part = parts[own]
        with devices[own].active():
            there[own] = devices[own].allocate(flat.nbytes)
            devices[own].upload(part, there[own][0], offset)
            devices[own].synchronize()  # the others read it next

    def exchange(own: int) -> None:
        buffer, owner = there[own]
        with devices[own].active():
            for step in range(1, number):  # each reads from another one at a time
                other = (own + step) % number
                offset, nbytes, _ = parts[other]
                source = devices[other], there[other][0]
                devices[own].copy_from_peer(buffer, *source, nbytes, offset, offset)
            devices[own].synchronize()  # before what it reads may be freed
            keeping.hold(devices[own], array, known, buffer, owner)

    try:
        for step in (upload, exchange):
            tasks = [partial(step, own) for own in range(number)]
            at_once.run(devices, tasks, flat.nbytes // number)
    except BaseException as error:
        known.drop()
        if not isinstance(error, DeviceError):
            raise
        failures.release(error)
        return None
    return known
