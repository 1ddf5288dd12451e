"""What several devices do together: copies from and to the host at the same time, copies to each
other's memory, and meetings.

The copy of one device leaves most of the host's memory and of the other devices' links idle: two
GPUs at once copy 1.4 to 1.9 times as fast as one after the other. So each has a thread for it.

A driver may promise a direct path on which data do not arrive (address translation between cards
that is set up wrongly is the usual cause), and a copy that goes wrong reports nothing. So random
bytes have to cross whole, in all directions, in this process, before a pair copies directly, or
devices meet. Others copy through the host.

Devices that meet make one launch each: it copies to the others' memory, sets a flag there, and
waits for their flags. The host starts the launches and does not wait. A device that waits too long
gives up; so do the others then, and `Meeting.check` raises.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import itertools
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from hetero import locks
from hetero.devices.storage import Workspace
from hetero.errors import DeviceError, DeviceMemoryError
from hetero.host.copying.staging import THREADS
from hetero.imports import load
from hetero.kernels import Launch
from hetero.kernels.common.launch import WORDS, exchange

Copies = Sequence[tuple[int, int, int]]  # (target, source, bytes), addresses first
LEAST = 1 << 22  # bytes for each; below that, waking a thread takes what is gained
_MOST = 64  # threads; to wake one takes a tenth of what starting it does
PATIENCE = 10.0  # seconds that a device waits for another one, which may be busy with other work
_TRIAL_PATIENCE = 2.0  # seconds; nothing else runs on these streams
_TRIAL_BYTES = (1 << 20) + 24  # several pieces of any path, several blocks' copies, and a rest
_STAGING_BYTES = 8 << 20  # of the host's buffer, through which devices without a path copy
_STAGING = "pinned, between devices"

_trusted: dict[Any, bool] = {}  # pairs that copy, groups that meet
_lock, _turns = locks.new(), locks.new()
log = logging.getLogger("hetero")


# -- Copies from and to the host -------------------------------------------------------------------


def run(devices: Sequence[Any], tasks: Sequence[Callable[[], object]], nbytes: int) -> None:
    """Do one task for each device: at once where they copy much, else one after the other.

    Returns when all are done, also where one fails; then the first one's error is raised. So it is
    after an interrupt: what the tasks write to may be gone then.

    Each task makes its device active itself, and copies about ``nbytes``.
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
    return load("concurrent.futures").ThreadPoolExecutor(_MOST, THREADS)


os.register_at_fork(after_in_child=_pool.cache_clear)  # none of its threads is there


def independent(devices: Sequence[Any]) -> bool:
    """Whether all differ, and each is in the same context whichever thread makes it active."""
    differ = len(devices) == len({id(device) for device in devices})
    return differ and all(device.same_in_threads() for device in devices)


# -- Copies between devices ------------------------------------------------------------------------


def copy(
    target: Any,
    to: Any,
    source: Any,
    begin: Any,
    nbytes: int,
    target_offset: int = 0,
    source_offset: int = 0,
    stream: Any = None,
) -> None:
    """Copy from a device to another one of its kind, in the order of a stream of the target.

    The stream must have waited for what writes the source, if that may still run. The bytes go
    through the host, and the host waits for them, where there is no direct path between the two,
    or one that damages data.
    """
    if source is target or trusted(target, source):
        target.copy(to, begin, nbytes, target_offset, source_offset, stream)
        return
    with _lock, target.active():
        target.synchronize(stream)  # what it waits for comes first, as it would in a direct copy
        make = functools.partial(target.pinned, _STAGING_BYTES, _STAGING)
        staging = target.storage().get(_STAGING, None, 1, make)[:nbytes]
        for done in range(0, nbytes, staging.nbytes):
            piece = staging[: min(staging.nbytes, nbytes - done)]
            with source.active():
                source.download(begin, piece, source_offset + done)
            target.upload(piece, to, target_offset + done)


def trusted(target: Any, source: Any) -> bool:
    """Whether direct copies between two devices are right, in both directions; tested once."""

    def copied(parts: Sequence[Workspace]) -> None:
        for (_, into), (of, out_of) in itertools.permutations(enumerate(parts), 2):
            with into.active():
                ends = into.buffers[f"from {of}"], out_of.buffers["sent"]
                into.device.copy(*ends, _TRIAL_BYTES, 0, 0, into.stream)

    damaged = "direct copies from %s to %s arrive damaged; they go through the host instead"
    pair = target.name, source.name
    return _tried(frozenset(pair), lambda: _arrives((target, source), copied, damaged))


def _tried(key: Any, trial: Callable[[], bool]) -> bool:
    """What a trial gave, which is made once; False where a device has no room for it now."""
    if key not in _trusted:
        with _lock:
            if key not in _trusted:
                try:
                    _trusted[key] = trial()
                except DeviceMemoryError:
                    return False
    return _trusted[key]


def _arrives(
    devices: Sequence[Any], move: Callable[[Sequence[Workspace]], None], damaged: str
) -> bool:
    """Whether random bytes of each device, "sent", come to "from ..." of all others by ``move``."""
    rng, parts, seen = np.random.default_rng(), [], np.empty(_TRIAL_BYTES, np.uint8)
    sent = [rng.integers(0, 256, _TRIAL_BYTES, np.uint8) for _ in devices]
    try:
        pairs = [(a, b) for a, b in itertools.combinations(devices, 2) if a is not b]
        if not all(one.link(other) and other.link(one) for one, other in pairs):
            return False
        for device in devices:
            with device.active():
                parts.append(Workspace(device, "solves", device.new_stream()))
        try:
            for part, values in zip(parts, sent, strict=True):
                part.upload(values, "sent")
                for number in range(len(parts)):
                    part.upload(~values, f"from {number}")
            move(parts)
            for (_, into), (of, out_of) in itertools.permutations(enumerate(parts), 2):
                if not np.array_equal(into.download(f"from {of}", seen), sent[of]):
                    log.warning(damaged, out_of.device.name, into.device.name)
                    return False
        finally:  # before their memory is free
            for part in parts:
                with part.active():
                    part.device.synchronize()
    except DeviceMemoryError:
        raise
    except DeviceError as error:
        names = ", ".join(device.name for device in devices)
        log.warning("%s do not reach each other's memory directly: %s", names, error)
        return False
    return True


# -- Meetings --------------------------------------------------------------------------------------


class Meeting:
    """What a group of devices needs to meet: words in the memory of each.

    The ``parts`` are on devices that `meet`, each with a stream of its own. A device waits for
    another one for ``patience`` seconds, by default `PATIENCE`.

    Attributes
    ----------
    words : list of int
        Address of each part's words (kernels/common/exchange.cu).
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


def meet(devices: Sequence[Any]) -> bool:
    """Whether devices can meet: one trial in all directions decides, and is remembered.

    Not remembered where a device has no room for the trial.
    """
    if not all(device.is_cuda for device in devices):
        return False

    def met(parts: Sequence[Workspace]) -> None:
        meeting, started = Meeting(parts, _TRIAL_PATIENCE), []
        for rank, part in enumerate(parts):
            copies = [
                (other.buffers[f"from {rank}"], part.buffers["sent"], _TRIAL_BYTES)
                for other in parts
                if other is not part
            ]
            launch, buffers = meeting.launch(rank, copies)
            with part.active():
                started.append((part, part.device.bound(launch, buffers)))
        for part, bound in 2 * started:
            with part.active():
                part.device.launch(*bound, part.stream)
        meeting.check()

    def place(device: Any) -> tuple[str, int | None]:
        """Peer access belongs to contexts, of which a device may get another one."""
        with device.active():
            return device.name, device.context_handle()

    def trial() -> bool:
        pairs = itertools.combinations(devices, 2)
        damaged = "what a kernel of %s writes arrives damaged on %s; the host orders copies"
        return all(a is b or trusted(a, b) for a, b in pairs) and _arrives(devices, met, damaged)

    return _tried(tuple(map(place, devices)), trial)


@contextlib.contextmanager
def turn(devices: Sequence[Any]) -> Iterator[None]:
    """A solve's turn: one device is active inside, not for each launch; where several meet, no
    other solve's do, for launches of two could keep each other's from beginning, each on another
    device. If it raises, the devices have done all that they were given before memory is free.
    """
    several = _turns if devices[0].is_cuda else contextlib.nullcontext()
    with devices[0].active() if len(devices) == 1 else several:
        try:
            yield
        except BaseException:
            for device in devices:
                with contextlib.suppress(Exception), device.active():
                    device.synchronize()
            raise
