"""Convolutions beside SciPy's: what every method must give, and within which bound."""

from __future__ import annotations

import warnings
from functools import lru_cache

import numpy as np
import pytest
from scipy import signal

import hetero.ops
from hetero import devices, registry
from hetero.errors import MethodNotAvailable

rng = np.random.default_rng(23)
MODES = ["full", "same", "valid"]
BOUNDARIES = ["fill", "wrap", "symm"]
PAD = {"fill": "constant", "wrap": "wrap", "symm": "symmetric"}
REAL = ["float32", "float64"]


def scipys(in1, in2, *args, **options):
    """What SciPy does, for each image of a stack."""
    stack = np.asarray(in1)
    if stack.ndim < 3:
        return signal.convolve2d(in1, in2, *args, **options)
    images = stack.reshape(-1, *stack.shape[-2:])
    results = [signal.convolve2d(image, in2, *args, **options) for image in images]
    return np.stack(results).reshape(*stack.shape[:-2], *results[0].shape)


def precisely(a, b, sizes=False, **options):
    """`scipys` in extended precision, of the values or of their absolute ``sizes``.

    SciPy takes most of a second for a filter of a thousand elements, and several methods, devices
    and libraries are compared with the same result, so the latest ones are kept.
    """
    operands = [(x.tobytes(), x.dtype, x.shape) for x in (a, b)]
    return _precisely(*operands, sizes, tuple(sorted(options.items())))


@lru_cache(64)
def _precisely(a, b, sizes, options):
    a, b = (np.frombuffer(*x).reshape(shape) for *x, shape in (a, b))
    dtype = "clongdouble" if np.result_type(a, b).kind == "c" or sizes else "longdouble"
    a, b = (abs(x.astype(dtype)) if sizes else x.astype(dtype) for x in (a, b))
    found = scipys(a, b, **dict(options))
    found.flags.writeable = False
    return found


def outcome(function, *args, **options):
    """The result, or the type of the exception."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NaN, overflow and complex fill values are wanted
            return function(*args, **options)
    except Exception as error:
        return type(error)


def agrees(ours, expected, what=""):
    """Of two outcomes: an error of the same class or of one below it, or the same array."""
    if isinstance(expected, type):
        assert isinstance(ours, type), f"{what} taken: SciPy raises {expected.__name__}"
        assert issubclass(ours, expected), what
    else:
        np.testing.assert_array_equal(ours, expected, err_msg=what, strict=True)


def as_many_tiles(axes, *others):
    """In the place of a convolution's weight: the most tiles are the lightest."""
    return 10**6 // (axes[0].count * axes[1].count)


def swapped(a, b, mode):
    """Whether 'valid' takes the second operand for the image."""
    return mode == "valid" and any(s < t for s, t in zip(a.shape[-2:], b.shape, strict=True))


def bound_of(a, b, method, mode="full", boundary="fill", fillvalue=0):
    """How far a result may lie from the exact one, element by element or for all of them."""
    dtype = np.result_type(a, b)
    eps = np.finfo(dtype).eps * (4 if dtype.kind == "c" else 1)
    fill = abs(np.clongdouble(fillvalue))
    if method == "direct":
        terms = a[(0,) * (a.ndim - 2)].size if swapped(a, b, mode) else b.size
        sums = precisely(a, b, sizes=True, mode=mode, boundary=boundary, fillvalue=fill)
        return (terms + 2) * eps * sums + np.finfo(dtype).tiny
    a, b = abs(a.astype("clongdouble")), abs(b.astype("clongdouble"))
    if not swapped(a, b, mode):
        around = [(0, 0)] * (a.ndim - 2) + [(n - 1, n - 1) for n in b.shape]
        constant = {"constant_values": fill} if boundary == "fill" else {}
        a = np.pad(a, around, PAD[boundary], **constant)
    norms = np.sqrt((a**2).sum((-2, -1)).max() * (b**2).sum())
    steps = 8 * (np.log2(a.size + b.size) + max(a.shape[-2:] if swapped(a, b, mode) else b.shape))
    return steps * eps * norms + np.finfo(dtype).tiny


def close(result, a, b, method=None, **options):
    """Right in type, dtype and shape, and within the bound of the exact result."""
    dtype = np.result_type(a, b).newbyteorder("=")
    exact = precisely(a, b, **options)
    assert type(result) is np.ndarray
    assert (result.dtype, result.shape) == (dtype, exact.shape)
    bound = np.broadcast_to(bound_of(a, b, method, **options), exact.shape)
    wrong = ~(abs(result - exact) <= bound)
    assert not wrong.any(), (
        f"{wrong.sum()} of {wrong.size} wrong, by {(abs(result - exact) / bound).max():.3g} bounds"
    )


def same(ours, scipy, a, b, **options):
    """The exception of the same type, or an equal result; rounding where there is any."""
    if isinstance(scipy, type):
        agrees(ours, scipy)
        return
    assert not isinstance(ours, type), f"{ours.__name__} where SciPy gives a result"
    assert type(ours) is np.ndarray
    assert (ours.dtype, ours.shape) == (scipy.dtype, scipy.shape)
    assert ours.flags.c_contiguous
    assert ours.flags.writeable
    if scipy.dtype.kind in "fc" and np.size(a) and np.size(b):
        close(ours, np.asarray(a), np.asarray(b), **options)
    else:
        np.testing.assert_array_equal(ours, scipy)


def check(a, b, forced=None, **options):
    """As SciPy does, twice, the second time from memory; gives what SciPy gives."""
    expected = outcome(scipys, a, b, **options)
    for _ in range(2):
        ours = outcome(hetero.convolve2d, a, b, **options, **(forced or {}))
        same(ours, expected, a, b, **options)
    return expected


def ways():
    """(device, method) of everything that can run."""
    found = []
    for name in ("cpu", *devices.available()):
        kind = name.partition(":")[0]
        for implementation in registry.lookup("convolve2d"):
            if implementation.kind == kind and implementation.method != "scipy":  # not for these
                marks = [pytest.mark.gpu] if kind == "cuda" else []
                case = (name, implementation.method)
                found.append(pytest.param(*case, marks=marks, id="-".join(case)))
    return found


WAYS = ways()
each_way = pytest.mark.parametrize(("device", "method"), WAYS)


def obstacle(a, b, device, method, **options):
    """Why the plan says that this method cannot do it there; None where it can."""
    try:
        plan = hetero.plan("convolve2d", a, b, device=device, method=method, **options)
    except MethodNotAvailable as error:
        return str(error)
    (found,) = [c for c in plan.candidates if (c.device, c.method) == (device, method)]
    return found.reason


def images(shape, dtype="float64", seed=None):
    """Noise around zero; with a seed, the same each time."""
    draw = rng if seed is None else np.random.default_rng(seed)
    values = draw.random(shape) - 0.5
    if np.dtype(dtype).kind == "c":
        values = values + 1j * (draw.random(shape) - 0.5)
    return values.astype(dtype)


def not_finite(dtype):
    """Name -> image, filter, fill value; the filters are so large that transforms are faster."""
    a, b = images((70, 63), dtype), images((33, 30), dtype)

    def put(x, *entries):
        x = x.copy()
        for index, value in entries:
            x[index] = value
        return x

    zeros = b.copy()
    zeros[abs(zeros) < 0.2] = 0.0
    return {
        "NaN in the image": (put(a, ((5, 7), np.nan)), b, 0),
        "Inf in the image": (put(a, ((5, 7), np.inf), ((60, 50), -np.inf)), b, 0),
        "both signs meet": (put(a, ((30, 30), np.inf), ((32, 31), -np.inf)), abs(b), 0),
        "Inf times 0": (put(a, ((30, 30), np.inf)), zeros, 0),
        "NaN in the filter": (a, put(b, ((4, 6), np.nan)), 0),
        "Inf in the filter, 0 around": (a, put(b, ((4, 6), np.inf)), 0),
        "Inf in the filter, 2 around": (a, put(b, ((4, 6), -np.inf)), 2),
        "NaN around": (a, b, np.nan),
        "Inf around": (a, zeros, np.inf),
        "None around": (a, b, None),
        "all of it": (put(a, ((0, 0), np.nan)), put(b, ((32, 29), np.inf)), -np.inf),
        "low rank": (
            put(a, ((5, 7), np.nan), ((40, 40), np.inf)),
            np.outer(np.ones(33, dtype), np.arange(30, dtype=dtype)),
            0,
        ),
    }


def spreads(result, a, b, *options):
    """Every NaN and infinity where SciPy's is; everything else close."""
    expected = outcome(scipys, a, b, *options)
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    for test in (np.isnan, np.isposinf, np.isneginf):
        np.testing.assert_array_equal(test(result), test(expected), err_msg=test.__name__)
    usual = np.isfinite(expected)
    fill = np.nan if options[2] is None else options[2]
    largest = max(abs(a[np.isfinite(a)]).max(), abs(fill) if np.isfinite(fill) else 0.0)
    scale = largest * abs(b[np.isfinite(b)]).sum()
    bound = (b.size + 2) * np.finfo(expected.dtype).eps * scale
    assert (abs(result[usual] - expected[usual]) <= bound).all()
