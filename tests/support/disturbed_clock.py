"""Calibrations of a made-up machine while other load takes its time away, and what they choose.

    python tests/support/disturbed_clock.py [LOAD]...

The machine is the one of `fake_clock`, with one GPU. It is calibrated alone and beside each load
(all of `LOADS` by default), quickly, with float32. Printed as JSON is, of each load, what
calibration noticed and how many problems out of 300 each ratio is of: the seconds, by the
quiet profile, of what the disturbed one chooses, over those of what the quiet one chooses; and how
far the predictions of both are apart, of what takes less than ten times the chosen one.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import math
import os
import random
import sys
import types

import fake_clock

PROBLEMS = 300
CORES = os.cpu_count() or 1
_SLICE, _AWAY = 0.004, 0.008  # seconds: one time slice of three, with two busy loops on each core
_STOLEN, _BETWEEN = 0.1, 0.2  # seconds that a thief takes all, and between two of them
# Seconds between two times that other guests take one of many processors, and for how long; what
# their sharing a core's two threads costs, seconds for which they do, and between two such times.
_TAKEN, _FOR = 0.03, (0.002, 0.012)
_SHARED, _SPELL, _ALONE = (1.3, 2.0), 0.1, 0.4
_SPIKE, _SPIKED = 400.0, 0.3  # how much longer, and what share of the readings


class Disturbed(fake_clock.Clock):
    """The clock of a machine that computes something else, too."""

    def settle(self, load: str) -> None:
        self.load, self.draw = load, random.Random(8 if load == "guests" else 6)
        self.slice, self.next_theft = _SLICE, self.now + _BETWEEN
        self.switches, self.stolen, self.others, self.read = 0, 0.0, 0.0, self.now
        self.next_guest, self.spell, self.slower = self.now, self.now, 1.0

    def __call__(self) -> float:
        if self.load == "spikes" and self.draw.random() < _SPIKED:
            self.now += (_SPIKE - 1.0) * (self.now - self.read)
        self.read = super().__call__()
        return self.read

    def spend(self, seconds: float, on_host: bool = True, launched: bool = False) -> None:
        if self.load == "guests" and (on_host or launched):
            seconds = self.beside_guests(seconds, launched)
        if self.load == "busy loops" and on_host:
            while seconds > self.slice:
                super().spend(self.slice + _AWAY)
                self.others += _AWAY * CORES
                self.switches += 1
                seconds -= self.slice
                self.slice = _SLICE
            self.slice -= seconds
        elif self.load == "thief":
            while self.now + seconds > self.next_theft:
                super().spend(max(self.next_theft - self.now, 0.0) + _STOLEN)
                seconds = max(seconds - (self.next_theft - self.now + _STOLEN), 0.0)
                self.stolen += _STOLEN * CORES
                self.next_theft = self.now + self.draw.expovariate(1.0 / _BETWEEN)
        super().spend(seconds)

    def beside_guests(self, seconds: float, launched: bool) -> float:
        """What takes so many seconds alone: a loop over all processors waits for each that is
        taken, launches do not; whatever shares a core is slower, and the system does not tell."""
        while self.now > self.spell:
            shared = self.slower == 1.0
            self.slower = self.draw.uniform(*_SHARED) if shared else 1.0
            self.spell += self.draw.expovariate(1.0 / (_SPELL if shared else _ALONE))
        seconds *= self.slower
        begin = self.next_guest
        while begin < self.now + seconds:
            length = self.draw.uniform(*_FOR)
            self.stolen += length
            if begin + length > self.now and not launched:
                seconds += begin + length - max(self.now, begin)
            begin += self.draw.expovariate(1.0 / _TAKEN)
        self.next_guest = begin
        return seconds

    def sleep(self, seconds: float) -> None:
        super().spend(seconds)
        self.slice = _SLICE


LOADS = ("busy loops", "thief", "spikes", "guests")


def install() -> tuple[list[str], Disturbed]:
    """The made-up machine, what its system tells about load, and few cases."""
    names = [name for name in fake_clock.install() if name != "cuda:1"]
    clock = fake_clock.clock
    clock.__class__ = Disturbed
    clock.settle("")
    fake_clock.time.sleep = clock.sleep
    from hetero.calibration import machine
    from hetero.calibration.measure import timing
    from hetero.ops.convolve2d import direct_cpu

    usage = types.SimpleNamespace(
        RUSAGE_THREAD=1, getrusage=lambda _: types.SimpleNamespace(ru_nivcsw=clock.switches)
    )
    timing.resource = usage
    timing.processor_times = lambda: timing.Times(clock.now + clock.others, clock.stolen)
    timing.own_time = lambda: clock.now
    direct_cpu.block_width = lambda dtype: 8
    all_cases = machine.all_cases

    def few(*arguments):
        found = [
            portion._replace(
                cases=tuple(
                    case
                    for case in portion.cases
                    if case.dtype == "float32" and "odd" not in case.layout
                )
            )
            for portion in all_cases(*arguments)
        ]
        return [portion for portion in found if portion.cases]

    machine.all_cases = few
    return names, clock


def problems() -> list:
    """Random calls of every operation, half of them with operands on the device."""
    from hetero import registry

    draw = random.Random(8)
    forms = {
        "matvec": lambda: (size(4, 8192), size(4, 8192)),
        "matmul": lambda: (size(4, 2048), size(4, 2048), size(4, 2048)),
        "convolve2d": lambda: (size(16, 2048), size(16, 2048), f := size(1, 40), f),
        "cg": lambda: (size(16, 1024), size(16, 1024)),
        "poisson": lambda: (size(16, 1024), size(16, 1024)),
    }

    def size(low, high):
        return round(2.0 ** draw.uniform(math.log2(low), math.log2(high))) // 4 * 4 or 1

    found = []
    for number in range(PROBLEMS):
        name = list(forms)[number % len(forms)]
        on = ("host", "cuda:0")[number // len(forms) % 2]
        operation = registry.operation(name)
        found.append((operation, operation.from_dims(forms[name](), "float32", on)))
    return found


def chosen(constants, operation, problem):
    """All candidates' seconds by place and method, the chosen one first."""
    from hetero.arrays import Spec
    from hetero.calling import planner

    machine = planner.OtherMachine(constants, constants.machine())
    if operation.plan is None:
        plan = machine.plan(problem)
    else:
        operands = tuple(Spec(o.shape, o.dtype, on=o.location) for o in problem.inputs)
        plan = operation.plan(operands, {}, None, None, machine)
    return {
        (c.device, c.method): c.seconds
        for c in plan.candidates
        if c.reason is None and c.seconds is not None
    }


def main(loads: list[str]) -> dict:
    names, clock = install()
    calibrate = importlib.import_module("hetero.calibration.calibrate")
    from hetero import profile

    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("hetero").addHandler(handler)

    def calibrated(load):
        clock.settle(load)
        start = clock.now
        said.clear()
        data = calibrate.measure_machine(True, names, None)
        return profile.parse(profile.encode(data)), clock.now - start

    quiet, seconds = calibrated("")
    trials = problems()
    best = [chosen(quiet, *trial) for trial in trials]
    found = {"quiet": {"seconds": seconds, "said": list(said), "load": quiet.data.get("load")}}
    for load in loads:
        disturbed, seconds = calibrated(load)
        ratios, worst, spread = [], [], []
        for trial, prices in zip(trials, best, strict=True):
            priced = chosen(disturbed, *trial)
            choice = next(iter(priced))
            near = 10.0 * next(iter(prices.values()))
            spread += [
                math.exp(abs(math.log(priced[name] / seconds)))
                for name, seconds in prices.items()
                if name in priced and seconds < near
            ]
            ratios.append(prices[choice] / next(iter(prices.values())))
            worst.append((ratios[-1], str(trial[1]), choice, next(iter(prices))))
        found[load] = {
            "seconds": seconds,
            "said": list(said),
            "load": disturbed.data.get("load"),
            "worst": max(ratios),
            "spread": sorted(spread)[int(0.95 * len(spread))],
            "beyond": sorted(w for w in worst if w[0] > 1.3)[-5:],
            "number": sum(ratio > 1.3 for ratio in ratios),
        }
    return found


if __name__ == "__main__":
    with contextlib.redirect_stderr(open(os.devnull, "w")):
        found = main(sys.argv[1:] or list(LOADS))
    print(json.dumps(found, indent=1))
