"""Timing of calls, and how busy other work kept the machine meanwhile.

Other load only adds to the time of a call, and comes in bursts. So each sample is the median of the
faster half of its repeats.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, NamedTuple

from hetero.profile.constants import is_trusted

# -- One call --
_VERY_LONG = 10.0  # budgets, of a call of which two samples are enough
_SHORTEST = 2e-5  # seconds; a shorter sample repeats the call, against the clock's resolution
_ENOUGH, _ALIKE = 6, 1.02  # samples, of which the faster half differ by this ratio at most
_UNTIL_IDLE = 0.3  # seconds: idle threads of OpenBLAS look for work for 0.1 s
# Seconds in which a thread that computes is noticed: the system counts its time at ticks, of which
# there are 100 to 1000 in a second.
_REST = 0.012
_IDLE = 0.25  # fraction of a processor below which no thread computes
# -- Other load, in fractions of the cores' time --
OTHERS = 0.1  # that others take: reported
_CROWDED = 0.3  # by half of them calls of the CPU took two to three times as long
_STAT = "/proc/stat"


def undisturbed(samples: Sequence[float]) -> float:
    """Median of the faster half of the samples."""
    return median(sorted(samples)[: (len(samples) + 1) // 2])


def once(call: Callable[[], object], number: int = 1) -> float:
    """Seconds of a number of calls."""
    begin = time.perf_counter()
    for _ in range(number):
        call()
    return time.perf_counter() - begin


def measure(
    call: Callable[[], object],
    *,
    budget: float,
    least: int = 3,
    most: int = 200,
    rest: Callable[[], object] = lambda: None,
) -> float:
    """Seconds of a call, which returns when its work is done: taken until the faster half of six
    samples or more are alike, or the time is up.

    After ``budget`` seconds no further sample is taken. The first call counts where it alone takes
    longer; else it loads caches, makes pages and compiles. There are ``least`` samples at least,
    but of calls that take ten times the budget two are enough, and ``most`` at most. ``rest`` is
    called before each sample, and not timed.
    """
    end = time.perf_counter() + budget
    first, number = once(call), 1
    samples = [first] if first > budget else []
    if first > _VERY_LONG * budget:
        least = min(least, 2)
    while len(samples) < least or (
        len(samples) < most and time.perf_counter() <= end and not _is_sure(samples)
    ):
        rest()
        took = once(call, number)
        if not samples and took < _SHORTEST and number == 1:
            number = max(2, min(100, int(_SHORTEST / max(took, 2e-7))))
            continue
        samples.append(took / number)
    return undisturbed(samples)


def _is_sure(samples: Sequence[float]) -> bool:
    """Whether there are enough samples, and the faster half of them are alike."""
    half = sorted(samples)[: (len(samples) + 1) // 2]
    return len(samples) >= _ENOUGH and half[-1] <= _ALIKE * half[0]


def in_turn(
    calls: Sequence[Callable[[], object]], *, budget: float, first: Sequence[float] = ()
) -> list[float]:
    """Seconds of several calls, made in turn until ``budget`` is up for all, at least twice each;
    ``first`` are those of a round that was made already.

    Differences between them count, and a slow spell that met only one would spoil these.
    """
    rounds = [list(first)] if first else []
    end = time.perf_counter() - sum(first) + budget
    while len(rounds) < 2 or time.perf_counter() <= end:
        rounds.append([once(call) for call in calls])
    return [undisturbed(samples) for samples in zip(*rounds, strict=True)]


def wait_until_idle() -> None:
    """Wait until no thread of this process computes: those of BLAS spin for 0.1 s after a product.

    Not for long: other threads of the program may compute for ever.
    """
    end = time.perf_counter() + _UNTIL_IDLE
    while time.perf_counter() < end:
        before = time.process_time()
        time.sleep(_REST)
        if time.process_time() - before < _IDLE * _REST:
            return


# -- Other load ------------------------------------------------------------------------------------


class Reading(NamedTuple):
    """What the machine's processors did up to a time, in seconds.

    ``busy``, by all processes and other virtual machines, is None where the system does not report
    it; ``own`` is of this process and of its finished children.
    """

    at: float
    busy: float | None
    own: float


def processor_times() -> float | None:
    """Seconds that all processors together were busy since the system started."""
    try:
        with open(_STAT, "rb") as file:
            # user nice system idle iowait irq softirq steal
            ticks = [int(field) for field in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return None
    return (sum(ticks) - sum(ticks[3:5])) / os.sysconf("SC_CLK_TCK")


def reading() -> Reading:
    """What the processors did so far."""
    own = time.process_time() + sum(os.times()[2:4])
    return Reading(time.perf_counter(), processor_times(), own)


def load(before: Reading, after: Reading, samples: int, again: int, left: int) -> dict[str, Any]:
    """The other load between two readings, as a profile keeps it.

    ``samples`` is the number of all, ``again`` of those measured again, and ``left`` of those that
    others still contradict: all where others took too much of the cores. In the dict, ``others`` is
    how many cores other processes kept busy, on average; None where it is not known.
    """
    seconds, cores, others = max(after.at - before.at, 1e-9), os.cpu_count() or 1, None
    if before.busy is not None and after.busy is not None:
        busy = after.busy - before.busy - (after.own - before.own)
        others = round(max(busy / seconds, 0.0), 3)
        if others > _CROWDED * cores:
            left = samples
    counts = {"samples": samples, "again": again, "left": left}
    return {"seconds": round(seconds, 3), "cores": cores, "others": others, **counts}


def is_loaded(seen: dict[str, Any]) -> bool:
    """Whether there was enough other load to report it."""
    others = seen.get("others") or 0.0
    return seen["samples"] > 0 and (not is_trusted(seen) or others > OTHERS * seen["cores"])


def described(seen: dict[str, Any]) -> str:
    """The other load as text."""
    parts = [f"{seen['again']} samples measured again"]
    if "samples" in seen:
        parts.append(f"{seen['left']} of {seen['samples']} still doubtful")
    if seen.get("others") is not None:
        others = f"other processes kept {seen['others']:.1f} of {seen['cores']} cores busy"
        parts.insert(0, others)
    return ", ".join(parts)
