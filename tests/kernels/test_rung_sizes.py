"""Every rung of every ladder at the sizes that reports found wrong, and at filters up to 513."""

from __future__ import annotations

import numpy as np
import pytest
import runtimes
from scipy import signal

import hetero
import hetero.ops
from hetero import registry
from hetero.errors import MethodNotAvailable
from hetero.kernels.convolution.rungs import held_taps

SIZES = (5, 8, 10, 32, 33, 100)


def rungs(operation):
    return [row.method for row in registry.rungs(operation, "opencl")]


@pytest.fixture(scope="module", params=["opencl", pytest.param("cuda", marks=pytest.mark.gpu)])
def where(request):
    cuda = request.param == "cuda"
    return {"device": "cuda:0" if cuda else runtimes.opencl_device().name}


@pytest.fixture
def draw():
    rng = np.random.default_rng(0)
    return lambda *shape: rng.uniform(-1, 1, shape)


@pytest.mark.parametrize("rung", rungs("matmul"))
def test_products(rung, where, draw):
    for n in SIZES:
        A, B = draw(n, n), draw(n, n)
        np.testing.assert_allclose(hetero.matmul(A, B, **where, method=rung), A @ B, atol=1e-12)


@pytest.mark.parametrize("rung", rungs("matvec"))
def test_products_with_a_vector(rung, where, draw):
    for n in (*SIZES, 511, 512, 513, 1025):  # some around four rows for each of 128 threads
        A, x = draw(n, n), draw(n)
        np.testing.assert_allclose(hetero.matvec(A, x, **where, method=rung), A @ x, atol=1e-12)


@pytest.mark.parametrize("rung", rungs("convolve2d"))
def test_convolutions(rung, where, draw):
    for taps in (3, 15, 63):
        filter = draw(taps, taps)
        for n in SIZES:
            image = draw(n, n)
            result = hetero.convolve2d(image, filter, "same", **where, method=rung)
            np.testing.assert_allclose(result, signal.convolve2d(image, filter, "same"), atol=1e-11)


@pytest.mark.parametrize("rung", rungs("convolve2d"))
def test_a_filter_of_513(rung, where, draw):
    """Where its taps do not fit, that is the reason, and a rung is named that takes them."""
    image, filter = draw(517, 520), draw(513, 513)
    call = {"mode": "valid", **where, "method": rung}
    if rung == "constant":
        with pytest.raises(MethodNotAvailable, match="room for 8192 taps, not 513 x 513; 'naive'"):
            hetero.convolve2d(image, filter, **call)
    else:
        expected = signal.fftconvolve(image, filter, "valid")
        np.testing.assert_allclose(hetero.convolve2d(image, filter, **call), expected, atol=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_constant_memory_has_room_for(dtype, where, draw):
    """All of it, one tap more; a filter with gaps, which is packed before."""
    most = held_taps(dtype)
    filter = draw(128, most // 128).astype(dtype)
    image = draw(128, most // 128 + 5).astype(dtype)
    call = {"mode": "valid", **where, "method": "constant"}
    expected = signal.fftconvolve(image, filter, "valid")
    for given in (
        filter,
        np.repeat(filter, 2, axis=1)[:, ::2],
        filter[::-1, ::-1].copy()[::-1, ::-1],
    ):
        result = hetero.convolve2d(image, given, **call)
        np.testing.assert_allclose(result, expected, atol=1e-2 if dtype == "float32" else 1e-10)
    with pytest.raises(MethodNotAvailable, match=f"has room for {most} taps, not 1 x {most + 1}"):
        hetero.convolve2d(np.ones((2, most + 9), dtype), np.ones((1, most + 1), dtype), **call)


@pytest.mark.parametrize("rung", rungs("poisson"))
def test_sweeps(rung, where, draw):
    for n in SIZES:
        call = {"rtol": 0.0, "maxiter": 9, **where}
        f = draw(n, n)
        u = hetero.solve_poisson(f, **call, method=rung)
        assert np.array_equal(u, hetero.solve_poisson(f, **call, method="jacobi"))


@pytest.mark.parametrize("rung", rungs("kmeans"))
def test_clusters(rung, where, draw):
    for n in SIZES:
        X = draw(n, 7)
        found = hetero.KMeans(3, init=X[:3], n_init=1, max_iter=4, **where, method=rung).fit(X)
        expected = hetero.KMeans(3, init=X[:3], n_init=1, max_iter=4, device="cpu").fit(X)
        assert np.array_equal(found.labels_, expected.labels_)
        np.testing.assert_allclose(found.cluster_centers_, expected.cluster_centers_, atol=1e-12)
