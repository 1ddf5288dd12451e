"""The ways to do k-means: what each takes, and when it cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero import registry
from hetero.host import loops
from hetero.imports import load
from hetero.ops.kmeans.operands import (
    EXPECTED,
    NAME,
    PLUS_PLUS,
    SPARSE,
    check_finite,
    host_values,
)
from hetero.registry import Arguments
from hetero.registry.models import Work
from hetero.registry.problem import Problem

if TYPE_CHECKING:
    from hetero.devices.base import Device
    from hetero.ops.kmeans.fit import Outcome

_LOOPS = "hetero.ops.kmeans.compiled_cpu"
CLUSTERS = loops.register(loops.Family("clusters", 6.0, f"{_LOOPS}:compile_clusters"))
BOUNDS = loops.register(loops.Family("bounds", 5.0, f"{_LOOPS}:compile_bounds"))
_LEAST_SHARED = 1 << 12  # rows
# What grows with n, d, k: launches and round trips with none, labels, columns' sums, round trips of
# seeds; rows that are read, distances that are compared, centroids that are made; products.
_TERMS = ((), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2))


def _work(problem: Problem, info: dict[str, Any]) -> Work:
    """One iteration: the distances of n rows from k centroids, and two passes over X.

    Choosing seeds by k-means++ takes the distances of 2 + log k candidates for each of k seeds, and
    k times what that takes however few the rows: set-up, which every start pays.
    """
    n, d, k = problem.dims
    how, starts, maxiter = problem.options
    iterations = min(maxiter, EXPECTED) + 1
    if how == PLUS_PLUS:
        iterations += seeding_iterations(k)
    moved = 2.0 * n * d * np.dtype(problem.dtype).itemsize
    flops, repeat = 2.0 * n * d * k, starts * iterations
    return Work((n, d, k), flops, moved, repeat, calls=starts, terms=_TERMS)


def seeding_iterations(k: int) -> int:
    """How many iterations compute as many distances as k-means++ does."""
    return 2 + int(np.log(k))


# -- Runs ------------------------------------------------------------------------------------------


def on_cpu(backend: Callable[..., Any]) -> Callable[..., Outcome]:
    """``run`` on the CPU, by what ``backend(X, weights, given)`` gives."""

    def run(devices: tuple[()], problem: Problem, arguments: Arguments) -> Outcome:
        fit = load("hetero.ops.kmeans.fit").fit
        X, weights = _on_host(arguments)
        given = arguments.options.given
        with np.errstate(invalid="ignore", over="ignore"):  # of rows that are refused for it
            rows = backend(X, weights, given)
        if arguments.inputs:
            _check(X, rows.mean if given is None else None)
        outcome, arguments.output[...] = fit(rows, arguments.options, problem.dims[2])
        return outcome

    return run


def _numpy(X: Any, weights: np.ndarray | None, given: np.ndarray | None) -> Any:
    NumpyBackend = load("hetero.ops.kmeans.cpu").NumpyBackend
    return NumpyBackend(X, weights, given)


def _bounded(X: np.ndarray, weights: np.ndarray | None, given: np.ndarray | None) -> Any:
    BoundedBackend = load("hetero.ops.kmeans.compiled_cpu").BoundedBackend
    return BoundedBackend(X, weights, given)


def _on_device(devices: tuple[Device, ...], problem: Problem, arguments: Arguments) -> Outcome:
    """``run`` on a device; on several, and on one that has no room, of rows on the host."""
    fit = load("hetero.ops.kmeans.fit").fit
    if isinstance(arguments.output, np.ndarray):
        rows = _in_ranges(devices, problem, arguments)
        outcome, arguments.output[...] = fit(rows, arguments.options, problem.dims[2])
        return outcome
    DeviceBackend = load("hetero.ops.kmeans.device").DeviceBackend
    rows = DeviceBackend(devices[0], problem, arguments)
    outcome, centroids = fit(rows, arguments.options, problem.dims[2])
    devices[0].upload(centroids, arguments.output)
    return outcome


def _in_ranges(devices: tuple[Device, ...], problem: Problem, arguments: Arguments) -> Any:
    """The backend of rows on the host, for several devices or for one without room."""
    ranges = load("hetero.ops.kmeans.ranges")
    X, weights = _on_host(arguments)
    given, counted = arguments.options.given, arguments.options.label_tol > 0
    backend = ranges.RangeBackend(devices, ranges.HostRows(problem, X, weights, given, counted))
    _check(X, backend.mean_variance() if given is None else None)
    return backend


def _on_host(arguments: Arguments) -> tuple[Any, np.ndarray | None]:
    """X and its weights in the dtype that is computed in, X by rows without gaps."""
    inputs, _, asked = arguments
    if not inputs:
        return asked.matrix, asked.weights
    X = host_values(inputs[0])
    return X, (np.ascontiguousarray(inputs[1], X.dtype) if len(inputs) > 1 else None)


def _check(X: np.ndarray, known: Any) -> None:
    """ValueError if X holds NaN or infinity; ``known`` is a sum or mean of all of it, if there is
    one: where that is finite X need not be looked through, which takes as long as copying it."""
    if known is None or not np.isfinite(known).all():
        check_finite(X)


# -- Rows of the registry --------------------------------------------------------------------------


def _dense_alone(problem: Problem, info: dict[str, Any]) -> str | None:
    return "does not apply: it is for dense rows" if problem.layout == SPARSE else None


def _shared(problem: Problem) -> bool:
    """Whether several devices have rows enough for each."""
    return problem.layout != SPARSE and problem.dims[0] >= _LEAST_SHARED


def _loops(problem: Problem) -> tuple[str, ...]:
    return CLUSTERS.of(problem.dtype), BOUNDS.of(problem.dtype)


def _plain_obstacle(problem: Problem, info: dict[str, Any]) -> str | None:
    """Sparse rows are NumPy's and SciPy's in any case."""
    if problem.layout == SPARSE or registry.missing(_loops(problem), info):
        return None
    return registry.Unasked("is used only while 'lloyd' is compiled")


PLAIN = "products"  # the method that needs NumPy and SciPy alone
registry.register_method(
    operation=NAME,
    method="lloyd",
    kinds=("cpu",),
    excludes=_dense_alone,
    work=_work,
    run=on_cpu(_bounded),
    loops=_loops,
)
registry.register_method(
    operation=NAME,
    method=PLAIN,
    kinds=("cpu",),
    excludes=_plain_obstacle,
    work=_work,
    run=on_cpu(_numpy),
)
registry.register_method(
    operation=NAME,
    method="lloyd",
    kinds=registry.PORTABLE,
    excludes=_dense_alone,
    work=_work,
    run=registry.HostRun(_on_device, registry.WHEN_SHORT),
    shared=_shared,
)
