"""Copies between two devices: directly where the pair was seen to copy right, else by the host.

A driver may promise a direct path on which data do not arrive (address translation between cards
that is set up wrongly is the usual cause), and a copy that goes wrong reports nothing. A pair is
therefore trusted only after random bytes crossed it whole, in both directions, in this process.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from hetero import locks
from hetero.errors import DeviceError, DeviceMemoryError

_PATTERN_BYTES = (1 << 20) + 24  # several pieces of any path, and a rest
_STAGING_BYTES = 8 << 20  # of the host's buffer, through which devices without a path copy

_trusted: dict[frozenset[str], bool] = {}
_lock = locks.new()
log = logging.getLogger("hetero")


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
    where = nbytes, target_offset, source_offset, stream
    if source is target or trusted(target, source):
        target.copy(to, begin, *where)
    else:
        through_host(target, to, source, begin, *where)


def trusted(target: Any, source: Any) -> bool:
    """Whether direct copies between two devices are right, in both directions; tested once."""
    pair = frozenset((target.name, source.name))

    def trial() -> bool:
        try:
            linked = target.link(source) and source.link(target)
        except DeviceError as error:
            log.warning("no direct path from %s to %s: %s", source.name, target.name, error)
            return False
        return linked and _arrives(target, source) and _arrives(source, target)

    return tried(_trusted, pair, trial)


def tried(known: dict[Any, bool], key: Any, trial: Callable[[], bool]) -> bool:
    """What a trial gave, which is made once; False where a device has no room for it now."""
    if key not in known:
        with _lock:
            if key not in known:
                try:
                    known[key] = trial()
                except DeviceMemoryError:
                    return False
    return known[key]


def _arrives(target: Any, source: Any) -> bool:
    """Whether random bytes come from ``source`` to ``target`` as they were."""
    sent = np.random.default_rng().integers(0, 256, _PATTERN_BYTES, np.uint8)
    seen = np.empty_like(sent)
    try:
        with source.active():
            there, there_owner = source.allocate(sent.nbytes)
            source.upload(sent, there)
            source.synchronize()
        with target.active():
            here, here_owner = target.allocate(sent.nbytes)
            target.upload(~sent, here)
            target.copy(here, there, sent.nbytes)
            target.synchronize()
            target.download(here, seen)
        del there_owner, here_owner
    except DeviceMemoryError:
        raise
    except DeviceError as error:
        log.warning("a direct copy from %s to %s failed: %s", source.name, target.name, error)
        return False
    if np.array_equal(sent, seen):
        return True
    text = "direct copies from %s to %s arrive damaged; they go through the host instead"
    log.warning(text, source.name, target.name)
    return False


def through_host(
    target: Any,
    to: Any,
    source: Any,
    begin: Any,
    nbytes: int,
    target_offset: int,
    source_offset: int,
    stream: Any,
) -> None:
    """Copy by way of host memory; returns when the bytes have arrived.

    What ``stream`` of the target waits for comes first, as it would in a direct copy.
    """
    with _lock, target.active():
        target.synchronize(stream)
        make = functools.partial(target.pinned, _STAGING_BYTES, "pinned, between devices")
        staging = target.storage().get("between devices", None, 1, make)[:nbytes]
        for done in range(0, nbytes, staging.nbytes):
            piece = staging[: min(staging.nbytes, nbytes - done)]
            with source.active():
                source.download(begin, piece, source_offset + done)
            target.upload(piece, to, target_offset + done)
