"""Other load: what takes the processors away from that which is timed, as far as the system tells.

Linux counts involuntary context switches, time stolen by other virtual machines, and what each
processor did. A switch is a sign only where others were busy meanwhile, as threads of this process
take processors from one another, too. Neither is a probe alone, a few microseconds of work that
always take the same: on an idle machine of 16 cores every third one took twice as long. Where the
system does not tell who was busy, both are signs.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from hetero.profile.constants import LEFT, doubtful_share, is_trusted  # noqa: F401

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_WHO = getattr(resource, "RUSAGE_THREAD", getattr(resource, "RUSAGE_SELF", 0))

SWITCHES_PER_SECOND = 30.0  # of an idle machine, at most; two busy loops beside make 100 a core
NOISY = 0.15  # of the measurements
_LEAST_SCATTERED = 5
OTHERS = 0.1  # of the cores, that others keep busy: worth a word
_SLOW = 2.0  # times its fastest run, a probe that was disturbed
_TURNS = 400  # of the probe's loop: about 5 us
_TRIES = 3  # of a probe: the first ones may find cold caches
_SPUN = 3e-4  # seconds after which own threads no longer spin on the same core
_LOOK = 0.05  # seconds that the system's figures are compared over, at least: it counts in ticks
_TAKEN = 0.05  # of the processors' time, that others took: worth a mark; or stole: and a word
TICK = 0.01  # seconds
_STAT = "/proc/stat"


def switches() -> int:
    """How often this thread had to leave its processor; 0 where it is not known.

    Where a thread's own is not known it is the process's. Whoever times a call waits for all that
    compute it, and each that waits offers its processor to others.
    """
    return resource.getrusage(_WHO).ru_nivcsw if resource is not None else 0


class Times(NamedTuple):
    """Seconds of all processors together, since the system started."""

    busy: float
    stolen: float


def times() -> Times | None:
    """What the processors did so far; None where it is not known."""
    try:
        with open(_STAT, "rb") as file:
            # user nice system idle iowait irq softirq steal
            ticks = [int(field) for field in file.readline().split()[1:9]]
        each = os.sysconf("SC_CLK_TCK")
        user, nice, system, _, _, irq, softirq, stolen = ticks
    except (OSError, ValueError):
        return None
    return Times((user + nice + system + irq + softirq) / each, stolen / each)


def own() -> float:
    """Processor time of this process and of those that it waited for, in seconds."""
    return time.process_time() + sum(os.times()[2:4])


def _probe() -> None:
    for _ in range(_TURNS):
        pass


class _Look(NamedTuple):
    """The system's figures at one time; None where they are not known."""

    at: float
    times: Times | None
    own: float


class Watch:
    """Notices other load while a machine is measured.

    Parameters
    ----------
    clock : callable
        Seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._fastest = min(self._probed() for _ in range(20))
        self._noted: bool | None = None
        self._stolen = False  # at the last point
        self._slow = 0
        self._measurements = self._scattered = 0
        self._samples = self._again = self._left = 0
        self._probes = 0
        self._before = switches()
        self._since = clock()
        self.signs = {"switches": 0, "stolen": 0, "probes": 0}
        self._older = self._newer = self._look(self._since)
        self._start = self._newer, switches()

    def _probed(self) -> float:
        start = self._clock()
        _probe()
        return self._clock() - start

    def _is_slow(self) -> bool:
        """Whether a probe takes clearly longer than the fastest one, however often it is tried."""
        begin, tries = self._clock(), 0
        while tries < _TRIES or self._clock() - begin < _SPUN:
            tries += 1
            took = self._probed()
            self._fastest = min(self._fastest, took)
            if took <= _SLOW * self._fastest:
                return False
        return True

    def _look(self, now: float) -> _Look:
        return _Look(now, times(), own())

    def begin(self) -> None:
        """What follows is one point."""
        self._noted = None
        self._before, self._since = switches(), self._clock()

    def note(self, disturbed: bool, scattered: bool = False) -> None:
        """What `measure` found out itself."""
        self._noted = disturbed or bool(self._noted)
        self._measurements += 1
        self._scattered += scattered

    def settled(self, samples: int, again: int, left: int) -> None:
        """How many samples were taken, of them again, and how many are doubtful yet."""
        self._samples += samples
        self._again += again
        self._left += left

    @property
    def noisy(self) -> bool:
        """Whether so many measurements had scattered samples that none is believed at once."""
        return self._scattered > max(NOISY * self._measurements, _LEAST_SCATTERED)

    def disturbed(self) -> bool:
        """Whether other load was noticed since `begin`."""
        now = self._clock()
        left = self._noted
        if left is None:
            left = switches() - self._before > 1 + SWITCHES_PER_SECOND * (now - self._since)
        self._probes += 1
        slow = self._is_slow()
        self._slow += slow
        others = stolen = False
        if left or slow or self._stolen or now - self._newer.at > _LOOK:
            others, stolen = self._taken(now)
        self._stolen = stolen
        for sign, found in zip(self.signs, (left and others, stolen, slow and others), strict=True):
            self.signs[sign] += found
        return stolen or (others and (left or slow))

    def _taken(self, now: float) -> tuple[bool, bool]:
        """Whether other processes took processors lately, and other virtual machines.

        Of processes it is assumed where the system does not tell.
        """
        look = self._look(now)
        last = self._older if now - self._newer.at <= _LOOK else self._newer
        if last is self._newer:
            self._older, self._newer = last, look
        if look.times is None or last.times is None:
            return True, False
        capacity = (os.cpu_count() or 1) * (now - last.at)
        # A processor is seen once in each tick: by chance that is as much more or less.
        enough = _TAKEN * capacity + math.sqrt(capacity * TICK)
        stolen = look.times.stolen - last.times.stolen
        others = look.times.busy - last.times.busy - (look.own - last.own)
        return others + stolen > enough, stolen > enough

    def seen(self) -> dict[str, Any]:
        """What was noticed since the watch was made.

        Returns
        -------
        dict
            ``seconds``: how long that is; ``cores``; ``others``: how many processors other
            processes kept busy, on average, None where it is not known; ``stolen``: seconds;
            ``switches``: involuntary ones of the measuring thread; ``slow_probes``: share of the
            probes; ``scattered``: share of the measurements whose samples were far apart;
            ``samples``, ``again``, ``left``: numbers of samples, of those taken again, and of those
            doubtful yet.
        """
        first, before = self._start
        now = self._look(self._clock())
        seconds, mine = max(now.at - first.at, 1e-9), now.own - first.own
        others, stolen = None, 0.0
        if now.times is not None and first.times is not None:
            others = max((now.times.busy - first.times.busy - mine) / seconds, 0.0)
            stolen = now.times.stolen - first.times.stolen
        elif hasattr(os, "getloadavg"):
            others = max(os.getloadavg()[0] - mine / seconds, 0.0)
        return {
            "seconds": round(seconds, 3),
            "cores": os.cpu_count() or 1,
            "others": None if others is None else round(others, 3),
            "stolen": round(stolen, 3),
            "switches": switches() - before,
            "slow_probes": round(self._slow / max(self._probes, 1), 4),
            "scattered": round(self._scattered / max(self._measurements, 1), 4),
            "samples": self._samples,
            "again": self._again,
            "left": self._left,
        }


def is_loaded(seen: dict[str, Any]) -> bool:
    """Whether there was other load that is worth a word."""
    others = seen.get("others") or 0.0
    return seen["samples"] > 0 and (
        not is_trusted(seen)
        or others > OTHERS * seen["cores"]
        or seen["stolen"] > _TAKEN * seen["cores"] * seen["seconds"]
    )


def described(seen: dict[str, Any]) -> str:
    """What was noticed, in words."""
    parts = []
    if seen.get("others") is not None:
        parts.append(f"other processes kept {seen['others']:.1f} of {seen['cores']} cores busy")
    if seen["stolen"]:
        parts.append(f"{seen['stolen']:.1f} s were stolen from this virtual machine")
    parts.append(f"{seen['switches']} involuntary context switches")
    parts.append(f"{seen['again']} samples measured again")
    parts.append(f"{seen['left']} of {seen['samples']} doubtful yet")
    return ", ".join(parts)
