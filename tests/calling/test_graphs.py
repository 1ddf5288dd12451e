"""`hetero.graph`: calls on device arrays captured once, launched many times."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import hetero
from hetero import devices
from hetero.errors import DeviceNotAvailable, GraphError

rng = np.random.default_rng(8)


def test_without_a_cuda_device_it_says_so():
    here = any(name.startswith("cuda") for name in devices.available())
    message = (
        "one of 'cuda:0'.*, got 'cuda:99'" if here else "need a CUDA device, and there is none"
    )
    with pytest.raises(DeviceNotAvailable, match=message):
        hetero.graph("cuda:99")
    if not here:
        with pytest.raises(DeviceNotAvailable, match=message):
            hetero.graph()


@pytest.fixture
def cupy():
    yield pytest.importorskip("cupy")
    assert not devices.troubles(), "the device failed, the CPU answered"


def random(cupy, *shape, dtype="float32"):
    return cupy.asarray(rng.standard_normal(shape).astype(dtype))


def close(result, exact):
    np.testing.assert_allclose(result.get(), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["tiled", "library"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_are_computed_by_the_launch(cupy, dtype, method):
    A, B = random(cupy, 60, 4000, dtype=dtype), random(cupy, 4000, 40, dtype=dtype)
    x = random(cupy, 4000, dtype=dtype)  # long sums: split, with a second kernel and scratch memory
    y = cupy.zeros(60, dtype)
    with hetero.graph() as g:
        C = hetero.matmul(A, B, method=method)
        hetero.matvec(A, x, out=y, method="tiled")
    assert not y.any()
    for _ in range(3):
        A *= 0.5
        B += 0.25
        expected = A.get() @ B.get(), A.get() @ x.get()
        for _ in range(4):  # what else uses the pool must not meet the graph's scratch memory
            hetero.matmul(A, B, method="tiled")
        g.launch()
        close(C, expected[0])
        close(y, expected[1])


@pytest.mark.gpu
def test_results_feed_the_next_call(cupy):
    A = random(cupy, 300, 300) / 20
    x = random(cupy, 300)
    with hetero.graph() as g:
        y = x
        for _ in range(10):
            y = hetero.matvec(A, y)
    expected = x.get()
    for _ in range(10):
        expected = A.get() @ expected
    g.launch()
    close(y, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["direct", "separable", "fft"])
def test_convolutions(cupy, method):
    from scipy import signal

    image = random(cupy, 700, 700)
    line = rng.random(9).astype("float32")
    filter = np.outer(line, line)
    hetero.convolve2d(image, filter, "same", device="cuda", method=method)
    with hetero.graph() as g:
        result = hetero.convolve2d(image, filter, "same", method=method)
    for _ in range(2):
        image *= 0.5
        g.launch()
        close(result, signal.convolve2d(image.get(), filter, "same"))


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["direct", "separable", "fft"])
def test_filters_that_only_the_graph_knows(cupy, method):
    """What is made for a filter inside the block is computed by the launch, and by nothing else."""
    from scipy import signal

    image = random(cupy, 700, 700)
    line = rng.random(7).astype("float32")
    filter = np.outer(line, line)
    expected = signal.convolve2d(image.get(), filter, "same")
    with hetero.graph() as g:
        later = hetero.convolve2d(image, filter, "same", method=method)
    now = hetero.convolve2d(image, filter, "same", device="cuda", method=method)
    close(now, expected)
    g.launch()
    close(later, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["direct", "separable", "fft"])
def test_filters_that_are_forgotten_meanwhile(cupy, method):
    from scipy import signal

    image = random(cupy, 300, 300)
    line = rng.random(5).astype("float32")
    filter = np.outer(line, line)
    options = {"device": "cuda", "method": "tiled"}
    hetero.convolve2d(image, filter, "same", **options)
    with hetero.graph() as g:
        result = hetero.convolve2d(image, filter, "same", method=method)
    for size in range(20):  # more than are remembered, in memory that was given back
        hetero.convolve2d(image, np.outer(line, line) * (size + 2), "same", **options)
    g.launch()
    close(result, signal.convolve2d(image.get(), filter, "same"))


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["direct", "fft"])
def test_filters_on_the_device_outlive_their_arrays(cupy, method):
    from scipy import signal

    image, filter = random(cupy, 300, 300), random(cupy, 20, 20)
    expected = signal.convolve2d(image.get(), filter.get(), "same")
    with hetero.graph() as g:
        result = hetero.convolve2d(image, filter, "same", method=method)
    del filter
    gc.collect()
    other = [random(cupy, 20, 20) for _ in range(8)]
    g.launch()
    np.testing.assert_allclose(result.get(), expected, rtol=1e-3, atol=1e-3)
    del other


@pytest.mark.gpu
def test_what_a_graph_holds_outlives_its_arrays(cupy):
    A, x = random(cupy, 500, 500), random(cupy, 500)
    a, v = A.get().astype(float), x.get().astype(float)
    expected, bound = a @ (a @ v), 1000 * np.finfo("float32").eps * (abs(a) @ (abs(a) @ abs(v)))
    y = cupy.empty(500, "float32")
    with hetero.graph() as g:
        hetero.matvec(A, hetero.matvec(A, x), out=y)
    del A, x
    gc.collect()
    other = [random(cupy, 500, 500) for _ in range(4)] + [random(cupy, 500) for _ in range(8)]
    g.launch()
    assert (abs(y.get() - expected) <= bound).all()
    del other


@pytest.mark.gpu
def test_what_cannot_be_captured(cupy):
    A, x = random(cupy, 64, 64), random(cupy, 64)
    for call in (
        lambda: hetero.matvec(A.get(), x.get()),
        lambda: hetero.matvec(A, x.get()),
        lambda: hetero.solve_cg(A, x),
        lambda: hetero.graph().__enter__(),
    ):
        g = hetero.graph()
        with pytest.raises(GraphError), g:
            call()
        with pytest.raises(GraphError, match="nothing to launch"):
            g.launch()
    close(hetero.matvec(A, x), A.get() @ x.get())  # and nothing stays behind
    with pytest.raises(GraphError, match="captured once"), g:
        pass


@pytest.mark.gpu
def test_another_thread_is_not_captured(cupy):
    from concurrent.futures import ThreadPoolExecutor

    A, x = random(cupy, 64, 64), random(cupy, 64)
    options = {"device": "cuda", "method": "tiled"}
    for _ in range(2):
        hetero.matvec(A, x, **options)
    with hetero.graph() as g, ThreadPoolExecutor(1) as pool:
        now = pool.submit(lambda: hetero.matvec(A, x, **options).get()).result()
        later = hetero.matvec(A, x, method="tiled")
    np.testing.assert_allclose(now, A.get() @ x.get(), rtol=1e-4, atol=1e-4)
    g.launch()
    close(later, A.get() @ x.get())
