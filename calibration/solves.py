"""Solves: set-up and one step of each method, measured over the number of unknowns.

A quick calibration measures how fast memory is copied and estimates all from that: the methods
differ by more than such an estimate errs, and compiling the CPU's loops alone would take too long.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hetero.arrays import spec
from hetero.calibration import fit
from hetero.calibration.efforts import QUICK, Effort
from hetero.calibration.measure import measure
from hetero.devices.base import Device
from hetero.ops import cg as conjugate_gradient
from hetero.ops import poisson
from hetero.ops.linear_systems.solving import Solve, result_operand
from hetero.runtime.models import Work, bind
from hetero.runtime.problem import DEVICE_DTYPES, Problem
from hetero.runtime.registry import Arguments, Implementation, lookup

OPERATIONS = ("cg", "poisson")
_LARGEST = {"cpu": 2**20, "cuda": 2**24, "opencl": 2**16}
_LARGEST_CSR = {"cpu": 2**18, "cuda": 2**20, "opencl": 2**14}
_LARGEST_DENSE = {"cpu": 2**11, "cuda": 2**12, "opencl": 2**9}
_ROW_LENGTHS = (5, 27)
_SMALLEST = 2**8
_CYCLES = (1, 4)  # of multigrid: not so many that float32 meets rounding
FAMILIES = ("multigrid", "csr", "stencil2", "jacobi")  # layouts and methods compiled apart
_MATVEC = (("blas", "C"), ("tiled", "C aligned"))
_LONGER = (4096, 8192, 16384, 32768)
_POINTS = 2**24  # point updates that are timed at least
_LEAST_STEP = 0.1  # of a solve's time per step: what the steps take at least


@dataclass(frozen=True, slots=True)
class Subject:
    """An implementation with a dtype and a layout, and how to make its requests.

    Attributes
    ----------
    axes : list of list of int
        Unknowns; for CSR also entries in a row.
    problem, request : callable
        Of the dimensions.
    steps : tuple of int
        Numbers of steps that are timed, the second at least: their difference tells one step from
        the set-up. Equal where a solve is one step.
    """

    implementation: Implementation
    dtype: str
    layout: str
    axes: list[list[int]]
    problem: Callable[..., Problem]
    arguments: Callable[..., Arguments]
    steps: tuple[int, int]


def estimate(device: Device | None) -> dict[str, Any]:
    """A "roofline" model for every solve: bytes at copy speed, flops for free."""
    nbytes = 1 << 26
    if device is None:
        source = np.ones(nbytes // 8)
        target = np.empty_like(source)
        seconds = measure(lambda: np.copyto(target, source), budget=0.1).seconds
        overhead = 2e-5
    else:
        with device.active():
            (a, first), (b, second) = (device.allocate(nbytes) for _ in range(2))
            device.upload(np.ones(nbytes // 8), a)

            def copy() -> None:
                device.copy(b, a, nbytes)
                device.synchronize()

            seconds = measure(copy, budget=0.1).seconds
            del first, second
        overhead = 4e-4
    constants = {
        "overhead": overhead,
        "flops_per_second": 1e15,
        "bytes_per_second": 2 * nbytes / seconds,
    }
    samples = {"copied_bytes": nbytes, "copy_seconds": seconds}
    return {"form": "roofline", "constants": constants, "samples": samples}


def subjects(implementation: Implementation, info: dict[str, Any]) -> Iterator[Subject]:
    """What to measure for one implementation."""
    kind = implementation.kind
    sizes = _sizes(_LARGEST[kind])
    for dtype in DEVICE_DTYPES:
        if implementation.operation == "poisson":
            if implementation.method == "cg":
                continue  # the same code as for the operation of that name; see `same_as_cg`
            multigrid = implementation.method == "multigrid"
            for ndim in (2, 3):
                yield Subject(
                    implementation,
                    dtype,
                    f"{ndim}d",
                    [sizes[multigrid:]],
                    _poisson_problem(ndim, dtype),
                    _poisson_arguments(ndim, dtype, implementation.method),
                    {"dst": (1, 1), "multigrid": _CYCLES}.get(implementation.method, (8, 40)),
                )
            continue
        for layout in ("dense", "csr", "stencil2", "stencil3", "stencil2-multigrid"):
            axes = [sizes]
            if layout == "dense":
                axes = [_sizes(_LARGEST_DENSE[kind], 2)]
            if layout == "csr":
                axes = [_sizes(_LARGEST_CSR[kind]), list(_ROW_LENGTHS)]
            if layout.endswith("multigrid"):
                axes = [sizes[1:]]
            problem = _cg_problem(layout, dtype)
            if implementation.excludes(problem(*(axis[0] for axis in axes)), info) is None:
                steps = _CYCLES if layout.endswith("multigrid") else (8, 40)
                yield Subject(
                    implementation,
                    dtype,
                    layout,
                    axes,
                    problem,
                    _cg_arguments(layout, dtype),
                    steps,
                )


def compile_family(family: str, dtype: str) -> None:
    """Compile the loops of one layout or method, by using them on the smallest problem."""
    for operation in OPERATIONS:
        for implementation in lookup(operation):
            if implementation.kind != "cpu":
                continue
            for subject in subjects(implementation, {}):
                by_layout = operation == "cg"
                name = subject.layout.split("-")[-1] if by_layout else implementation.method
                if (name, subject.dtype) == (family, dtype):
                    _seconds(subject, _smallest(subject), (1,), None, QUICK)


def longer_dense(models: dict[str, Any], place: str) -> None:
    """Carry dense cg on to larger matrices, at the pace of the matrix-vector product.

    Matrices that no longer fit a cache would take long to fill, and matvec knows them.
    """
    for key, model in models.items():
        device, operation, _, dtype, layout = key.split("|")
        if (device, operation, layout) != (place, "cg", "dense"):
            continue
        found = [f"{place}|matvec|{m}|{dtype}|{at}" for m, at in _MATVEC]
        matvec = next((models[name] for name in found if name in models), None)
        if matvec is None:
            continue
        cost = bind(matvec)
        for part in ("setup", "step"):
            (axis,), seconds = (model["constants"][part][name] for name in ("axes", "seconds"))
            last = sum(cost(Work((axis[-1],) * 2, 0.0, 0.0)))
            base = seconds[-1]
            for n in _LONGER:
                if n > axis[-1]:
                    pace = sum(cost(Work((n, n), 0.0, 0.0))) / last
                    axis.append(n)
                    seconds.append(float(f"{base * pace:.5g}"))


def same_as_cg(models: dict[str, Any], place: str) -> dict[str, Any]:
    """The models of poisson's method "cg": those of the operation cg on stencils."""
    found = {}
    for key, model in models.items():
        device, operation, _, dtype, layout = key.split("|")
        if (device, operation) == (place, "cg") and layout in ("stencil2", "stencil3"):
            found[f"{place}|poisson|cg|{dtype}|{layout[-1]}d"] = model
    return found


def _smallest(subject: Subject) -> tuple[int, ...]:
    return tuple(axis[0] for axis in subject.axes)


def _outside_in(sizes: Sequence[int]) -> list[int]:
    """The first, the last, the middle one, then what lies between in the same manner."""
    order = [0, len(sizes) - 1]
    parts = [(0, len(sizes) - 1)]
    for low, high in parts:  # grows
        if high - low > 1:
            middle = (low + high) // 2
            order.append(middle)
            parts += [(low, middle), (middle, high)]
    return [sizes[i] for i in dict.fromkeys(order)]


def _sizes(largest: int, ratio: int = 4) -> list[int]:
    sizes = [_SMALLEST]
    while sizes[-1] * ratio <= largest:
        sizes.append(sizes[-1] * ratio)
    return sizes


def measure_subject(
    subject: Subject, used: list[Device] | None, effort: Effort, seconds_left: float
) -> dict[str, Any]:
    """A "solve" model: of the smallest size, the largest, and those between that time is left for.

    Parameters
    ----------
    subject : Subject
    used : list of Device or None
        None: the CPU. Several share the work, from host to host, so that moving counts as set-up.
    effort : Effort
    seconds_left : float
    """
    _seconds(subject, _smallest(subject), (1,), used, effort)  # compiles
    end = time.perf_counter() + seconds_left
    setup: dict[tuple[int, ...], float] = {}
    step: dict[tuple[int, ...], float] = {}
    few, many = subject.steps
    sizes, *others = subject.axes
    done: list[int] = []
    for n in _outside_in(sizes):
        if len(done) >= 2 and time.perf_counter() > end:
            break
        if few != many and few > 2:  # so many that they stand out from the set-up
            # and not so many that the residual of a float32 solve gets subnormal, which is slow.
            many = few + min(max(_POINTS // n, 32), 512, round(8 * n ** (1 / 3)))
        for rest in fit.grid(others):
            dims = (n, *rest)
            if few == many:
                step[dims], setup[dims] = _seconds(subject, dims, (few,), used, effort)[0], 1e-7
                continue
            less, more = _seconds(subject, dims, (few, many), used, effort)
            step[dims] = max((more - less) / (many - few), _LEAST_STEP * more / many)
            setup[dims] = max(less - few * step[dims], 1e-7)
        done.append(n)
    axes = [sorted(done), *others]
    model = {
        "form": "solve",
        "constants": {
            part: {
                "axes": [list(axis) for axis in axes],
                "seconds": [float(f"{values[dims]:.5g}") for dims in fit.grid(axes)],
            }
            for part, values in (("setup", setup), ("step", step))
        },
        "samples": {"steps": list(subject.steps)},
    }
    bind(model)
    return model


def _seconds(
    subject: Subject,
    dims: tuple[int, ...],
    counts: tuple[int, ...],
    used: list[Device] | None,
    effort: Effort,
) -> list[float]:
    """Seconds of solves of so many steps, operands where they run.

    The fastest of several: what else the machine does only adds, and spoils the difference.
    """
    problem = subject.problem(*dims)
    arguments = subject.arguments(*dims, used=tuple(used or ()))
    (b,), x, solve = arguments
    run = subject.implementation.run
    assert run is not None
    owners = []
    if used is not None and len(used) == 1:
        device = used[0]
        buffers = [device.allocate(b.nbytes) for _ in range(2)]
        owners = [owner for _, owner in buffers]
        device.upload(b, buffers[0][0])
        x = buffers[1][0]
        arguments = arguments._replace(inputs=(buffers[0][0],), output=x)

    def call(count: int) -> None:
        if owners:
            device.fill(x, b.nbytes)
        else:
            x[...] = 0.0
        limited = arguments._replace(options=solve._replace(maxiter=count))
        run(tuple(used or ()), problem, limited)
        if owners:
            device.synchronize()

    time.sleep(0.002)  # for which threads may go on spinning after what ran before
    return [
        min(measure(partial(call, count), budget=3 * effort.budget, least=3, most=9).samples)
        for count in counts
    ]


def _grid(n: int, ndim: int) -> tuple[int, ...]:
    """The most even grid of about n points; an extent is no power of two less one."""
    side = round(n ** (1.0 / ndim))
    return (side,) * ndim


def _right_hand_side(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return (np.random.default_rng(0).random(shape) - 0.5).astype(dtype)


def _poisson_problem(ndim: int, dtype: str) -> Callable[[int], Problem]:
    return lambda n: poisson.problem(spec(_grid(n, ndim), dtype), rtol=0.0)


def _poisson_arguments(ndim: int, dtype: str, method: str) -> Callable[..., Arguments]:
    """Only "dst" has a tolerance: without one it would refine. Its extents are those it likes."""
    direct = method == "dst"

    def arguments(n: int, used: tuple[Device, ...] = ()) -> Arguments:
        from hetero.ops.linear_systems.types import Stencil

        shape = tuple(side - direct for side in _grid(n, ndim))
        f = _right_hand_side(shape, dtype)
        solve = Solve(Stencil(shape, (1.0,) * ndim), 1e-8 * direct, 0.0, 1)
        return Arguments((f,), np.zeros_like(f), solve)

    return arguments


def _cg_problem(layout: str, dtype: str) -> Callable[..., Problem]:
    def problem(n: int, row_length: int = 5) -> Problem:
        kind = layout.partition("-")[0]
        entries = {"dense": n * n, "csr": n * row_length}.get(kind, 5 * n)
        place = result_operand((n,), np.dtype(dtype), "host")
        return Problem("cg", (n, entries), dtype, (place,), place, layout=layout, iterations=1)

    return problem


def _cg_arguments(layout: str, dtype: str) -> Callable[..., Arguments]:
    """A system of the layout; with a random right-hand side no solve ends before its last step."""

    def arguments(n: int, row_length: int = 5, used: tuple[Device, ...] = ()) -> Arguments:
        from hetero.ops.linear_systems import operators

        kind, _, preconditioner = layout.partition("-")
        if kind == "dense":
            matrix = _right_hand_side((n, n), dtype)
            matrix += matrix.T
            matrix[np.diag_indices(n)] += 0.9 * math.sqrt(n)
        elif kind == "csr":
            matrix = _banded(n, row_length, dtype)
        else:
            matrix = operators.Poisson(_grid(n, int(kind[-1])), dtype=dtype)
        b = _right_hand_side(matrix.shape[:1], dtype)
        system = conjugate_gradient.System(matrix, np.dtype(dtype), preconditioner or None)
        whole, inverse = system.on(used)
        return Arguments((b,), np.zeros_like(b), Solve(whole, 0.0, 0.0, 1, inverse))

    return arguments


def _banded(n: int, row_length: int, dtype: str) -> Any:
    """A diagonally dominant matrix: ``row_length`` diagonals over about sqrt(n), wrapped around."""
    from scipy.sparse import csr_array

    half = row_length // 2
    offsets = np.unique(np.linspace(1, max(math.isqrt(n), half), half).astype(int))
    offsets = np.concatenate([-offsets[::-1], [0], offsets])
    columns = np.sort((np.arange(n)[:, None] + offsets) % n, axis=1).astype(np.int32)
    values = np.full(columns.size, -1.0, dtype)
    values[columns.ravel() == np.repeat(np.arange(n), len(offsets))] = len(offsets) - 0.99
    starts = np.arange(n + 1, dtype=np.int32) * len(offsets)
    return csr_array((values, columns.ravel(), starts), shape=(n, n))
