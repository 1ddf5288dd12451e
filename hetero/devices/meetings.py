"""Devices that write to each other's memory and wait for each other, without the host.

Each device of a group makes one launch: it copies to the others' memory, sets a flag there, and
waits for their flags. The host starts the launches and does not wait. This is done only after a
trial in this process, in which random bytes have to cross in all directions. A device that waits
too long gives up; so do the others then, and `Meeting.check` raises.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hetero import locks
from hetero.devices import peers
from hetero.devices.base import Device
from hetero.devices.workspace import Workspace
from hetero.errors import DeviceError, DeviceMemoryError
from hetero.kernels import Launch
from hetero.kernels.common.exchange import WORDS, exchange

Copies = Sequence[tuple[int, int, int]]  # (target, source, bytes), addresses first
PATIENCE = 10.0  # seconds that a device waits for another one, which may be busy with other work
_TRIAL_PATIENCE = 2.0  # seconds; nothing else runs on these streams
_TRIAL_BYTES = (1 << 20) + 24  # several blocks' copies, and a rest
_trusted: dict[tuple[tuple[str, int | None], ...], bool] = {}
_turns = locks.new()
log = logging.getLogger("hetero")


class Meeting:
    """What a group of devices needs to meet: words in the memory of each.

    The ``parts`` are on devices that are `trusted`, each with a stream of its own. A device waits
    for another one for ``patience`` seconds, by default `PATIENCE`.

    Attributes
    ----------
    words : list of int
        Address of each part's words (kernels/common/peer_flags.cu).
    """

    def __init__(self, parts: Sequence[Workspace], patience: float | None = None) -> None:
        self.patience = PATIENCE if patience is None else patience
        self._parts = parts
        for part in parts:
            part.upload(np.zeros(WORDS, np.uint32), "words")
        self.words = [part.buffers["words"] for part in parts]
        for part in parts:
            part.upload(np.array(self.words, np.int64), "all words")

    def launch(self, rank: int, copies: Copies) -> tuple[Launch, dict[str, Any]]:
        """One part's launch of a meeting, and the buffers that it names."""
        part = self._parts[rank]
        launch, counted = exchange(copies, len(self._parts), rank, self.patience)
        table = part.upload(np.array([*counted, (0, 0, 0)], np.int64))
        return launch, {"copies": table, "words": part.buffers["all words"]}

    def check(self) -> None:
        """Raise DeviceError if a device has waited too long for another one; waits for all."""
        lost = [part.download("words", np.empty(1, np.uint32))[0] for part in self._parts]
        for part, is_lost in zip(self._parts, lost, strict=True):
            if is_lost:
                raise DeviceError(
                    f"{part.device.name} waited {self.patience:g} s for another device, in vain"
                )


def trusted(devices: Sequence[Device]) -> bool:
    """Whether devices can meet: one trial in all directions decides, and is remembered.

    Not remembered where a device has no room for the trial.
    """
    if not all(device.is_cuda for device in devices):
        return False
    places = tuple(map(_place, devices))
    return peers.tried(_trusted, places, lambda: _linked(devices) and _meet(devices))


def _place(device: Device) -> tuple[str, int | None]:
    """Peer access belongs to contexts, of which a device may get another one."""
    with device.active():
        return device.name, device.context_handle()


@contextlib.contextmanager
def turn(devices: Sequence[Device]) -> Iterator[None]:
    """Where several devices meet, no other solve's do inside.

    Launches of two solves could keep each other's from beginning, each on another device.
    """
    with _turns if len(devices) > 1 and devices[0].is_cuda else contextlib.nullcontext():
        yield


def _linked(devices: Sequence[Device]) -> bool:
    pairs = itertools.combinations(devices, 2)
    return all(
        one is other or (peers.trusted(one, other) and one.link(other) and other.link(one))
        for one, other in pairs
    )


def _meet(devices: Sequence[Device]) -> bool:
    """Whether random bytes of each device come to all others, twice."""
    try:
        with_streams = []
        for device in devices:
            with device.active():
                with_streams.append(Workspace(device, "solves", device.new_stream()))
        try:
            return _arrives(with_streams)
        finally:  # before their memory is free
            for part in with_streams:
                with part.active():
                    part.device.synchronize()
    except DeviceMemoryError:
        raise
    except DeviceError as error:
        log.warning("%s do not meet: %s", ", ".join(d.name for d in devices), error)
        return False


def _arrives(parts: Sequence[Workspace]) -> bool:
    meeting = Meeting(parts, _TRIAL_PATIENCE)
    rng = np.random.default_rng()
    sent = [rng.integers(0, 256, _TRIAL_BYTES, np.uint8) for _ in parts]
    for part, values in zip(parts, sent, strict=True):
        part.upload(values, "sent")
        for number in range(len(parts)):
            part.upload(~values, f"from {number}")
    started = []
    for rank, part in enumerate(parts):
        copies = [
            (other.buffers[f"from {rank}"], part.buffers["sent"], _TRIAL_BYTES)
            for other in parts
            if other is not part
        ]
        launch, buffers = meeting.launch(rank, copies)
        with part.active():
            kernel = part.device.build(launch.source, launch.kernel, launch.defines)
        values = [buffers.get(a, a) for a in launch.arguments]
        started.append((part, (kernel, launch.grid, launch.block, values)))
    for part, bound in 2 * started:
        with part.active():
            part.device.launch(*bound, 0, part.stream)
    meeting.check()
    seen = np.empty_like(sent[0])
    for number, part in enumerate(parts):
        for other, values in enumerate(sent):
            whole = other == number or np.array_equal(part.download(f"from {other}", seen), values)
            if not whole:
                text = "what a kernel of %s writes arrives damaged on %s; the host orders copies"
                log.warning(text, parts[other].device.name, part.device.name)
                return False
    return True
