"""k-means clustering: the public function, and the ways to do it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero import registry
from hetero.arrays import HOST, Array, describe, describe_used, is_device_array
from hetero.calling import planner
from hetero.errors import outside
from hetero.host import loops
from hetero.imports import load
from hetero.moving import transfer
from hetero.ops.kmeans import operands
from hetero.ops.kmeans.operands import NAME, from_dims, problem
from hetero.ops.solvers.systems import like
from hetero.pricing.plan import CPU, Plan
from hetero.profile import inventory
from hetero.registry import Arguments, Problem
from hetero.registry.models import Work

if TYPE_CHECKING:
    from hetero.devices.base import Device
    from hetero.ops.kmeans.fit import Run

__all__ = ["cluster", "from_dims", "kmeans", "problem"]

LOOPS = "hetero.ops.kmeans.compiled_cpu"
CLUSTERS = loops.register("clusters", f"{LOOPS}:compile_clusters")
BOUNDS = loops.register("bounds of clusters", f"{LOOPS}:compile_bounds")
_LEAST_SHARED = 1 << 12  # rows, of which several devices have enough for each
_FEW = 1 << 9  # rows, that NumPy has labelled before a loop begins
_LITTLE = 1 << 22  # products, that the CPU is done with before a device begins
_ONE_START = (
    "Explicit initial center position passed: performing only one init in KMeans instead of "
    "n_init={}."
)
_OVERFLOW = (
    "Squared distances of the rows overflow in {}: labels do not name the nearest centroids. "
    "Scale X."
)
FEW = (
    "Number of distinct clusters ({}) found smaller than n_clusters ({}). Possibly due to "
    "duplicate points in X."
)


def kmeans(
    X: Array,
    n_clusters: int,
    *,
    init: Any = "k-means++",
    n_init: int | str = 1,
    max_iter: int = 300,
    tol: float = 1e-4,
    label_tol: float = 0.0,
    random_state: Any = None,
    sample_weight: Any = None,
    device: str | None = None,
    method: str | None = None,
) -> tuple[Array, Any, dict[str, Any]]:
    """Cluster rows around k centroids by Lloyd's iterations, as `sklearn.cluster.KMeans`.

    Parameters
    ----------
    X : (n, d) array or sparse matrix
        On the host or on a device. float32 and float64 are computed in, all else as float64. A
        sparse matrix (indices of 32 bits) computes on the CPU.
    n_clusters : int
        k, at most n.
    init : {"k-means++", "random"}, (k, d) array or callable
        "k-means++": rows far from each other, the best of 2 + log k candidates each time.
        "random": rows by their weights. A callable gets X less its mean, k and ``random_state=``,
        and gives centroids for those rows.
    n_init : int or "auto"
        Starts, of which the one with the least inertia counts. "auto": 10 for "random" and a
        callable. For an array there is one.
    max_iter : int
        Most iterations of a start. With 0 and an array as ``init`` rows get the labels of those
        centroids, and there may be fewer rows than clusters.
    tol : float
        A start is done when the sum of the centroids' squared shifts is at most ``tol`` times the
        mean variance of X's columns, or as ``label_tol`` says.
    label_tol : float
        A start is done, too, when at most this share of the labels changes in an iteration.
        Default: none.
    random_state : int, numpy.random.RandomState or None
        scikit-learn's numbers are drawn: the same seed gives the same start.
    sample_weight : (n,) array or number, optional
        Weights of the rows, of which one at least is positive.
    device : str, optional
        "cpu", "cuda", "cuda:0", "opencl:0", or "cuda:*" for all GPUs, each with some of the rows.
        Default: where it is fastest.
    method : str, optional
        Default: the fastest; `hetero.plan` names all.

    Returns
    -------
    centroids : (k, d) array
        float32 if X is, else float64; on the device where X lies, of its library.
    labels : (n,) array of int32
        Of each row the number of the nearest centroid; likewise.
    info : dict
        inertia (the sum of weighted squared distances of the rows from their centroids),
        iterations, converged (False: max_iter was reached), device, method, plan.

    Raises
    ------
    ValueError
        For more clusters than rows, NaN or infinity in X, shapes that do not fit, weights of
        which none is positive, and arguments out of range.
    DeviceNotAvailable, MethodNotAvailable
        If ``device`` or ``method`` is not available; the message names what is.

    Warns
    -----
    RuntimeWarning
        Where there are fewer distinct clusters than were asked for, where ``init`` is an array and
        n_init not 1, and where squared distances overflow.

    See Also
    --------
    hetero.plan

    Notes
    -----
    A cluster that loses all rows gets the one that is farthest from its centroid, unless that one
    lies there but for rounding. Labels are always those of the centroids that are given back. If a
    device fails, the CPU makes the fit anew. Rows on the host that a device
    has no room for go there in blocks, where ``device`` names it.

    References
    ----------
    S. P. Lloyd, "Least squares quantization in PCM", IEEE Trans. Inf. Theory 28 (1982), 129-137.
    D. Arthur and S. Vassilvitskii, "k-means++: the advantages of careful seeding", SODA 2007.

    Examples
    --------
    >>> import numpy as np, hetero
    >>> X = np.array([[1.0, 2.0], [1.0, 4.0], [1.0, 0.0], [10.0, 2.0], [10.0, 4.0], [10.0, 0.0]])
    >>> centroids, labels, info = hetero.kmeans(X, 2, random_state=0)
    >>> centroids, labels, info["inertia"]
    (array([[10.,  2.],
           [ 1.,  2.]]), array([1, 1, 1, 0, 0, 0], dtype=int32), 16.0)
    """
    options = {"init": init, "n_init": n_init, "max_iter": max_iter, "tol": tol}
    options |= {"label_tol": label_tol, "random_state": random_state}
    placed = {"device": device, "method": method}
    return cluster(X, n_clusters, **options, sample_weight=sample_weight, **placed)


def cluster(
    X: Any,
    n_clusters: int,
    *,
    sample_weight: Any = None,
    device: str | None = None,
    method: str | None = None,
    report: Callable[[str], None] | None = None,
    few: type[Warning] | None = RuntimeWarning,
    **options: Any,
) -> tuple[Any, Any, dict[str, Any]]:
    """Check the arguments of `kmeans`, plan it and run it; ``options`` are the others.

    With ``max_iter`` 0 rows get labels and nothing else is done. ``report`` gets a line about each
    start; ``few`` is the category of the warning about clusters without rows, None for no warnings
    at all.
    """
    device, method = planner.placement(device, method)
    X = operands.checked_shape(X)
    init, seed = options.pop("init"), options.pop("random_state", None)
    if type(X) is np.ndarray:
        describe_used(X)  # so that devices may hold copies
    asked = problem(X, n_clusters, init=init, sample_weight=sample_weight, **options)
    plan = planner.of_call(asked, device, method)

    execution, Fit = load("hetero.calling.execution"), load("hetero.ops.kmeans.fit").Fit
    (n, d, k), dtype, about = plan.problem.dims, np.dtype(plan.problem.dtype), plan.problem.options
    if about.init == operands.GIVEN:
        init = operands.checked_centroids(operands.on_host(init, dtype), (k, d))
        if options["n_init"] not in (1, "auto") and few:
            text = _ONE_START.format(options["n_init"])
            warnings.warn(text, RuntimeWarning, stacklevel=outside())
    weights = operands.checked_weights(sample_weight, n, dtype)
    if operands.is_sparse(X):
        X = X.astype(dtype, copy=False)
        operands.check_finite(X.data)
        arrays, apart = (), {"matrix": X, "weights": weights}
    else:
        X = X if is_device_array(X) else operands.host_values(X)
        arrays, apart = (X,) if weights is None else (X, weights), {}
    random = operands.checked_random(seed)
    drawn = random.get_state() if plan.chosen.device != CPU else None
    asked = {"label_tol": float(options.get("label_tol", 0.0)), "report": report, **apart}
    fit = Fit(about.maxiter, float(options["tol"]), init, about.starts, random, **asked)

    def options_on(used: tuple[Any, ...]) -> Any:
        if drawn is not None:  # where a device failed, the CPU begins anew
            random.set_state(drawn)
        return fit._replace(labels=_device_labels(plan, used, X))

    on_host, stays = plan.problem.output.location == HOST, plan.problem.next_device is not None
    out = np.empty((k, d), dtype) if on_host and not stays else None
    described = tuple(map(describe, arrays))
    done = execution.run(plan, execution.Call(arrays, described, out, options=options_on))

    run, labels = done.outcome
    if few and not run.inertia / n <= float(np.finfo(dtype).max):
        warnings.warn(_OVERFLOW.format(dtype), RuntimeWarning, stacklevel=outside())
    if few:
        counts = np.bincount(operands.on_host(labels, np.dtype(np.int32)), minlength=k)
        if (used := np.count_nonzero(counts)) < k:
            warnings.warn(FEW.format(used, k), few, stacklevel=outside())
    if isinstance(labels, np.ndarray) and not on_host:
        labels = like(X, labels)
    info = {**run._asdict(), "device": done.device, "method": done.method, "plan": plan}
    return done.value, labels, info


def _device_labels(plan: Plan, used: tuple[Any, ...], X: Any) -> tuple[Any, Any] | None:
    """Where the devices that a plan runs on leave the labels: an array and its buffer; None where
    the host gets them."""
    if len(used) != 1 or plan.problem.options.starts > 1:
        return None  # the labels of the best start are not those of the last one
    shape, dtype = (plan.problem.dims[0],), np.dtype(np.int32)
    if plan.problem.output.location == used[0].name:
        return transfer.empty_like(X, describe(X), shape, dtype)
    if plan.problem.next_device is not None:
        array, target = transfer.new_array(used[0], shape, dtype)
        return array, target.pointer
    return None


def at_once(
    X: Any, centroids: Any, weights: Any, measured: bool, device: str | None, method: str | None
) -> tuple[np.ndarray, float] | None:
    """Labels of rows on the host and, if it is to be ``measured``, their inertia, without a plan:
    by NumPy or by loops that are ready, where no device could end before. None elsewhere."""
    device, method = planner.placement(device, method)
    if type(X) is not np.ndarray or method is not None or device not in (None, CPU):
        return None
    n, k, few = len(X), int(centroids.shape[0]), len(X) <= _FEW
    name = loops.named(CLUSTERS, operands.float_dtype(X.dtype))
    if not (few or ("numba" in sys.modules and loops.is_ready(name))):
        return None
    if X.size * k > _LITTLE and not inventory.is_host_alone(device):
        return None
    X = operands.host_values(X)
    given = operands.checked_centroids(operands.on_host(centroids, X.dtype), (k, X.shape[1]))
    operands.weights_operand(weights, n)
    weights = operands.checked_weights(weights, n, X.dtype)
    rows = _kind(not few)(X, weights, given)
    with np.errstate(over="ignore", invalid="ignore"):
        inertia = rows.nearest(given - rows.mean, measured)
    return rows.labels, inertia


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
    iterations = min(maxiter, operands.EXPECTED) + 1
    if how == operands.PLUS_PLUS:
        iterations += operands.trials(k)
    moved = 2.0 * n * d * np.dtype(problem.dtype).itemsize
    flops, repeat = 2.0 * n * d * k, starts * iterations
    return Work((n, d, k), flops, moved, repeat, calls=starts, terms=_TERMS)


# -- Runs ------------------------------------------------------------------------------------------


def _on_cpu(looped: bool, devices: tuple[()], problem: Problem, arguments: Arguments) -> Any:
    """``run`` by compiled loops, or by NumPy's products; BLAS has one thread in either."""
    with load("hetero.host.cpu").one_thread():
        rows = _kind(looped)(*_on_host(arguments), arguments.options.given)
        return _fitted(rows, problem, arguments)


def _kind(looped: bool) -> Any:
    """The class of rows on the CPU for compiled loops, or for NumPy's products."""
    return load(LOOPS).CompiledRows if looped else load("hetero.ops.kmeans.fit").NumpyRows


def _on_device(
    devices: tuple[Device, ...], problem: Problem, arguments: Arguments
) -> tuple[Run, Any]:
    """``run`` on a device; on several, and on one that has no room, of rows on the host."""
    asked = arguments.options
    how = {"given": asked.given, "counted": asked.label_tol > 0.0}
    if isinstance(arguments.output, np.ndarray):
        kind = load("hetero.ops.kmeans.ranges").RangeRows
        rows = kind(devices, problem, *_on_host(arguments), **how)
    else:
        X, weights = (*arguments.inputs, None)[:2]
        kind = load("hetero.ops.kmeans.device").DeviceRows
        rows = kind(*devices, problem, X, weights, asked.labels, **how)
    return _fitted(rows, problem, arguments)


def _fitted(rows: Any, problem: Problem, arguments: Arguments) -> tuple[Run, Any]:
    """How a fit of these rows ended, and its labels; its centroids go to the output."""
    fit = load("hetero.ops.kmeans.fit").fit
    run, labels, centroids = fit(rows, arguments.options, problem.dims[2])
    if isinstance(arguments.output, np.ndarray):
        arguments.output[...] = centroids
    else:
        rows.device.upload(centroids, arguments.output)
    return run, labels


def _on_host(arguments: Arguments) -> tuple[Any, np.ndarray | None]:
    """X and its weights in the dtype that is computed in, X by rows without gaps."""
    inputs, _, asked = arguments
    if not inputs:
        return asked.matrix, asked.weights
    X = operands.host_values(inputs[0])
    return X, (np.ascontiguousarray(inputs[1], X.dtype) if len(inputs) > 1 else None)


# -- Rows of the registry --------------------------------------------------------------------------


def _dense_alone(problem: Problem, info: dict[str, Any]) -> str | None:
    return "does not apply: it is for dense rows" if problem.layout == operands.SPARSE else None


def _loops(problem: Problem) -> tuple[str, ...]:
    return loops.named(CLUSTERS, problem.dtype), loops.named(BOUNDS, problem.dtype)


def _plain_obstacle(problem: Problem, info: dict[str, Any]) -> str | None:
    """Sparse rows are NumPy's and SciPy's in any case."""
    if problem.layout == operands.SPARSE or registry.missing(_loops(problem), info):
        return None
    return registry.Unasked("is used only while 'lloyd' is compiled")


registry.register_operation(
    registry.Operation(
        name=operands.NAME,
        function="kmeans",
        call=kmeans,
        summary="k-means clustering, with the semantics of sklearn.cluster.KMeans",
        dims=operands.DIMS,
        problem=problem,
        from_dims=from_dims,
    )
)
_method = partial(registry.register_method, operation=NAME, work=_work)
_method(
    method="lloyd", kinds=("cpu",), excludes=_dense_alone, run=partial(_on_cpu, True), loops=_loops
)
_method(method="products", kinds=("cpu",), excludes=_plain_obstacle, run=partial(_on_cpu, False))
_method(
    method="lloyd",
    kinds=registry.PORTABLE,
    excludes=_dense_alone,
    run=_on_device,
    blocks=registry.WHEN_SHORT,
    shared=lambda problem: problem.layout != operands.SPARSE and problem.dims[0] >= _LEAST_SHARED,
)
