"""Calls of all kinds give with hetero.accel what they give without: results, errors, warnings."""

from __future__ import annotations

import itertools
import warnings
from contextlib import nullcontext
from fractions import Fraction

import numpy as np
import pytest
import scipy.ndimage
import scipy.signal

import hetero

A = np.random.default_rng(0).random((40, 40)) * 9
KERNEL = A[:3, :5] / 9


class Own(np.ndarray):
    pass


def arrays():
    """What calls are given."""
    for dtype in ("f2", "f4", "f8", ">f8", "c8", "i4", "?", "g"):
        yield A.astype(dtype)
    yield np.array([[Fraction(i, j) for i in range(9)] for j in range(1, 10)])
    yield A.view(Own)
    yield np.ma.masked_greater(A, 5)
    yield np.ndarray((40, 40), "f8", bytearray(b"1234" + A.tobytes()), offset=4)  # not aligned
    yield from (np.asfortranarray(A), A[::-1, ::-1], np.broadcast_to(A[:1], A.shape), A[:1, :1])
    yield from (np.zeros((0, 40)), np.zeros((40, 0)), np.stack([A, A]), A[0], A.tolist())
    yield from (np.where(A > 8, value, A) for value in (np.nan, np.inf, 1e307))


PRODUCTS = (
    lambda x: np.matmul(x, x),
    lambda x: np.matmul(x, x, out=np.empty((40, 40), order="F")),
    lambda x: np.matmul(x, x, dtype="f4", casting="unsafe"),
    lambda x: np.matmul(x, x, axes=[(1, 0), (0, 1), (0, 1)]),
    lambda x: np.matmul(x, x, where=True),
    lambda x: np.dot(x, np.transpose(x)),
    lambda x: np.dot(x, x, out=np.empty((40, 40))),
    lambda x: x.dot(b=x),
    lambda x: np.dot(x),
    lambda x: x.dot(c=x),
    lambda x: x.dot(x, x, x),
    lambda x: np.tensordot(x, x, 1),
    lambda x: np.einsum("ij,jk->ki", x, x),
    lambda x: np.einsum("ij,ij", x, x),
    lambda x: np.einsum("ij,jk", x, x, out=np.empty((40, 40))),
    lambda x: np.einsum("ij,jk", x, x, optimize=True),
    lambda x: np.einsum(x, [0, 1], x, [1, 2]),
    lambda x: np.einsum("ij,jk->ii", x, x),
    lambda x: np.einsum("ij,jk", x, x, some=1),
)
KERNELS = (KERNEL, KERNEL.astype("f4"), np.ones((2, 2)), np.ones((50, 3)), np.ones(3), A[:1, :1])


def convolutions(x):
    """Calls of SciPy's functions."""
    signal, ndimage = scipy.signal, scipy.ndimage
    for name in ("convolve2d", "correlate2d", "fftconvolve", "oaconvolve", "convolve"):
        for kernel, mode in itertools.product(KERNELS, ("full", "same", "valid", 1)):
            yield getattr(signal, name), (x, kernel, mode)
    for boundary, value in (("wrap", 0), ("symm", 0), ("fill", 1.5), ("fill", np.nan), ("some", 0)):
        yield signal.convolve2d, (x, KERNEL, "same", boundary, value)
    for axes in (0, (0, 1), None):
        yield signal.fftconvolve, (x, KERNEL, "same", axes)
    for function in (ndimage.convolve, ndimage.correlate):
        for kernel, mode in itertools.product(
            KERNELS, ("reflect", "constant", "grid-wrap", "some")
        ):
            yield function, (x, kernel, None, mode, 0.5)
        for output, origin in ((np.float32, 0), (None, (1, -1)), (None, (0, 0))):
            yield function, (x, KERNEL, output, "reflect", 0.0, origin)


def outcome(call):
    """A result or an error, and the warnings."""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        try:
            result = call()
        except Exception as error:
            result = error
    # What a cast to integers of NaN warns of depends on the memory that SciPy leaves unset.
    texts = {str(one.message) for one in given} - {"invalid value encountered in cast"}
    return result, texts


def assert_same(ours, plain, given):
    assert type(ours) is type(plain)
    if isinstance(plain, Exception):
        assert str(ours) == str(plain)
        return
    for name in ("dtype", "shape", "strides"):
        assert getattr(ours, name, 0) == getattr(plain, name, 0)
    assert str(getattr(ours, "flags", "")) == str(getattr(plain, "flags", ""))
    ours, plain = np.asarray(ours), np.asarray(plain)
    if plain.dtype.kind not in "fc":
        assert (ours == plain).all()
        return
    with np.errstate(all="ignore"):
        largest = np.max(np.abs(plain), where=np.isfinite(plain), initial=0)
    precision = 1e-5 if {given, plain.dtype} & {*map(np.dtype, ("f2", "f4", "c8"))} else 1e-12
    assert np.allclose(ours, plain, rtol=precision, atol=precision * largest, equal_nan=True)


@pytest.mark.parametrize("x", list(arrays()), ids=lambda x: f"{getattr(x, 'dtype', '')}")
def test_what_is_given_back_is_the_same(x, monkeypatch, opencl):
    """By a device too, where a product is one of floats."""
    monkeypatch.setenv("HETERO_ACCEL_LEAST", "0")
    dtype = getattr(x, "dtype", np.dtype("f8"))
    with hetero.install(recording=True) as installed:
        calls = [(call, (x,)) for call in PRODUCTS] + list(convolutions(x))
        for number, (function, given) in enumerate(calls):
            installed.session.least = float("inf")
            plain, warned = outcome(lambda f=function, g=given: f(*g))
            installed.session.least = 0
            with hetero.use(device=opencl) if number < len(PRODUCTS) else nullcontext():
                ours, told = outcome(lambda f=function, g=given: f(*g))
            assert_same(ours, plain, dtype)
            assert told == warned
    if type(x) is np.ndarray and x.shape == (40, 40) and dtype in ("f4", "f8") and x.max() < 99:
        assert int(installed.session.book.sums()[0].split()[0]) > 20  # calls taken
