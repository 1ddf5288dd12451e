"""What stands in the place of other packages' functions, which calls hetero can do; the table of
all.

A recogniser gets the original function and what that was given. It gives an `Attempt`, or what
calls the same library in a faster way, or None where the call is no matter of hetero's. What it
raises is a wrong argument: the original says so.
"""

from __future__ import annotations

import functools
import math
import numbers
import sys
from collections.abc import Callable
from types import MethodType
from typing import Any, NamedTuple

from hetero import tables
from hetero.accel import products
from hetero.accel import session as sessions
from hetero.accel.session import Attempt, Session, is_failure, looks, shapes, unseen
from hetero.imports import load

# Seconds of SciPy's convolutions: for each product of the sum, for each result by transforms.
_PRODUCT, _TRANSFORMED = 2e-9, 3e-8
_SMALL = 1 << 18  # products of the sum, which no function takes `session.LEAST` for
_FEW = 1 << 10  # unknowns, or elements of a matrix with them, that are not looked at
_BOUNDARIES = {"reflect": "symm", "constant": "fill", "wrap": "wrap", "grid-wrap": "wrap"}
_METHODS = "auto", "fft", "direct"  # of `scipy.signal.convolve`
_ITERATIONS = 50  # of a solve or of a start of k-means, to guess how long it takes
_SEEDING = 15  # of these take as long as scikit-learn's k-means++
_ENTRY, _UNKNOWN = 1.5e-9, 1e-8  # seconds of an iteration for each entry of A, each unknown
_DISTANCE, _COORDINATE = 1e-9, 5e-11  # seconds of a distance, and for each of its coordinates


class Call(NamedTuple):
    """What may be hetero's of a function's calls.

    ``recognise`` runs no code of the script's. It is not asked unless the product of the sizes of
    all arrays among the arguments is at least ``least``: that takes 1 us, a small filter 20.
    """

    recognise: Callable[..., Attempt | Callable[[], Any] | None]
    least: int = 0
    gains: Callable[[Session], bool] = lambda session: True  # whether any call can


class Standin:
    """A function that other code takes for ``__wrapped__``, and that runs other code.

    It has the original's attributes and class, which `inspect`, mocks and scikit-learn look at, and
    equals it: classes with functions of their own for NumPy's (``__array_function__``), Numba and
    SciPy's own tests look functions up in tables. They find the original by its stand-in, and the
    other way round. Numba's table has weak references where there can be one, as there can be none
    to NumPy's functions: nor to their stand-ins.
    """

    __slots__ = ("__wrapped__",)

    @property
    def __class__(self) -> Any:
        return type(self.__wrapped__)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __eq__(self, other: object) -> bool:
        own = other.__wrapped__ if issubclass(type(other), Standin) else other
        return own is self.__wrapped__

    def __hash__(self) -> int:
        return hash(self.__wrapped__)

    def __reduce__(self) -> str:
        return self.__qualname__  # where the original is looked for, too

    def __repr__(self) -> str:
        return repr(self.__wrapped__)

    def __str__(self) -> str:
        return str(self.__wrapped__)


@functools.cache
def standin(name: str, original: Any, call: Call) -> Standin:
    """What stands in the place of a function, the same one in all installations."""
    recognise, least, _ = call
    ndarray = sys.modules["numpy"].ndarray

    @unseen
    def function(*args: Any, **options: Any) -> Any:
        session = sessions.current
        if session is None:
            return original(*args, **options)
        if least and not session.eager:
            size = 1
            for value in (*args, *options.values()) if options else args:
                if type(value) is ndarray:
                    size *= value.size
            if size < least:
                return original(*args, **options)
        try:
            attempt = recognise(original, *args, **options)
        except Exception as error:
            if not is_failure(error):
                raise
            attempt = None
        if attempt is None:
            return original(*args, **options)
        if not isinstance(attempt, Attempt):
            return attempt()
        return session.run(name, attempt, functools.partial(original, *args, **options))

    names = {"__call__": staticmethod(function), "__module__": original.__module__}
    names["__slots__"] = ("__weakref__",) if type(original).__weakrefoffset__ else ()
    made = type("function", (Standin,), {**names, "__doc__": original.__doc__})()
    made.__wrapped__ = original
    return made


# -- SciPy's and scikit-learn's functions ----------------------------------------------------------

_signature = functools.cache(lambda function: load("inspect").signature(function))


def _plan(operation: str, *operands: Any, **options: Any) -> Callable[[], Any]:
    """What gives the plan of an operation's call."""
    return lambda: load("hetero.ops").plan(operation, *operands, **options)


def _convolution(original: Any, *args: Any, **options: Any) -> Attempt | None:
    """Those of `scipy.signal` and `scipy.ndimage`."""
    bound = _signature(original).bind(*args, **options)  # TypeError for a wrong call
    bound.apply_defaults()
    given, ndarray = bound.arguments, sys.modules["numpy"].ndarray
    (image, kernel, *_), mode, function = given.values(), given["mode"], original.__name__
    is_sum, is_ndimage = function.endswith("2d"), "cval" in given
    outer = given.get("fillvalue", given.get("cval", 0))
    planes = (type(x) is ndarray and x.ndim == 2 and x.dtype.char in "fd" for x in (image, kernel))
    if not all(planes) or not isinstance(outer, numbers.Real):
        return None
    seconds = image.size * kernel.size * _PRODUCT
    sides = [*zip(image.shape, kernel.shape, strict=True)]
    if not (is_sum or is_ndimage):
        if min(image.size, kernel.size) < 2:  # a factor, which SciPy multiplies by
            return None
        by_transforms = math.prod(n + m for n, m in sides) * _TRANSFORMED
        seconds = min(seconds, by_transforms) if function == "convolve" else by_transforms
    if not looks(seconds):
        return None
    flipped, dtypes = function.startswith("correlate"), {image.dtype.char, kernel.dtype.char}
    is_larger, is_even = any(n < m for n, m in sides), not all(n % 2 for n in kernel.shape)
    others, origin = (given.get("output"), given.get("axes")), given.get("origin", 0)
    known = mode in _BOUNDARIES if is_ndimage else given.get("method", "auto") in _METHODS
    obstacle = ""
    if (
        any(x is not None for x in others)
        or not (known and type(origin) is int and origin == 0)
        or (is_even and (is_ndimage or (flipped and mode == "same")))  # another centre
        or (is_larger and (not is_sum or (flipped and mode == "valid")))  # the sum would be long
    ):
        obstacle = "option"
    # Float32 is summed in float64, or the narrower one's transform is rounded.
    elif (is_ndimage and dtypes != {"d"}) or (not is_sum and len(dtypes) > 1):
        obstacle = "dtype"
    operands = image, kernel[::-1, ::-1] if flipped else kernel
    options = {"mode": mode}
    if is_ndimage:
        options = {"mode": "same", "boundary": _BOUNDARIES.get(mode), "fillvalue": outer}
    elif is_sum:
        options |= {"boundary": given["boundary"], "fillvalue": outer}
    exact = function not in ("fftconvolve", "oaconvolve")  # which SciPy's own are not
    own = ("fft",) if function == "oaconvolve" else ()  # SciPy's own way, which gains nothing

    def compute(plan: Any) -> Any:
        with tables.setting(load("hetero.ops.convolve2d.filters").exact_zeros, exact):
            result = load("hetero.ops.convolve2d").convolve2d(*operands, **options)
        numpy = sys.modules["numpy"]
        with numpy.errstate(all="ignore"):
            return result if numpy.isfinite(result.sum()) else None

    plan = _plan("convolve2d", *operands, **options)
    what = f"{shapes(image, kernel)} {mode}"
    return Attempt(what, seconds, obstacle, plan, (*own, "scipy"), compute, operands)


def _cg(original: Any, A: Any, b: Any, x0: Any = None, **given: Any) -> Attempt | None:
    """Those of `scipy.sparse.linalg.cg`."""
    defaults = {"rtol": 1e-5, "atol": 0.0, "maxiter": None, "M": None, "callback": None}
    rtol, atol, maxiter, M, callback = (defaults | given).values()  # ValueError for others
    numpy, sparse = sys.modules["numpy"], sys.modules["scipy.sparse"]
    if type(b) is not numpy.ndarray or not (sparse.issparse(A) or type(A) is numpy.ndarray):
        return None
    entries = A.nnz if sparse.issparse(A) else A.size
    seconds = _ITERATIONS * (entries * _ENTRY + b.size * _UNKNOWN)
    if not looks(seconds) or len(A.shape) != 2 or A.shape[0] != A.shape[1] or b.ndim != 1:
        return None
    obstacle = ""
    if callback is not None or not (M is None or sparse.issparse(M)) or not (rtol > 0 or atol > 0):
        obstacle = "option"
    elif A.dtype.char not in "fd" or b.dtype.char not in "fd":
        obstacle = "dtype"
    elif not (x0 is None or type(x0) is numpy.ndarray):
        obstacle = "type"
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
    plan = _plan("cg", A, b, **options)
    what, own = f"{shapes(A, b)}, {entries} entries", ("scipy", "operator", "blas")
    return Attempt(what, seconds, obstacle, plan, own, compute, iterates=True)


def _fit(
    original: Any, self: Any, X: Any, y: Any = None, sample_weight: Any = None
) -> Attempt | None:
    """Those of `sklearn.cluster.KMeans.fit`."""
    rows, columns = X.shape
    if not type(rows) is type(columns) is int:  # of an array that computes its own later
        return None
    init, rounds = self.init, min(self.max_iter, _ITERATIONS) + _SEEDING
    seconds = rows * self.n_clusters * rounds * (_DISTANCE + _COORDINATE * columns)
    if not looks(seconds):
        return None
    obstacle, modules = "", sys.modules
    if (type(X), type(self)) != (modules["numpy"].ndarray, modules["sklearn.cluster"].KMeans):
        obstacle = "type"
    elif X.dtype.char not in "fd":
        obstacle = "dtype"
    elif callable(init) or self.verbose or self.algorithm != "lloyd" or not self.copy_x:
        obstacle = "option"
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

    plan = _plan("kmeans", X, self.n_clusters, **options)
    what = f"{rows}x{columns} {getattr(X, 'dtype', '')}, {self.n_clusters} clusters"
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

_CONVOLUTION = Call(_convolution, _SMALL)
_SIGNAL = "convolve2d", "correlate2d", "fftconvolve", "oaconvolve", "convolve"
CALLS: dict[str, dict[str, Call]] = {
    "numpy": {
        "dot": Call(products.dot, products.DOT, gains=products.gains),
        "einsum": Call(products.einsum, products.VECTORS),
    },
    "scipy.signal": dict.fromkeys(_SIGNAL, _CONVOLUTION),
    "scipy.ndimage": dict.fromkeys(("convolve", "correlate"), _CONVOLUTION),
    "scipy.sparse.linalg": {"cg": Call(_cg, _FEW)},
    "sklearn.cluster": {"KMeans.fit": Call(_fit)},
}
