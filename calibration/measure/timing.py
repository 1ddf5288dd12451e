"""Robust timing of calls, and detection of other load, in this system and other virtual machines.

Linux counts involuntary context switches, time stolen by other virtual machines, and what each
processor did. A switch is a sign of other load only where other processes were busy meanwhile,
since threads of this process preempt one another, too. Where the system does not report who was
busy, it is one.
"""

from __future__ import annotations

import math
import os
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

from hetero.profile.constants import is_trusted
from hetero.times import readable

# -- One call --
_OUTLIER = 2.0  # times the least sample: a longer one met other load, which only adds
_PATIENCE = 3.0  # budgets, while no sample was undisturbed
_VERY_LONG = 10.0  # budgets
_REST = 0.002  # seconds after which the scheduler gives this process a fresh time slice
_LONGER, _ROUNDS = 5.0, 4  # budgets and rounds, while the minimum of some call was seen once
_LONGEST = 20.0  # budgets, after however few rounds
_SAME = 1.1  # times the least sample: near enough to confirm it
_LONG = 2e-3  # seconds, in which threads of this process wait for one another for a small part
_SHORTEST = 2e-5  # seconds; a shorter sample repeats the call, against the clock's resolution
_UNTIL_IDLE = 0.3  # seconds: idle threads of OpenBLAS look for work for 0.1 s
_IDLE = 0.25  # fraction of a processor below which no thread computes
# -- Other load --
SWITCHES_PER_SECOND = 30.0  # of an idle machine, at most; two busy loops a core make 100 a core
OTHERS = 0.1  # fraction of the cores that other processes keep busy: reported
_INTERVAL = 0.05  # seconds, at least, between two readings of /proc/stat: it counts in ticks
_TAKEN = 0.05  # fraction of the processors' time that is taken (marked) or stolen (reported)
TICK = 0.01  # seconds
_STAT = "/proc/stat"


def switches() -> int:
    """Involuntary context switches of this thread so far; 0 where the system does not count them.

    Where a thread's own are not counted they are the process's. A thread that times a call waits
    for all that compute it, and each thread that waits yields its processor.
    """
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


@dataclass(frozen=True, slots=True)
class Measurement:
    """Seconds of one call.

    Attributes
    ----------
    seconds : float
        `robust_median` of the undisturbed samples; of all, where other load disturbed all.
    samples : tuple of float
        All of them, in the order they were taken.
    disturbed, ever : bool
        Whether this thread had to leave its processor in every sample, or in any.
    """

    seconds: float
    samples: tuple[float, ...]
    disturbed: bool = False
    ever: bool = False


def center(samples: Sequence[float]) -> float:
    """Median of the samples within five median deviations of the median.

    Up to a fifth of the samples may be a hundred times too large: the result stays within the
    spread of the others.
    """
    middle = median(samples)
    deviation = median(abs(s - middle) for s in samples)
    kept = [s for s in samples if abs(s - middle) <= 5 * deviation]
    return median(kept or samples)


def robust_median(samples: Sequence[float]) -> float:
    """The `center` of the samples below twice the least one.

    Other load only adds, so that a far longer sample carries no information. The median and not
    the minimum counts: it is what a call usually takes.
    """
    least = min(samples)
    return center([s for s in samples if s <= _OUTLIER * least])


def spread(samples: Sequence[float]) -> float:
    """Uncertainty of the center, relative: median deviation over median, over sqrt(count)."""
    middle = median(samples)
    return median(abs(s - middle) for s in samples) / middle / len(samples) ** 0.5


def once(
    call: Callable[[], object],
    own: Callable[[], float] | None = None,
    clock: Callable[[], float] | None = None,
    number: int = 1,
) -> float:
    """Seconds of a number of calls.

    ``own`` is this process's processor time, where its threads do all the work: then a long call
    takes no more than that, and the rest of the time other processes ran.
    """
    clock = clock or time.perf_counter
    used = own() if own is not None else 0.0
    begin = clock()
    for _ in range(number):
        call()
    took = clock() - begin
    return min(took, own() - used) if own is not None and took > _LONG else took


def _sample(
    call: Callable[[], object],
    own: Callable[[], float] | None,
    clock: Callable[[], float],
    switches: Callable[[], int],
    number: int = 1,
) -> tuple[float, bool]:
    """Seconds of a number of calls as by `once`, and whether other load disturbed them.

    A long one that was disturbed takes no more than the processor time of this thread, or than that
    of the process by the cores if it is more: threads that wait for one another burn the rest.
    """
    before, used, all_used = switches(), time.thread_time(), own() if own is not None else 0.0
    took = once(call, own, clock, number)
    if switches() - before <= SWITCHES_PER_SECOND * took:
        return took, False
    if own is not None and took > _LONG:
        share = (own() - all_used) / len(os.sched_getaffinity(0))
        took = min(took, max(time.thread_time() - used, share))
    return took, True


def measure(
    call: Callable[[], object],
    *,
    budget: float,
    least: int = 3,
    most: int = 200,
    wanted_spread: float = 0.01,
    rest: Callable[[], object] | None = None,
    own: Callable[[], float] | None = None,
    clock: Callable[[], float] = time.perf_counter,
    switches: Callable[[], int] = switches,
) -> Measurement:
    """Time a call until its spread is small or its time is up.

    As long as other load disturbed all samples, more are taken, up to three times the budget. After
    a disturbed sample the process sleeps, so that the next one has a fresh time slice.

    Parameters
    ----------
    call : callable
        Must not return before its work is done.
    budget : float
        Seconds after which no further sample is taken, the first call included. A first call that
        takes longer counts as a sample, unless it took twice the second one.
    least, most : int
        Bounds of the number of samples; ``least`` wins over ``budget``, but of calls that take ten
        times that two undisturbed ones are enough.
    wanted_spread : float
        Relative uncertainty (see `spread`) that ends the repetition.
    rest : callable, optional
        Called before each sample, and not timed.
    own : callable, optional
        As for `once`.
    clock : callable
        Seconds.
    switches : callable
        How often this process had to leave a processor so far.
    """
    before, begin = switches(), clock()
    first, number = once(call, own, clock), 1  # counted if it is long: caches, pages, compilers
    alone = switches() - before <= SWITCHES_PER_SECOND * first
    samples: list[float] = []
    undisturbed: list[float] = []
    while True:
        if rest is not None:
            rest()
        took, is_disturbed = _sample(call, own, clock, switches, number)
        if not samples and took < _SHORTEST and number == 1:
            number = max(2, min(100, int(_SHORTEST / max(took, 2e-7))))
            continue
        samples.append(took / number)
        if is_disturbed:
            time.sleep(_REST)
        else:
            undisturbed.append(samples[-1])
        if len(samples) == 1 and budget < first <= _OUTLIER * samples[0]:
            samples.insert(0, first)
            undisturbed[:0] = [first] * alone
            if first > _VERY_LONG * budget and len(undisturbed) == 2:
                least = min(least, 2)
        if len(samples) < least:
            continue
        if (
            len(samples) >= most
            or clock() - begin > (budget if undisturbed else _PATIENCE * budget)
            or (len(undisturbed) >= 5 and spread(undisturbed) < wanted_spread)
        ):
            seconds = robust_median(undisturbed) if undisturbed else min(samples)
            ever = len(undisturbed) < len(samples)
            return Measurement(seconds, tuple(samples), disturbed=not undisturbed, ever=ever)


def in_turn(
    calls: Sequence[Callable[[], object]],
    *,
    budget: float,
    least: int = 2,
    most: int = 60,
    first: Sequence[float] = (),
    own: Callable[[], float] | None = None,
    clock: Callable[[], float] = time.perf_counter,
    switches: Callable[[], int] = switches,
) -> tuple[Measurement, ...]:
    """Minimum times of several calls, interleaved so that all meet the same other load.

    Differences between them count, and a slow spell that met only one would spoil these. The calls
    are repeated until the budget is spent and each minimum was seen twice; at most for 5 budgets,
    or 20 where that was less than 4 rounds.

    Parameters
    ----------
    calls : sequence of callable
        Each must not return before its work is done.
    budget : float
        Seconds for all of them.
    least, most : int
        Bounds of the number of rounds.
    first : sequence of float
        Seconds of a round that was made already.
    own, clock, switches : callable
        As for `measure`.

    Returns
    -------
    tuple of Measurement
        Of each call; its seconds are the least.
    """
    samples: list[list[float]] = [[took] for took in first] or [[] for _ in calls]
    alone = [False] * len(calls)
    begin = clock() - sum(first)
    for rounds in range(1 + bool(first), most + 1):
        for number, call in enumerate(calls):
            took, is_disturbed = _sample(call, own, clock, switches)
            samples[number].append(took)
            if is_disturbed:
                time.sleep(_REST)
            else:
                alone[number] = True
        spent = clock() - begin
        sure = all(alone) and all(is_seen_twice(each) for each in samples)
        enough = spent > budget
        if not sure:
            enough = spent > (_LONGER if rounds >= _ROUNDS else _LONGEST) * budget
        if rounds >= least and enough:
            break
    return tuple(
        Measurement(min(each), tuple(each), disturbed=not is_alone)
        for each, is_alone in zip(samples, alone, strict=True)
    )


def is_seen_twice(samples: Sequence[float]) -> bool:
    """Whether a second sample confirms the least one."""
    first, *others = sorted(samples)
    return bool(others) and others[0] <= _SAME * first


class Times(NamedTuple):
    """Seconds of all processors together, since the system started."""

    busy: float
    stolen: float


def processor_times() -> Times | None:
    """What the processors did so far; None where the system does not report it."""
    try:
        with open(_STAT, "rb") as file:
            # user nice system idle iowait irq softirq steal
            ticks = [int(field) for field in file.readline().split()[1:9]]
        each = os.sysconf("SC_CLK_TCK")
        user, nice, system, _, _, irq, softirq, stolen = ticks
    except (OSError, ValueError):
        return None
    return Times((user + nice + system + irq + softirq) / each, stolen / each)


def own_time() -> float:
    """Processor time of this process and of its finished children, in seconds."""
    return time.process_time() + sum(os.times()[2:4])


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


class _Reading(NamedTuple):
    """Processor times at one time; ``times`` is None where the system does not report them."""

    at: float
    times: Times | None
    own: float


class Watch:
    """Detects other load while a machine is measured.

    Parameters
    ----------
    clock : callable
        Seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._noted: bool | None = None
        self._stolen = False  # at the last point
        self._samples = self._again = self._left = 0
        self._before = switches()
        self._since = clock()
        self._older = self._newer = self._read(self._since)
        self._start = self._newer, switches()

    def _read(self, now: float) -> _Reading:
        return _Reading(now, processor_times(), own_time())

    def begin(self) -> None:
        """Begin to watch one measurement."""
        self._noted = None
        self._before, self._since = switches(), self._clock()

    def note(self, disturbed: bool) -> None:
        """Add what `measure` detected itself."""
        self._noted = disturbed or bool(self._noted)

    def count(self, samples: int, again: int, left: int) -> None:
        """Add numbers of samples: all, those measured again, and those still doubtful."""
        self._samples += samples
        self._again += again
        self._left += left

    def disturbed(self) -> bool:
        """Whether other load was noticed since `begin`."""
        now = self._clock()
        left = self._noted
        if left is None:
            left = switches() - self._before > 1 + SWITCHES_PER_SECOND * (now - self._since)
        others = stolen = False
        if left or self._stolen or now - self._newer.at > _INTERVAL:
            others, stolen = self._taken(now)
        self._stolen = stolen
        return stolen or (others and left)

    def _taken(self, now: float) -> tuple[bool, bool]:
        """Whether other processes took processors lately, and other virtual machines.

        Other processes are assumed to have, where the system does not report it.
        """
        reading = self._read(now)
        last = self._older if now - self._newer.at <= _INTERVAL else self._newer
        if last is self._newer:
            self._older, self._newer = last, reading
        if reading.times is None or last.times is None:
            return True, False
        capacity = (os.cpu_count() or 1) * (now - last.at)
        # A processor is sampled once in each tick: the second term is the sampling error.
        enough = _TAKEN * capacity + math.sqrt(capacity * TICK)
        stolen = reading.times.stolen - last.times.stolen
        others = reading.times.busy - last.times.busy - (reading.own - last.own)
        return others + stolen > enough, stolen > enough

    def seen(self) -> dict[str, Any]:
        """What was noticed since the watch was made.

        Returns
        -------
        dict
            ``seconds``: how long that is; ``cores``; ``others``: how many processors other
            processes kept busy, on average, None where it is not known; ``stolen``: seconds;
            ``switches``: involuntary ones of the measuring thread; ``samples``, ``again``,
            ``left``: numbers of samples, of those taken again, and of those still doubtful.
        """
        first, before = self._start
        now = self._read(self._clock())
        seconds, mine = max(now.at - first.at, 1e-9), now.own - first.own
        others, stolen = None, 0.0
        if now.times is not None and first.times is not None:
            others = max((now.times.busy - first.times.busy - mine) / seconds, 0.0)
            stolen = now.times.stolen - first.times.stolen
        else:
            others = max(os.getloadavg()[0] - mine / seconds, 0.0)
        return {
            "seconds": round(seconds, 3),
            "cores": os.cpu_count() or 1,
            "others": None if others is None else round(others, 3),
            "stolen": round(stolen, 3),
            "switches": switches() - before,
            "samples": self._samples,
            "again": self._again,
            "left": self._left,
        }


def is_loaded(seen: dict[str, Any]) -> bool:
    """Whether there was enough other load to report it."""
    others = seen.get("others") or 0.0
    return seen["samples"] > 0 and (
        not is_trusted(seen)
        or others > OTHERS * seen["cores"]
        or seen["stolen"] > _TAKEN * seen["cores"] * seen["seconds"]
    )


def described(seen: dict[str, Any]) -> str:
    """The other load as text."""
    parts = []
    if seen.get("others") is not None:
        parts.append(f"other processes kept {seen['others']:.1f} of {seen['cores']} cores busy")
    if seen["stolen"]:
        parts.append(f"{readable(seen['stolen'])} were stolen from this virtual machine")
    parts.append(f"{seen['switches']} involuntary context switches")
    parts.append(f"{seen['again']} samples measured again")
    parts.append(f"{seen['left']} of {seen['samples']} still doubtful")
    return ", ".join(parts)
