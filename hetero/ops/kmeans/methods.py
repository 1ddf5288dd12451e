"""The ways to do k-means: what each takes, and when it cannot."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero import registry
from hetero.errors import DeviceMemoryError
from hetero.host import loops
from hetero.imports import load
from hetero.moving import failures
from hetero.ops.kmeans.operands import (
    EXPECTED,
    NAME,
    PLUS_PLUS,
    SEEDED,
    SPARSE,
    host_values,
    trials,
)
from hetero.registry import Arguments
from hetero.registry.models import Work
from hetero.registry.problem import Problem

if TYPE_CHECKING:
    from hetero.devices.base import Device
    from hetero.ops.kmeans.fit import Outcome, Rows

_LOOPS, _PLAIN = "hetero.ops.kmeans.compiled_cpu", "hetero.ops.kmeans.cpu"
CLUSTERS = loops.register(loops.Family("clusters", f"{_LOOPS}:compile_clusters"))
_LEAST_SHARED = 1 << 12  # rows, of which several devices have enough for each
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
        iterations += trials(k)
    moved = 2.0 * n * d * np.dtype(problem.dtype).itemsize
    flops, repeat = 2.0 * n * d * k, starts * iterations
    return Work((n, d, k), flops, moved, repeat, calls=starts, terms=_TERMS)


# -- Runs ------------------------------------------------------------------------------------------


def _on_cpu(module: str, name: str) -> Callable[..., Outcome]:
    """``run`` on the CPU, by a module's `Rows`."""

    def run(devices: tuple[()], problem: Problem, arguments: Arguments) -> Outcome:
        (X, weights), asked = _on_host(arguments), arguments.options
        # Loops that only label rows have BLAS's one thread where they need it.
        alone = asked.given is None or module == _PLAIN
        with load("hetero.host.cpu").one_thread() if alone else contextlib.nullcontext():
            return _fitted(getattr(load(module), name)(X, weights, asked.given), problem, arguments)

    return run


def _on_device(devices: tuple[Device, ...], problem: Problem, arguments: Arguments) -> Outcome:
    """``run`` on a device; on several, and on one that has no room, of rows on the host.

    Where a device has less room for these than it should, the fit begins anew with half of it.
    """
    asked, one = arguments.options, devices[0]
    given, counted = asked.given, asked.label_tol > 0.0
    if not isinstance(arguments.output, np.ndarray):
        how = {"given": given, "counted": counted, "seeded": problem.layout == SEEDED}
        X, weights = (*arguments.inputs, None)[:2]
        kind = load("hetero.ops.kmeans.device").DeviceRows
        return _fitted(kind(one, problem, X, weights, asked.labels, **how), problem, arguments, one)
    ranges, drawn = load("hetero.ops.kmeans.ranges"), asked.random and asked.random.get_state()
    (X, weights), portion = _on_host(arguments), ranges.SHARE
    while True:
        try:
            rows = ranges.RangeRows(devices, problem, X, weights, given, counted, portion)
            return _fitted(rows, problem, arguments)
        except DeviceMemoryError as error:
            if portion < ranges.LEAST:
                raise
            failures.release(error)
        rows = None
        for device in devices:
            with device.active():
                device.trim()
        if drawn:
            asked.random.set_state(drawn)
        portion /= 2


def _fitted(rows: Rows, problem: Problem, arguments: Arguments, device: Any = None) -> Outcome:
    """The outcome of a fit of these rows; its centroids go to the output, on a device if given."""
    outcome, centroids = load("hetero.ops.kmeans.fit").fit(rows, arguments.options, problem.dims[2])
    if device is None:
        arguments.output[...] = centroids
    else:
        device.upload(centroids, arguments.output)
    return outcome


def _on_host(arguments: Arguments) -> tuple[Any, np.ndarray | None]:
    """X and its weights in the dtype that is computed in, X by rows without gaps."""
    inputs, _, asked = arguments
    if not inputs:
        return asked.matrix, asked.weights
    X = host_values(inputs[0])
    return X, (np.ascontiguousarray(inputs[1], X.dtype) if len(inputs) > 1 else None)


# -- Rows of the registry --------------------------------------------------------------------------


def _dense_alone(problem: Problem, info: dict[str, Any]) -> str | None:
    return "does not apply: it is for dense rows" if problem.layout == SPARSE else None


def _loops(problem: Problem) -> tuple[str, ...]:
    return (CLUSTERS.of(problem.dtype),)


def _plain_obstacle(problem: Problem, info: dict[str, Any]) -> str | None:
    """Sparse rows are NumPy's and SciPy's in any case."""
    if problem.layout == SPARSE or registry.missing(_loops(problem), info):
        return None
    return registry.Unasked("is used only while 'lloyd' is compiled")


_method = functools.partial(registry.register_method, operation=NAME, work=_work)
_looped, _plain = _on_cpu(_LOOPS, "CompiledRows"), _on_cpu(_PLAIN, "NumpyRows")
_method(method="lloyd", kinds=("cpu",), excludes=_dense_alone, run=_looped, loops=_loops)
_method(method="products", kinds=("cpu",), excludes=_plain_obstacle, run=_plain)
_method(
    method="lloyd",
    kinds=registry.PORTABLE,
    excludes=_dense_alone,
    run=_on_device,
    blocks=registry.WHEN_SHORT,
    shared=lambda problem: problem.layout != SPARSE and problem.dims[0] >= _LEAST_SHARED,
)
