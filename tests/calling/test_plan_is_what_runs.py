"""What `hetero.plan` prints is what a call runs: random calls of every operation.

Rows of the registry write down where they run; those on devices compute nothing, and neither do
solvers. Devices are fakes whose memory is the host's, and whatever OpenCL device is here.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import random

import fakes
import numpy as np
import pytest
from convolutions import outcome
from layouts import LAYOUTS
from scipy import sparse

import hetero
import hetero.ops
from hetero import profile, registry
from hetero.calling import planner
from hetero.devices.cuda import libraries
from hetero.errors import HeteroError
from hetero.evaluation import calls
from hetero.ops.convolve2d import problem_of
from hetero.ops.kmeans import fit
from hetero.ops.solvers.systems import CONVERGED, Outcome
from hetero.pricing import places
from hetero.profile import inventory

CPU_ALONE = "cpu"  # what comes down to NumPy's or SciPy's own function runs no row
DTYPES = ("float32", "float64", "int32", "uint8", "complex64", "complex128", "longdouble", "object")


@pytest.fixture
def machine(monkeypatch):
    """Two equal fake devices beside the others; the record of all that runs."""
    devices = fakes.install(monkeypatch, 2)
    info = {**devices[0].describe(), "arch": "sm_90", "shared_limit": 227 << 10}
    for device in devices:
        monkeypatch.setattr(device, "describe", lambda: info)
    record = []  # (device, method) of each row that ran

    def recorded(row):
        def run(used, problem, arguments, *others):
            names = [device.name for device in used or ()]
            place = names[0] if len(names) == 1 else f"{row.kind}:*" if names else CPU_ALONE
            record.append((place, row.method))
            if row.operation in ("cg", "poisson"):
                return Outcome(CONVERGED, 1, 1.0, 1.0)
            if not names:
                return row.run(used, problem, arguments, *others)
            if row.operation == "kmeans":
                return fit.Run(1.0, 1, True), np.zeros(problem.dims[0], np.int32)
            if isinstance(arguments.output, np.ndarray):
                arguments.output[...] = 0
            else:
                used[0].fill(arguments.output, problem.output.nbytes)
            return None

        return dataclasses.replace(row, run=run, prepare=None)

    for operation in registry.operations():
        fakes.change_rows(monkeypatch, operation.name, recorded)
    scipys = (CPU_ALONE, "scipy's function")
    fakes.noting(monkeypatch, hetero.ops.convolve2d, "scipys", lambda *_: record.append(scipys))
    monkeypatch.setattr(libraries, "cufft_obstacle", lambda: None)
    inventory.changed()
    return record, devices, info


# -- Random calls ----------------------------------------------------------------------------------


def misaligned(x):
    if x.dtype.hasobject:
        return x
    return np.ndarray(x.shape, x.dtype, bytearray(b"1" + x.tobytes()), offset=1)


def varied(draw, x, devices):
    """The array in another dtype or layout, without rows, or on a device."""
    if draw.random() < 0.3:
        dtype = np.dtype(draw.choice(DTYPES))
        x = (9 * x * (1 - 1j if dtype.kind == "c" else 1)).astype(dtype)
    if draw.random() < 0.03:
        x = x[:0]
    if x.size and draw.random() < 0.5:
        way = draw.choice([*LAYOUTS.values(), misaligned])
        x = way(x) if x.ndim > 1 else way(x[None])[0]
    if x.dtype.kind in "fiuc" and x.dtype.char not in "gG" and draw.random() < 0.25:
        return draw.choice((fakes.Cupy, fakes.Array)).of(x, draw.choice(devices))
    return x


OTHERS = {
    "convolve2d": [{"fillvalue": 1.5}, {"fillvalue": 2 - 1j}],
    "cg": [{"M": "jacobi"}, {"rtol": 1e-8, "maxiter": 20}],
    "poisson": [{"rtol": 0.0, "maxiter": 50}, {"rtol": 1e-6}],
    "kmeans": [{"n_init": 2}, {"init": "random"}],
}


def drawn(draw, operation, devices, largest=120):
    """A call as `hetero verify` draws it, of arrays that are varied, with other options."""
    trial = calls.draw(operation, draw, "host", largest)
    operands = list(calls.Arrays("host").of(trial))
    if draw.random() < 0.2 and operation.name in ("matvec", "matmul", "convolve2d"):
        operands[0] = np.stack([operands[0]] * 3)
    operands = [varied(draw, x, devices) if isinstance(x, np.ndarray) else x for x in operands]
    if draw.random() < 0.1 and operation.name == "kmeans" and isinstance(operands[0], np.ndarray):
        operands[0] = sparse.csr_matrix(abs(operands[0].astype(float)))
    if draw.random() < 0.1 and operation.name == "convolve2d":
        operands.reverse()
    return operands, {**trial.options, **draw.choice([{}, *OTHERS.get(operation.name, [])])}


def placement(draw, operation):
    """Mostly none; else a device, a method, or both."""
    if draw.random() < 0.5:
        return {}
    methods = sorted({row.method for row in registry.lookup(operation)})
    devices = [None, "cpu", "cuda", "cuda:0", "cuda:1", "cuda:*", *inventory.devices()]
    return {"device": draw.choice(devices), "method": draw.choice([None, None, *methods])}


# -- What they run ---------------------------------------------------------------------------------


def compare(record, operation, operands, options, placed):
    """Check one call, new and remembered; gives the plan, or None where both refuse it."""
    plan = outcome(hetero.plan, operation.name, *operands, **options, **placed)
    expected = [] if isinstance(plan, type) else list(plan.leaves())
    given = f"{operation.name} {[getattr(x, 'shape', x) for x in operands]} {options} {placed}"
    for _ in range(2):
        record.clear()
        result = outcome(operation.call, *operands, **options, **placed)
        if isinstance(plan, type):
            assert result is plan, f"{given}\n{plan}\n{result}"
            assert issubclass(plan, (HeteroError, ValueError, TypeError)), f"{given}\n{plan}"
            continue
        # SciPy's function refuses some dtypes itself.
        assert not isinstance(result, type) or record, f"{given}\n{plan}\n{result}"
        printed = [(leaf.chosen.device, leaf.chosen.method) for leaf in expected]
        assert agree(list(record), printed, plan), f"{given}\n{plan}\nran {list(record)}"
    return None if isinstance(plan, type) else plan


def agree(ran, printed, plan):
    if not ran:  # nothing to compute, or NumPy's own function
        return 0 in plan.problem.output.shape or set(printed) == {(CPU_ALONE, "blas")}
    if ran == [(CPU_ALONE, "scipy's function")]:
        return printed in ([(CPU_ALONE, "scipy")], [(CPU_ALONE, "direct")])
    return ran == printed


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("constants", ["conservative", "h200"])
@pytest.mark.parametrize("seed", range(3))
def test_random_calls(machine, constants, seed):
    record, devices, _ = machine
    profile.set_current(profile.shipped(constants))
    draw = random.Random(f"{constants} {seed}")
    ran = []
    for operation in itertools.islice(itertools.cycle(registry.operations()), 80):
        operands, options = drawn(draw, operation, devices)
        shapes = [x.shape for x in operands if hasattr(x, "shape")]
        # Without an element NumPy's own function answers, wherever it was asked for.
        placed = {} if 0 in sum(shapes, ()) else placement(draw, operation.name)
        ran.append(compare(record, operation, operands, options, placed))
    plans = [plan for plan in ran if plan is not None]
    assert len(plans) > 40
    assert {plan.chosen.device.partition(":")[0] for plan in plans} >= {"cpu", "cuda"}


def test_random_calls_in_bands(machine, monkeypatch):
    """Images larger than a device."""
    record, devices, info = machine
    info["memory_bytes"] = 20_000
    monkeypatch.setattr(places, "_LEAST_MOVED", 0)
    inventory.changed()
    profile.set_current(profile.shipped("h200"))
    draw, operation = random.Random(3), registry.operation("convolve2d")
    plans = []
    for number in range(100):
        operands, options = drawn(draw, operation, devices)
        if number % 2:
            shapes = (draw.randrange(30, 90), draw.randrange(30, 90)), (draw.randrange(1, 9), 4)
            dtypes = draw.choice(DTYPES[:2] + DTYPES[4:6]), draw.choice(DTYPES[:2])
            operands = [np.ones(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
        placed = {"device": "cuda:0"} if draw.random() < 0.7 else {}
        plans.append(compare(record, operation, operands, options, placed))
    assert sum("streamed" in str(plan and plan.chosen.method) for plan in plans) > 10


def test_small_convolutions(machine):
    """SciPy's loop, whatever prices say of another method that seldom is as fast."""
    record, *_ = machine
    data = copy.deepcopy(profile.shipped("conservative").data)
    data["models"]["cpu|convolve2d|fft|float64|*"]["constants"]["overhead"] = 5e-6
    profile.set_current(profile.Profile(data))
    operands = [np.ones((8, 8)), np.ones((3, 3))]
    assert planner.plan(problem_of(*operands)).chosen.method == "fft"
    plan = compare(record, registry.operation("convolve2d"), operands, {}, {})
    assert plan.chosen.method == "direct"
