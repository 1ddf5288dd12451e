"""Equal devices: one of several GPUs of a kind is measured, and a transfer compares the others'.

Their slots differ, and so may their links.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

import numpy as np

from hetero import devices as backends
from hetero.devices.base import Device
from hetero.ops.cases import Place
from hetero.profile import inventory

SECONDS = 1.0  # about what comparing one takes
_ROUNDS = 7
_ALIKE = 1.25  # ratio of times, up to which two devices' links count as equal
_LARGEST = 1 << 26  # bytes of a transfer

log = logging.getLogger("hetero")


def pairs(places: list[Place]) -> Iterator[tuple[Place, Place]]:
    """Each device that is measured, with those of this machine that equal it."""
    for name, info in inventory.devices().items():
        first = next((place for place in places if place.name == info.get("same_as")), None)
        if first is not None and not info.get("set_aside") and inventory.believed(name):
            yield first, Place(name, info, (backends.get(name),))


def differ(first: Place, second: Place, most: int) -> bool:
    """Whether large transfers take clearly longer or shorter on one of two devices.

    Both are timed in turn, so that other load hits both alike. ``most`` bytes are moved.
    """
    transfers = [_transfers(place.devices[0], min(_LARGEST, most)) for place in (first, second)]
    for name, one in transfers[0].items():
        other = transfers[1][name]
        seconds = [(one(), other()) for _ in range(_ROUNDS)]
        mine, theirs = (median(times) for times in zip(*seconds, strict=True))
        if not 1 / _ALIKE < theirs / mine < _ALIKE:
            text = f"a large {name} takes {theirs / mine:.2f} times as long as on {first.name}"
            log.warning("the links of %s are measured by themselves: %s", second.name, text)
            return True
    return False


def _transfers(device: Device, nbytes: int) -> dict[str, Callable[[], float]]:
    """Seconds of a large transfer each way, between the device and pinned memory."""
    with device.active():
        buffer, owner = device.allocate(nbytes)
        memory = device.pinned(nbytes)
    memory[:] = np.arange(nbytes, dtype=np.uint8)

    def seconds(move: Callable[[], object], _owner: object) -> float:
        with device.active():
            begin = time.perf_counter()
            move()
            device.synchronize()
            return time.perf_counter() - begin

    return {
        "upload": partial(seconds, lambda: device.upload(memory, buffer), owner),
        "download": partial(seconds, lambda: device.download(buffer, memory), owner),
    }
