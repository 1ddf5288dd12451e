"""A calibration in which nothing is computed: what a call takes is a formula of what it must do.

    python tests/support/fake_clock.py quick|full

prints the profile's links, host and models as JSON. The machine has the CPU's rows and two equal
GPUs, of kind "cuda". Every implementation's ``run`` only puts a clock forward, by an amount that
depends on the implementation and the problem alone, whoever calls it; so two calibrations that
measure the same cases and fit them in the same way give the same numbers, bit by bit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import math
import resource
import subprocess
import sys
import time
import types

import numpy as np

_TICK = 2.0**-36  # seconds; all times are whole numbers of it, so that differences are exact
_READING = 2.0**-20  # seconds that pass from one look at the clock to the next


class Clock:
    """Seconds, put forward by what is done."""

    now = asleep = 0.0

    def __call__(self) -> float:
        self.now += _READING
        return self.now

    def spend(self, seconds: float, on_host: bool = True, launched: bool = False) -> None:
        self.now += round(seconds / _TICK) * _TICK

    def sleep(self, seconds: float) -> None:
        self.spend(seconds)
        self.asleep += round(seconds / _TICK) * _TICK


clock = Clock()
time.perf_counter = clock  # before anything of hetero is imported: it is a default argument there
time.sleep = clock.sleep
time.process_time = time.thread_time = lambda: clock.now - clock.asleep
resource.getrusage = lambda who: types.SimpleNamespace(ru_nivcsw=0)  # nothing else runs


class _Waiting(subprocess.Popen):
    """A process that has ended: compiling ahead is not timed."""

    def __init__(self, *_, **__):
        self.returncode = 0
        self.pid = 1 << 30  # nobody's
        self.stdin, self.stdout = io.StringIO(), io.StringIO()

    def wait(self, timeout=None):
        return 0

    def poll(self):
        return 0

    def __del__(self, **_):
        pass


class _Generator:
    """Random numbers that are all alike: values do not change what a call takes here."""

    def random(self, shape=None, dtype=float):
        return 0.75 if shape is None else np.full(shape, 0.75, dtype)

    def integers(self, low, high, size, dtype):
        return np.empty(size, dtype)


class _Place:
    """What CuPy gives as ``array.device``."""

    def __init__(self, ordinal: int) -> None:
        self.id = ordinal

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


class _Untouched(np.ndarray):
    """Memory that nobody writes to, however large."""

    def __setitem__(self, *_):
        pass

    def copy(self, *_):
        return self


def _of_fields(source) -> dict:
    """Fields of tuples within tuples, by name."""
    found = {}
    for value in source if isinstance(source, tuple) else ():
        found.update(_of_fields(value))
    if hasattr(source, "_asdict"):
        found.update(source._asdict())
    return found


def seconds_of(implementation, problem, steps: int, devices: int) -> float:
    """What a call takes: an overhead, work at a rate, and up to 10 % more or less by chance."""
    key = (
        implementation.operation,
        implementation.method,
        implementation.kind,
        problem.dtype,
        problem.layout,
        problem.dims,
        problem.batch,
        devices,
    )
    draw = [b / 255 for b in hashlib.sha256(repr(key).encode()).digest()[:4]]
    on_cpu = implementation.kind == "cpu"
    rate = {"tiled": 3.0, "library": 4.0, "fft": 2.5}
    rate = rate.get(implementation.method, 1.0) * (4e9 if on_cpu else 2e12) * devices
    size = np.dtype(problem.dtype).itemsize / 4
    work = implementation.work(problem, {"kind": implementation.kind, **_INFO})
    each = (work.flops + 0.5 * work.bytes) * size / rate
    overhead = 3e-6 if on_cpu else 8e-6
    return (overhead * (3.0 - draw[0]) + steps * (each + 2e-6) * (0.9 + 0.2 * draw[1])) / 2.0


_INFO = {"cores": 8, "multiprocessors": 132, "elsewhere": True}


def install() -> list[str]:
    """Replace what computes, copies and compiles; the devices' names."""
    # What draws random numbers or copies when it is loaded.
    import numba  # noqa: F401
    import scipy.fft
    import scipy.signal
    import scipy.sparse  # noqa: F401

    import hetero.ops.functions  # noqa: F401  # registers them
    from hetero import devices, registry
    from hetero.devices.base import Device
    from hetero.host import cpu, pages
    from hetero.ops.convolve2d.window import FEW_PRODUCTS

    pages.maker = lambda nbytes: np.empty  # no thread beside, which sleeps by this clock
    address = iter(range(1 << 40, 1 << 60, 1 << 36))

    class Array:
        def __init__(self, shape, dtype, device):
            self.shape, self.dtype = tuple(shape), np.dtype(dtype)
            self.address, self.device = next(address), _Place(device.ordinal)
            self.data = types.SimpleNamespace(ptr=self.address)

        @property
        def __cuda_array_interface__(self):
            return {
                "shape": self.shape,
                "typestr": self.dtype.str,
                "data": (self.address, False),
                "strides": None,
                "version": 3,
            }

    Array.__module__ = "cupy"

    class Fake(Device):
        kind = dialect = "cuda"
        multiprocessors, block_limit, capability = 132, 1024, (9, 0)
        shared_limit = 227 << 10

        def __init__(self, ordinal):
            self.ordinal, self.name = ordinal, f"cuda:{ordinal}"

        def describe(self):
            return {
                "kind": "cuda",
                "name": "fake",
                "pci_bus_id": f"0000:0{self.ordinal}:00.0",
                "memory_bytes": 140 << 30,
                "multiprocessors": self.multiprocessors,
                "block_limit": self.block_limit,
                "arch": "sm_90",
                "shared_limit": self.shared_limit,
                "driver": "0.0",
                "toolkit": "0.0",
                "library": "0.0",
            }

        def active(self):
            return contextlib.nullcontext(self)

        def allocate(self, nbytes):
            clock.spend(1e-6)
            return next(address), object()

        def new_array(self, shape, dtype):
            made = Array(shape, dtype, self)
            return made, made.address

        def _copied(self, nbytes, rate, overhead):
            clock.spend(overhead + nbytes / rate)

        def enqueue(self, direction, array, buffer, offset=0, stream=None, awake=False):
            is_small = array.nbytes < 1e6
            if direction == "upload":
                self._copied(array.nbytes, 2e10 if is_small else 1.2e10, 7e-6)
            else:
                self._copied(array.nbytes, 1.5e10 if is_small else 0.9e10, 9e-6)

        def fill(self, buffer, nbytes, offset=0, stream=None):
            self._copied(nbytes, 3e12, 3e-6)

        def copy(self, target, source, nbytes, *offsets, **options):
            self._copied(2 * nbytes, 3e12, 3e-6)

        def copy_from_peer(self, target, peer, source, nbytes, *offsets, **options):
            self._copied(2 * nbytes, 3e12, 3e-6)

        def build(self, text, kernel, defines):
            """Nothing: who launches it is not asked."""

        def launch(self, kernel, grid, block, arguments, shared_bytes=0, stream=None):
            clock.spend(2e-6)

        def compiled(self, *_):
            pass

        def probe(self):
            pass

        def event(self, stream=None):
            return clock.now

        def elapsed(self, start, end):
            return end - start

        def synchronize(self, stream=None):
            clock.spend(3e-6)

        def pinned(self, nbytes):
            return np.empty(nbytes, np.uint8).view(_Untouched)

    def replaced(implementation):
        solve = implementation.operation in ("cg", "poisson", "kmeans")
        last = [None, None, 0.0]  # the same problem runs several times, one after another

        def run(where, problem, *rest):
            steps = _of_fields(rest).get("maxiter", 1) if solve else 1
            if last[0] is not problem or last[1] != steps:
                number = len(where) if isinstance(where, (list, tuple)) else 1
                last[:] = problem, steps, seconds_of(implementation, problem, steps, max(number, 1))
            on_host = implementation.kind == "cpu"
            clock.spend(last[2], on_host, launched=solve and not on_host)
            if implementation.kind == "cpu":
                return np.empty(problem.output.shape, problem.output.dtype)
            return None

        def excludes(problem, info):
            return implementation.excludes(problem, {**info, **_INFO, "kind": info["kind"]})

        def work(problem, info):
            return implementation.work(problem, {**info, **_INFO, "kind": info["kind"]})

        return dataclasses.replace(
            implementation, run=run, excludes=excludes, work=work, prepare=None
        )

    def empty(shape, dtype):
        return Array(shape if isinstance(shape, tuple) else (shape,), dtype, fakes["cuda:0"])

    sys.modules["cupy"] = types.SimpleNamespace(empty=empty)
    for entries in registry._implementations.values():
        entries[:] = [replaced(entry) for entry in entries]
    # Else the knots of a few products are no grid, which cannot be fitted.
    FEW_PRODUCTS.update(dict.fromkeys("fdFD", 0))
    fakes = {fake.name: fake for fake in (Fake(0), Fake(1))}
    devices.here.found, devices.here.proved = fakes, set(fakes)
    described = {**cpu.describe(), "name": "fake", "cores": 8, "memory_bytes": 64 << 30}
    cpu.describe = lambda: described
    np.resize = lambda values, shape: np.empty(shape, values.dtype)
    np.random.default_rng = lambda seed=None: _Generator()

    pack = np.ascontiguousarray

    def packed(view, *dtype):
        if getattr(view, "nbytes", 0) < 512 or view.strides != (16,):  # not what is timed
            return pack(view, *dtype)
        clock.spend(view.nbytes / 4e9)
        return view

    np.ascontiguousarray = packed
    subprocess.Popen = _Waiting
    return ["cpu", *fakes]


def measure(quick: bool) -> dict:
    """The links, host and models of this machine by whatever calibration is to be imported."""
    names = install()
    import importlib

    from hetero.calibration import request
    from hetero.ops.convolve2d import direct_cpu

    calibrate = importlib.import_module("hetero.calibration.calibrate")
    for name in ("QUICK", "FULL"):  # no time limits: which knots they cut off depends on the order
        budget = getattr(request, name)
        limits = {f.name: math.inf for f in dataclasses.fields(budget) if f.name in _LIMITS}
        setattr(request, name, dataclasses.replace(budget, **limits))
    direct_cpu.block_width = lambda dtype: 8  # of this machine's vectors
    data = calibrate.measure_machine(quick, names, None)
    return {part: data[part] for part in ("links", "host", "models")}


_LIMITS = ("total", "device_total", "solves", "filters", "patience")


def summary(data: dict) -> dict[str, list]:
    """What tells two results apart, in few numbers: of the models by place and operation, of links.

    Each is the number of models, a digest of their knots, and the mean logarithm of their seconds;
    that one leaves out factors to what the kernels' own plans estimate, which tuning may change.
    """
    groups: dict[str, list] = {}
    for key, model in sorted(data["models"].items()):
        place, operation, *_ = key.split("|")
        groups.setdefault(f"{place} {operation}", []).append((key, model))
    for device, link in sorted(data["links"].items()):
        for direction, kinds in sorted(link.items()):
            groups[f"{device} {direction}"] = sorted(kinds.items())
    for device, cases in sorted(data["host"]["dispatch"].items()):
        groups[f"{device} dispatch"] = [("", {"form": "", "constants": cases})]
    groups["cpu pack"] = [("", data["host"]["pack"])]
    found = {}
    for name, models in groups.items():
        knots, logs = hashlib.sha256(), []
        for key, model in models:
            constants = model["constants"]
            knots.update(json.dumps([key, model["form"], list(_knots(constants))]).encode())
            if model["form"] != "waves":
                logs += [math.log(n) for n in _seconds(constants) if n > 0.0]
        mean = sum(logs) / max(len(logs), 1)
        found[name] = [len(models), knots.hexdigest()[:8], round(mean, 5)]
    return found


def _knots(constants):
    for name, value in sorted(constants.items()) if isinstance(constants, dict) else ():
        if name == "axes":
            yield value
        elif isinstance(value, dict):
            yield from _knots(value)


def _seconds(constants):
    """All numbers but the knots and the size of a block."""
    if isinstance(constants, dict):
        for name, value in sorted(constants.items()):
            if name not in ("axes", "block", "below"):
                yield from _seconds(value)
    elif isinstance(constants, list):
        for value in constants:
            yield from _seconds(value)
    elif constants is not None:
        yield constants


if __name__ == "__main__":
    data = measure(sys.argv[1] == "quick")
    print(json.dumps(summary(data) if "--summary" in sys.argv else data, sort_keys=True, indent=0))
