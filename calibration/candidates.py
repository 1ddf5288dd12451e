"""What is measured goes on without what fails, and each candidate is timed as in a program.

What ran before a call decides what it takes: threads that sleep must be woken, caches are cold, and
BLAS's idle threads, which spin for 0.1 s after a product, hold the cores that loops and copies
want. A candidate that is timed right after another one pays for that one, and which pays most
depends on what they are. So a turn begins when BLAS's threads sleep, with calls that do not count;
then some calls in a row do. Turns go round, so that a slower spell of the machine hits all alike.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from hetero.calibration.measure import once, undisturbed, wait_until_idle
from hetero.devices.base import Device
from hetero.errors import DeviceError, DeviceNotAvailable, MethodNotAvailable
from hetero.moving import failures

_WARM = 1e-3  # seconds of calls that do not count
_WAKE = 1e-2  # where threads of BLAS have gone to sleep: to find cores for them takes ticks of 4 ms
_TURN, _LEAST, _MOST = 3e-3, 3, 15  # seconds of calls that count, how few, how many
_LONG = 0.02  # seconds of a call that counts once in a turn
_VERY_LONG = 0.1  # of which there is one turn, and none to warm up
_ROUNDS, _NEAR = 3, 1.5  # one of what takes longer than this many times the fastest
log = logging.getLogger("hetero")
Name = TypeVar("Name", bound=Hashable)


# -- What fails ------------------------------------------------------------------------------------


@contextmanager
def leaving_out(name: Name, failed: dict[Name, str]) -> Iterator[None]:
    """Run a block that measures a candidate; where it fails, note why, and go on after it.

    Inside, no other device takes over: what is measured is what the name says. ``failed`` gets why,
    in one line; the first reason stays. All of it is in the log at DEBUG.
    """
    try:
        with failures.without_fallback():
            yield
    except (DeviceError, DeviceNotAvailable, MethodNotAvailable) as error:
        failed.setdefault(name, str(error).partition("\n")[0])
        log.debug("%s failed", name, exc_info=True)


def warn(failed: dict[str, str]) -> None:
    """One warning for each candidate that was left out."""
    for name, reason in failed.items():
        log.warning("%s is left out: %s", name, reason)


# -- One call --------------------------------------------------------------------------------------


def awaited(call: Callable[[], object], devices: Collection[Device]) -> Callable[[], object]:
    """A call that returns when these devices have done what it asked of them."""

    def run() -> None:
        call()
        for device in devices:
            with device.active():
                device.synchronize()

    return run if devices else call


# -- Candidates in turn ----------------------------------------------------------------------------


def timed(
    calls: Mapping[Name, Callable[[], object]],
    *,
    budget: float,
    failed: dict[Name, str],
    chosen: Name | None = None,
    spinning: frozenset[Name] = frozenset(),
) -> dict[Name, float]:
    """Seconds of each call, the median of those that count; of those that do not fail.

    A call returns when its work is done; what fails is added to ``failed``. After ``budget``
    seconds for each, about, no round of calls that are long begins. ``chosen`` is timed as well as
    the fastest one, however slow; after ``spinning`` ones threads of BLAS spin.
    """
    lengths: dict[Name, float] = {}
    for name, call in calls.items():  # whatever is compiled, loaded or allocated once
        with leaving_out(name, failed):
            lengths[name] = once(call)
            if lengths[name] > _LONG:
                lengths[name] = once(call)  # how long it is without that
    samples: dict[Name, list[float]] = {name: [] for name in lengths}
    draw, begin, after = random.Random(0), time.perf_counter(), bool(spinning)
    for number in range(_ROUNDS):
        least = min(lengths.values(), default=0.0)
        late = time.perf_counter() - begin > budget * len(calls)
        if number and (least > _VERY_LONG or (late and least > _LONG)):
            break
        order = [
            name
            for name, length in lengths.items()
            if not number or name == chosen or length <= _NEAR * least
        ]
        draw.shuffle(order)
        for name in order:
            if after:
                wait_until_idle()
            after = name in spinning
            with leaving_out(name, failed):
                warm = _WAKE if after else _WARM
                samples[name] += _turn(calls[name], lengths[name], warm)
                lengths[name] = min(samples[name])
            if name in failed:
                del samples[name], lengths[name]
    if after:
        wait_until_idle()  # for whatever comes next
    return {name: undisturbed(found) for name, found in samples.items()}


def _turn(call: Callable[[], object], length: float, warm: float) -> list[float]:
    """Seconds of some calls in a row, after some that do not count."""
    begin = time.perf_counter()
    while length <= _VERY_LONG:
        call()
        if time.perf_counter() - begin >= warm:
            break
    begin, least = time.perf_counter(), _LEAST if length <= _LONG else 1
    samples: list[float] = []
    while len(samples) < least or (len(samples) < _MOST and time.perf_counter() - begin < _TURN):
        samples.append(once(call))
    return samples
