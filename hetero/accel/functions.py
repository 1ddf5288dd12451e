"""Functions of SciPy and scikit-learn: which of their calls hetero can do."""

from __future__ import annotations

import functools
import numbers
import sys
from collections.abc import Callable
from typing import Any

from hetero.accel.notes import shapes
from hetero.accel.session import Attempt, Session, planned, wrapped
from hetero.imports import load

# Seconds of SciPy's convolutions: for each product of the sum, for each result by transforms.
_PRODUCT, _FILTERED, _TRANSFORMED = 2.5e-9, 1.5e-9, 3e-8
_SMALL = 1 << 18  # products of the sum, which no function takes `session.LEAST` for
_BOUNDARIES = {"reflect": "symm", "constant": "fill", "wrap": "wrap", "grid-wrap": "wrap"}
_ITERATIONS = 50  # of a solve or of a start of k-means, to guess how long it takes
_SEEDING = 15  # of these take as long as scikit-learn's k-means++
_ENTRY, _UNKNOWN = 1.5e-9, 1e-8  # seconds of an iteration for each entry of A, each unknown
_DISTANCE, _COORDINATE = 1e-9, 5e-11  # seconds of a distance, and for each of its coordinates


def replaced(session: Session, name: str, original: Any) -> Any:
    """What stands in the place of a function, or of `KMeans.fit`."""
    package, _, function = name.rpartition(".")
    if function in ("fit", "cg"):
        return wrapped(session, name, original, _fit if function == "fit" else _cg)
    flipped = function.startswith("correlate")
    if package == "scipy.ndimage":
        recognise = functools.partial(_filtered, flipped=flipped)
    elif function.endswith("2d"):
        recognise = functools.partial(_summed, flipped=flipped)
    else:
        recognise = functools.partial(_transformed, function)
    return wrapped(session, name, original, recognise, _SMALL)


# -- Convolutions ----------------------------------------------------------------------------------


def _summed(
    looks: Callable[[float], bool],
    in1: Any,
    in2: Any,
    mode: str = "full",
    boundary: str = "fill",
    fillvalue: Any = 0,
    *,
    flipped: bool,
) -> Attempt | None:
    """`scipy.signal.convolve2d` and `correlate2d`."""
    if not _are_images(in1, in2) or not isinstance(fillvalue, numbers.Real):
        return None
    large, small = max(in1.size, in2.size), min(in1.size, in2.size)
    seconds = large * small * _PRODUCT
    if not looks(seconds):
        return None
    what = f"{shapes((in1, in2))} {mode}"
    if flipped:
        if mode == "valid" and any(a < b for a, b in zip(in1.shape, in2.shape, strict=True)):
            return Attempt(what, seconds, ("option", "the second one is the larger one"))
        if mode == "same" and not all(n % 2 for n in in2.shape):
            return Attempt(what, seconds, ("option", "a filter of even size has another centre"))
        in2 = in2[::-1, ::-1]
    return _attempt(what, seconds, (in1, in2, mode, boundary, fillvalue), ())


def _transformed(
    function: str,
    looks: Callable[[float], bool],
    in1: Any,
    in2: Any,
    mode: str = "full",
    *arguments: Any,
    **options: Any,
) -> Attempt | None:
    """`scipy.signal.fftconvolve`, `oaconvolve`, and `convolve`, which chooses for itself."""
    if not _are_images(in1, in2):
        return None
    if min(in1.size, in2.size) < 2:  # a factor, which SciPy multiplies by
        return None
    seconds = (in1.shape[0] + in2.shape[0]) * (in1.shape[1] + in2.shape[1]) * _TRANSFORMED
    if function == "convolve":
        seconds = min(seconds, in1.size * in2.size * _PRODUCT)
    if not looks(seconds):
        return None
    what = f"{shapes((in1, in2))} {mode}"
    option, allowed = (
        ("method", ("auto", "fft", "direct")) if function == "convolve" else ("axes", (None,))
    )
    if options.keys() - {option} or any(x not in allowed for x in (*arguments, *options.values())):
        return Attempt(what, seconds, ("option", f"{option}= is given"))
    if in1.dtype != in2.dtype:  # the narrower one's transform is rounded to it
        return Attempt(what, seconds, ("dtype", f"{in1.dtype} and {in2.dtype} together"))
    if any(a < b for a, b in zip(in1.shape, in2.shape, strict=True)):  # the sum would be long
        return Attempt(what, seconds, ("option", "the second one is the larger one"))
    exact = function == "convolve"  # which may be the direct sum; others are not exact in SciPy
    own = ("fft",) if function == "oaconvolve" else ()  # SciPy's own way, which gains nothing
    return _attempt(what, seconds, (in1, in2, mode), own, exact)


def _filtered(
    looks: Callable[[float], bool],
    input: Any,
    weights: Any,
    output: Any = None,
    mode: str = "reflect",
    cval: float = 0.0,
    origin: Any = 0,
    *,
    axes: Any = None,
    flipped: bool,
) -> Attempt | None:
    """`scipy.ndimage.convolve` and `correlate`."""
    if not _are_images(input, weights) or not isinstance(cval, numbers.Real):
        return None
    seconds = input.size * weights.size * _FILTERED
    if not looks(seconds):
        return None
    what = f"{shapes((input, weights))} {mode}"
    obstacle = None
    if output is not None or origin != 0 or axes is not None or mode not in _BOUNDARIES:
        obstacle = "option", f"output=, origin=, axes= or mode={mode!r} is given"
    elif input.dtype.char != "d" or weights.dtype.char != "d":
        obstacle = "dtype", "float32, which ndimage sums in float64"
    elif not all(n % 2 for n in weights.shape):
        obstacle = "option", "a filter of even size has another centre"
    elif any(n < f for n, f in zip(input.shape, weights.shape, strict=True)):
        obstacle = "option", "the filter is larger than the image"
    if obstacle is not None:
        return Attempt(what, seconds, obstacle)
    kernel = weights[::-1, ::-1] if flipped else weights
    return _attempt(what, seconds, (input, kernel, "same", _BOUNDARIES[mode], cval), ())


def _are_images(image: Any, kernel: Any) -> bool:
    ndarray = sys.modules["numpy"].ndarray
    return (
        type(image) is type(kernel) is ndarray
        and image.ndim == kernel.ndim == 2
        and image.dtype.char in "fd"
        and kernel.dtype.char in "fd"
    )


def _attempt(
    what: str,
    seconds: float,
    arguments: tuple[Any, ...],
    own: tuple[str, ...],
    exact: bool = True,
) -> Attempt:
    """An attempt of ``hetero.convolve2d(*arguments)``; ``own``: methods that are SciPy's; zeros are
    to be ``exact`` or not."""
    options = dict(zip(("mode", "boundary", "fillvalue"), arguments[2:], strict=False))

    def compute(plan: Any) -> Any:
        wanted = load("hetero.ops.convolve2d.filters").exact_zeros
        before = wanted.set(exact)
        try:
            result = load("hetero.ops.convolve2d").convolve2d(*arguments)
        finally:
            wanted.reset(before)
        numpy = sys.modules["numpy"]
        with numpy.errstate(all="ignore"):
            return result if numpy.isfinite(result.sum()) else None

    plan = functools.partial(planned, "convolve2d", *arguments[:2], **options)
    return Attempt(what, seconds, None, plan, (*own, "scipy"), compute, arguments[:2])


# -- Solves ----------------------------------------------------------------------------------------


def _cg(
    looks: Callable[[float], bool],
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
    what = f"{shapes((A, b))}, {entries} entries"
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
    if obstacle is not None:
        return Attempt(what, seconds, obstacle)
    limit = 10 * b.size if maxiter is None else maxiter

    def compute(plan: Any) -> Any:
        until = rtol, atol, maxiter
        x, outcome = load("hetero.ops.cg").solved(A, b, x0, M, None, until, None, None)
        if outcome.status not in ("converged", "iteration limit"):  # SciPy's is another account
            return None
        if outcome.iterations >= limit:  # SciPy looks at no residual after the last one
            return x, limit
        return (x, 0) if outcome.status == "converged" else None

    options = {"x0": x0, "rtol": rtol, "atol": atol, "maxiter": maxiter, "M": M}
    own = "scipy", "operator", "blas"
    plan = functools.partial(planned, "cg", A, b, **options)
    return Attempt(what, seconds, None, plan, own, compute, iterates=True)


def _fit(
    looks: Callable[[float], bool],
    self: Any,
    X: Any,
    y: Any = None,
    sample_weight: Any = None,
) -> Attempt | None:
    rows, columns = X.shape
    if not type(rows) is type(columns) is int:  # of an array that computes its own later
        return None
    init, starts, rounds = self.init, self.n_init, min(self.max_iter, _ITERATIONS)
    if not isinstance(init, str):
        starts = 1  # scikit-learn itself warns that there is one
    elif starts == "auto":
        starts = 10 if init == "random" else 1
    if isinstance(init, str) and init == "k-means++":
        rounds += _SEEDING
    distances = rows * self.n_clusters * rounds * (starts if isinstance(starts, int) else 1)
    if not looks(seconds := distances * (_DISTANCE + _COORDINATE * columns)):
        return None
    if type(X) is not sys.modules["numpy"].ndarray:
        what = f"{rows}x{columns}, {self.n_clusters} clusters"
        return Attempt(what, seconds, ("type", f"X is of class {type(X).__name__}"))
    what = f"{shapes((X,))}, {self.n_clusters} clusters"
    obstacle = None
    if type(self) is not sys.modules["sklearn.cluster"].KMeans:
        obstacle = "type", f"{type(self).__name__} is a class of its own"
    elif X.dtype.char not in "fd":
        obstacle = "dtype", f"X is of {X.dtype}"
    elif callable(init) or self.verbose or self.algorithm != "lloyd" or not self.copy_x:
        obstacle = "option", "init is a function, or verbose, algorithm or copy_x is given"
    if obstacle is not None:
        return Attempt(what, seconds, obstacle)
    self._validate_params()
    options = {"init": init, "n_init": starts, "max_iter": self.max_iter, "tol": self.tol}

    def compute(plan: Any) -> Any:
        fitted = load("hetero.ops.kmeans.estimator").KMeans(
            self.n_clusters, random_state=self.random_state, **options
        )
        fitted.fit(X, sample_weight=sample_weight)
        threads = sys.modules["sklearn.cluster._kmeans"]._openmp_effective_n_threads()
        self._check_params_vs_input(X)
        for name in ("n_features_in_", "cluster_centers_", "_n_features_out", "labels_"):
            setattr(self, name, getattr(fitted, name))
        vars(self).pop("feature_names_in_", None)  # of a table that it was fitted to before
        self.inertia_, self.n_iter_, self._n_threads = fitted.inertia_, fitted.n_iter_, threads
        return self

    plan = functools.partial(planned, "kmeans", X, self.n_clusters, **options)
    return Attempt(what, seconds, None, plan, (), compute, iterates=True)
