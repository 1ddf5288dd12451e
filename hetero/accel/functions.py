"""Which calls of which functions hetero can do: SciPy's and scikit-learn's, and the table of all.

A recogniser gets ``looks(seconds)``, whether a call that takes as long is looked at, and what the
function was given. It gives an `Attempt`, or None where the call is no matter of hetero's.
"""

from __future__ import annotations

import functools
import math
import numbers
import sys
from collections.abc import Callable
from typing import Any

from hetero.accel import products
from hetero.accel.patching import wrapped
from hetero.accel.session import Attempt, shapes
from hetero.imports import load

# Seconds of SciPy's convolutions: for each product of the sum, for each result by transforms.
_PRODUCT, _FILTERED, _TRANSFORMED = 2.5e-9, 1.5e-9, 3e-8
_SMALL = 1 << 18  # products of the sum, which no function takes `session.LEAST` for
_BOUNDARIES = {"reflect": "symm", "constant": "fill", "wrap": "wrap", "grid-wrap": "wrap"}
_METHODS = None, "auto", "fft", "direct"  # of `scipy.signal.convolve`
_ITERATIONS = 50  # of a solve or of a start of k-means, to guess how long it takes
_SEEDING = 15  # of these take as long as scikit-learn's k-means++
_ENTRY, _UNKNOWN = 1.5e-9, 1e-8  # seconds of an iteration for each entry of A, each unknown
_DISTANCE, _COORDINATE = 1e-9, 5e-11  # seconds of a distance, and for each of its coordinates
Looks = Callable[[float], bool]


# -- Convolutions ----------------------------------------------------------------------------------


def _convolution(
    name: str, parameters: Any, looks: Looks, *args: Any, **options: Any
) -> Attempt | None:
    """Those of `scipy.signal` and `scipy.ndimage`; ``parameters``: with defaults, by place."""
    defaults, by_place = parameters
    placed = dict(zip(by_place, args, strict=False))
    given, (package, _, function) = {**defaults, **placed, **options}, name.rpartition(".")
    if len(args) > len(placed) or placed.keys() & options or len(given) > len(defaults):
        return None  # a wrong call
    (image, kernel, *_), ndarray = given.values(), sys.modules["numpy"].ndarray
    outer, mode = given.get("fillvalue", given.get("cval", 0)), given["mode"]
    planes = (type(x) is ndarray and x.ndim == 2 and x.dtype.char in "fd" for x in (image, kernel))
    if not all(planes) or not isinstance(outer, numbers.Real):
        return None
    is_sum, is_ndimage = function.endswith("2d"), package == "scipy.ndimage"
    seconds = image.size * kernel.size * (_FILTERED if is_ndimage else _PRODUCT)
    sides = [*zip(image.shape, kernel.shape, strict=True)]
    if not (is_sum or is_ndimage):
        if min(image.size, kernel.size) < 2:  # a factor, which SciPy multiplies by
            return None
        by_transforms = math.prod(n + m for n, m in sides) * _TRANSFORMED
        seconds = min(seconds, by_transforms) if function == "convolve" else by_transforms
    if not looks(seconds):
        return None
    flipped = function.startswith("correlate")
    is_larger, is_even = any(n < m for n, m in sides), not all(n % 2 for n in kernel.shape)
    obstacle = None
    if is_ndimage and not (
        given["output"] is None and given["origin"] == 0 and given.get("axes") is None
        and mode in _BOUNDARIES
    ):  # fmt: skip
        obstacle = "option", f"output=, origin=, axes= or mode={mode!r} is given"
    elif is_ndimage and not image.dtype.char == kernel.dtype.char == "d":
        obstacle = "dtype", "float32, which ndimage sums in float64"
    elif given.get("axes") is not None or given.get("method") not in _METHODS:
        obstacle = "option", f"{'axes' if 'axes' in given else 'method'}= is given"
    elif not is_sum and image.dtype != kernel.dtype:  # the narrower one's transform is rounded
        obstacle = "dtype", f"{image.dtype} and {kernel.dtype} together"
    elif is_even and (is_ndimage or (flipped and mode == "same")):
        obstacle = "option", "a filter of even size has another centre"
    elif is_larger and (not is_sum or (flipped and mode == "valid")):  # the sum would be long
        obstacle = "option", "the second one is the larger one"
    operands = image, kernel[::-1, ::-1] if flipped else kernel
    options = {"mode": mode}
    if is_ndimage:
        options = {"mode": "same", "boundary": _BOUNDARIES.get(mode), "fillvalue": outer}
    elif is_sum:
        options |= {"boundary": given["boundary"], "fillvalue": outer}
    exact = function not in ("fftconvolve", "oaconvolve")  # which SciPy's own are not
    own = ("fft",) if function == "oaconvolve" else ()  # SciPy's own way, which gains nothing

    def compute(plan: Any) -> Any:
        wanted = load("hetero.ops.convolve2d.filters").exact_zeros
        before = wanted.set(exact)
        try:
            result = load("hetero.ops.convolve2d").convolve2d(*operands, **options)
        finally:
            wanted.reset(before)
        numpy = sys.modules["numpy"]
        with numpy.errstate(all="ignore"):
            return result if numpy.isfinite(result.sum()) else None

    plan = functools.partial(_planned, "convolve2d", *operands, **options)
    what = f"{shapes(image, kernel)} {mode}"
    return Attempt(what, seconds, obstacle, plan, (*own, "scipy"), compute, operands)


def _planned(operation: str, *operands: Any, **options: Any) -> Any:
    """The plan of an operation's call."""
    return load("hetero.ops").plan(operation, *operands, **options)


# -- Solves ----------------------------------------------------------------------------------------


def _cg(
    looks: Looks,
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Any = None,
    callback: Any = None,
) -> Attempt | None:
    numpy, sparse = sys.modules["numpy"], sys.modules["scipy.sparse"]
    if type(b) is not numpy.ndarray or not (sparse.issparse(A) or type(A) is numpy.ndarray):
        return None
    entries = A.nnz if sparse.issparse(A) else A.size
    seconds = _ITERATIONS * (entries * _ENTRY + b.size * _UNKNOWN)
    if not looks(seconds) or len(A.shape) != 2 or A.shape[0] != A.shape[1] or b.ndim != 1:
        return None
    what = f"{shapes(A, b)}, {entries} entries"
    obstacle = None
    if callback is not None:
        obstacle = "option", "a callback sees each iterate"
    elif A.dtype.char not in "fd" or b.dtype.char not in "fd":
        obstacle = "dtype", f"A is of {A.dtype}, b of {b.dtype}"
    elif x0 is not None and type(x0) is not numpy.ndarray:
        obstacle = "type", "x0 is no plain array"
    elif M is not None and not sparse.issparse(M):
        obstacle = "option", "M is a function"
    elif not (rtol > 0 or atol > 0):
        obstacle = "option", "no residual meets a tolerance of 0"
    limit = 10 * b.size if maxiter is None else maxiter

    def compute(plan: Any) -> Any:
        until = rtol, atol, maxiter
        x, outcome = load("hetero.ops.solvers.cg").solved(A, b, x0, M, None, until, None, None)
        if outcome.status not in ("converged", "iteration limit"):  # SciPy's is another account
            return None
        if outcome.iterations >= limit:  # SciPy looks at no residual after the last one
            return x, limit
        return (x, 0) if outcome.status == "converged" else None

    options = {"x0": x0, "rtol": rtol, "atol": atol, "maxiter": maxiter, "M": M}
    own = "scipy", "operator", "blas"
    plan = functools.partial(_planned, "cg", A, b, **options)
    return Attempt(what, seconds, obstacle, plan, own, compute, iterates=True)


def _fit(
    looks: Looks, self: Any, X: Any, y: Any = None, sample_weight: Any = None
) -> Attempt | None:
    rows, columns = X.shape
    if not type(rows) is type(columns) is int:  # of an array that computes its own later
        return None
    init, rounds = self.init, min(self.max_iter, _ITERATIONS) + _SEEDING
    seconds = rows * self.n_clusters * rounds * (_DISTANCE + _COORDINATE * columns)
    if not looks(seconds):
        return None
    what = f"{rows}x{columns} {getattr(X, 'dtype', '')}, {self.n_clusters} clusters"
    obstacle = None
    if type(X) is not sys.modules["numpy"].ndarray:
        obstacle = "type", f"X is of class {type(X).__name__}"
    elif type(self) is not sys.modules["sklearn.cluster"].KMeans:
        obstacle = "type", f"{type(self).__name__} is a class of its own"
    elif X.dtype.char not in "fd":
        obstacle = "dtype", f"X is of {X.dtype}"
    elif callable(init) or self.verbose or self.algorithm != "lloyd" or not self.copy_x:
        obstacle = "option", "init is a function, or verbose, algorithm or copy_x is given"
    options = {name: getattr(self, name) for name in ("init", "n_init", "max_iter", "tol")}
    if not isinstance(init, str):
        options["n_init"] = 1  # scikit-learn itself warns that there is one

    def compute(plan: Any) -> Any:
        fitted = load("hetero.ops.kmeans.estimator").KMeans(
            self.n_clusters, random_state=self.random_state, **options
        )
        fitted.fit(X, sample_weight=sample_weight)
        _fit_few(self, columns)
        for result in ("cluster_centers_", "labels_", "inertia_", "n_iter_"):
            setattr(self, result, getattr(fitted, result))
        return self

    plan = functools.partial(_planned, "kmeans", X, self.n_clusters, **options)
    return Attempt(what, seconds, obstacle, plan, (), compute, iterates=True)


def _fit_few(estimator: Any, columns: int) -> None:
    """Fit an estimator to as many rows as it has clusters: so scikit-learn refuses and warns of
    parameters, and makes what a fitted estimator has besides its results."""
    numpy, init, random_state = sys.modules["numpy"], estimator.init, estimator.random_state
    rows = numpy.outer(numpy.arange(estimator.n_clusters), numpy.ones(columns))
    try:
        estimator.init, estimator.random_state = init if isinstance(init, str) else rows, 0
        estimator.fit(rows)  # which is scikit-learn's within a call of hetero's
    finally:
        estimator.init, estimator.random_state = init, random_state


# -- The table -------------------------------------------------------------------------------------


def _caught_convolution(installed: Any, name: str, original: Any) -> Any:
    parameters = load("inspect").signature(original).parameters.values()
    defaults = {p.name: p.default for p in parameters}
    by_place = [p.name for p in parameters if p.kind != p.KEYWORD_ONLY]
    recognise = functools.partial(_convolution, name, (defaults, by_place))
    return wrapped(recognise, 0, _SMALL, installed, name, original)


# Module -> its name -> what stands in its place: a function of the `Installed`, the full name and
# the original.
_SIGNAL = "convolve2d", "correlate2d", "fftconvolve", "oaconvolve", "convolve"
CALLS: dict[str, dict[str, Callable[[Any, str, Any], Any]]] = {
    "numpy": {
        "matmul": products.gated,
        "dot": products.caught_dot,
        "einsum": functools.partial(wrapped, products.einsum, 1, products.VECTORS),
    },
    "scipy.signal": dict.fromkeys(_SIGNAL, _caught_convolution),
    "scipy.ndimage": dict.fromkeys(("convolve", "correlate"), _caught_convolution),
    "scipy.sparse.linalg": {"cg": functools.partial(wrapped, _cg, 0, 0)},
    "sklearn.cluster": {"KMeans.fit": functools.partial(wrapped, _fit, 0, 0)},
}
