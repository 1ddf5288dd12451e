"""The ways to do k-means: what each takes, and when it cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hetero.ops.kmeans.operands import EXPECTED, NAME, PLUS_PLUS, host_values
from hetero.runtime import registry
from hetero.runtime.models import Work
from hetero.runtime.problem import Problem
from hetero.runtime.registry import Arguments

if TYPE_CHECKING:
    from hetero.devices.base import Device
    from hetero.ops.kmeans.fit import Outcome


def _work(problem: Problem, info: dict[str, Any]) -> Work:
    """One iteration: the distances of n rows from k centroids, and two passes over X.

    Choosing seeds by k-means++ takes the distances of 2 + log k candidates for each of k seeds.
    """
    n, d, k = problem.dims
    how, starts, maxiter = problem.options
    iterations = min(maxiter, EXPECTED) + 1
    if how == PLUS_PLUS:
        iterations += 2 + int(np.log(k))
    moved = 2.0 * n * d * np.dtype(problem.dtype).itemsize
    return Work((n, d, k), 2.0 * n * d * k, moved, starts * iterations)


def _run_blas(devices: tuple[Device, ...], problem: Problem, arguments: Arguments) -> Outcome:
    from hetero.ops.kmeans.fit import fit
    from hetero.ops.kmeans.lloyd_cpu import BlasRows

    X, weights = _on_host(arguments)
    outcome, centroids = fit(BlasRows(X, weights), arguments.options, problem.dims[2])
    arguments.output[...] = centroids
    return outcome


def _on_host(arguments: Arguments) -> tuple[Any, np.ndarray | None]:
    """X and its weights in the dtype that is computed in, X by rows without gaps."""
    inputs, _, asked = arguments
    if not inputs:
        return asked.matrix, asked.weights
    X = host_values(inputs[0])
    return X, (np.ascontiguousarray(inputs[1], X.dtype) if len(inputs) > 1 else None)


registry.register(
    registry.Implementation(
        NAME, "blas", "cpu", registry.no_obstacle, _work, _run_blas, uses=("blas", "numpy")
    )
)
