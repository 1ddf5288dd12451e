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
from functools import partial
from statistics import median
from typing import TypeVar

from hetero.calibration.measure.timing import once, undisturbed, wait_until_idle
from hetero.devices.base import Device
from hetero.errors import DeviceError, DeviceNotAvailable, MethodNotAvailable
from hetero.moving import failures

_LEAST_TYPICAL, _MOST_TYPICAL = 3, 15  # samples of a typical call
_WARM = 1e-3  # seconds of calls that do not count
_WAKE = 1e-2  # where threads of BLAS have gone to sleep: to find cores for them takes ticks of 4 ms
_TURN, _LEAST, _MOST = 3e-3, 3, 15  # seconds of calls that count, how few, how many
_LONG = 0.02  # seconds of a call whose turn has fewer that count, and of which there are two turns
_VERY_LONG = 0.1  # of which there is one, and none to warm up
_ENOUGH = 15  # samples
_ROUNDS = 3  # of short calls that may be the best, whatever time is left
_NEAR = 1.5  # times the fastest: what takes longer is timed in one round
_FAR = 3.0  # times the fastest, of which one long call is enough
log = logging.getLogger("hetero")
Name = TypeVar("Name", bound=Hashable)


# -- What fails ------------------------------------------------------------------------------------


@contextmanager
def leaving_out(name: Name, failed: dict[Name, str]) -> Iterator[None]:
    """Run a block that measures a candidate; where it fails, note why, and go on after it.

    Inside, no other device takes over: what is measured is what the name says.

    Parameters
    ----------
    name : hashable
        Of the candidate.
    failed : dict
        Name -> why, in one line; the first reason stays. All of it is in the log at DEBUG.
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


def typical(call: Callable[[], object], seconds: float = 0.3) -> float:
    """Median seconds of some calls, for about so long in all, after one that does not count."""
    call()
    samples: list[float] = []
    while len(samples) < _LEAST_TYPICAL or (
        len(samples) < _MOST_TYPICAL and sum(samples) < seconds
    ):
        samples.append(once(call))
    return median(samples)


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

    Parameters
    ----------
    calls : mapping
        Name -> a call that returns when its work is done.
    budget : float
        Seconds for each, about; of what is short and may be the best three rounds are made.
    failed : dict
        Name -> why; what fails is added.
    chosen : optional
        What is timed as well as the fastest one, however slow.
    spinning : frozenset
        The names after which threads of BLAS spin.
    """
    samples: dict[Name, list[float]] = {}
    lengths: dict[Name, float] = {}  # of the last call, whether it counted or not

    def run(name: Name) -> float:
        lengths[name] = once(calls[name])
        return lengths[name]

    for name in calls:  # whatever is compiled, loaded or allocated once
        with leaving_out(name, failed):
            if run(name) > _LONG:
                run(name)  # how long it is without that
            samples[name] = []
    draw, begin, number = random.Random(0), time.perf_counter(), 0
    after = bool(spinning)
    while samples:
        least = min(min(found, default=lengths[name]) for name, found in samples.items())
        order = [
            name
            for name, found in samples.items()
            if not found or name == chosen or min(found) <= _NEAR * least
        ]
        draw.shuffle(order)
        for name in order:
            if after:
                wait_until_idle()
            after = name in spinning
            with leaving_out(name, failed):
                warm = _WAKE if after else _WARM
                one = partial(run, name)
                _turn(one, samples[name], lengths[name], warm, _FAR * least)
            if name in failed:
                del samples[name], lengths[name]
        number += 1
        near = [len(samples[name]) for name in order if name in samples]
        late = time.perf_counter() - begin > budget * len(calls)
        rounds = _ROUNDS if least <= _LONG else 1 + (least <= _VERY_LONG)
        if number >= rounds and (late or min(near, default=_ENOUGH) >= _ENOUGH):
            break
    if after:
        wait_until_idle()  # for whatever comes next
    return {name: undisturbed(found) for name, found in samples.items()}


def _turn(
    run: Callable[[], float], samples: list[float], length: float, warm: float, far: float
) -> None:
    """One turn of a candidate; of what is far from the fastest fewer calls are enough."""
    if length <= _LONG or length <= min(far, _VERY_LONG):
        begin = time.perf_counter()
        while True:
            length = run()
            if time.perf_counter() - begin >= warm:
                break
    enough = _LEAST if length <= _LONG else 2 if length <= far else 1
    begin, number = time.perf_counter(), 0
    while number < enough or (number < _MOST and time.perf_counter() - begin < _TURN):
        samples.append(run())
        number += 1
