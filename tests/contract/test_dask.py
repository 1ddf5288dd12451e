"""`hetero.dask`: agreement with NumPy, SciPy and hetero's own functions, whatever the blocks."""

from __future__ import annotations

import itertools
import os
import re
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from scipy import signal

import hetero
from hetero.errors import DeviceNotAvailable, MethodNotAvailable

distributed = pytest.importorskip("distributed")
dask, da = pytest.importorskip("dask"), pytest.importorskip("dask.array")
import hetero.dask  # noqa: E402

rng = np.random.default_rng(7)
KERNELS = ((1, 1), (3, 3), (2, 4), (5, 2), (7, 7))
RTOL = {"float32": 1e-5, "float64": 1e-12, "int64": 0.0}


@pytest.fixture(autouse=True)
def threads():
    """Dask's threaded scheduler, and the same numbers whichever tests run."""
    rng.bit_generator.state = np.random.default_rng(7).bit_generator.state
    with dask.config.set(scheduler="threads", num_workers=2):
        yield


@pytest.fixture(scope="module")
def client():
    """Of a cluster of two processes of a thread each."""
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with (
        mock.patch.dict(os.environ),  # a cluster leaves numbers of threads there
        distributed.LocalCluster(**options) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def numbers(shape, dtype="float64"):
    return (rng.random(shape) * 9).astype(dtype)


def prefixes(array):
    """What tasks are called, without hashes."""
    keys = (key[0] if isinstance(key, tuple) else key for key in array.__dask_graph__())
    return {key.rpartition("-")[0] for key in keys}


# -- Convolution -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", RTOL)
@pytest.mark.parametrize("mode", ["same", "full", "valid"])
def test_convolutions_agree_with_scipy(mode, dtype):
    image = numbers((23, 31), dtype)
    for shape, chunks in itertools.product(KERNELS, ((7, 11), (23, 3))):
        kernel = numbers(shape, dtype)
        lazy = hetero.dask.convolve2d(da.from_array(image, chunks=chunks), kernel, mode)
        wanted = signal.convolve2d(image, kernel, mode)
        assert (lazy.shape, lazy.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_allclose(lazy.compute(), wanted, rtol=RTOL[dtype])


@pytest.mark.parametrize(("boundary", "value"), [("wrap", 0), ("symm", 0), ("fill", 2.5)])
def test_boundaries_agree_with_scipy(boundary, value):
    image, kernel = numbers((13, 9), "int64"), numbers((4, 5))
    for mode in ("same", "full", "valid"):
        lazy = hetero.dask.convolve2d(
            da.from_array(image, chunks=(5, 4)), kernel, mode, boundary, value
        )
        wanted = signal.convolve2d(image, kernel, mode, boundary, value)
        np.testing.assert_allclose(lazy.compute(), wanted, rtol=1e-12)


def test_same_keeps_the_blocks_of_the_image():
    image = da.from_array(numbers((23, 31)), chunks=(7, 11))
    lazy = hetero.dask.convolve2d(image, np.ones((2, 5)), "same")
    assert lazy.chunks[1] == image.chunks[1]
    assert lazy.chunks[0] == image.chunks[0]


def test_blocks_smaller_than_the_kernel_are_merged():
    image = da.from_array(numbers((12, 12)), chunks=2)
    lazy = hetero.dask.convolve2d(image, np.ones((5, 1)), "same")
    assert min(lazy.chunks[0]) >= 3
    assert lazy.chunks[1] == (2,) * 6


def test_a_stack_and_a_kernel_of_dask():
    stack, kernel = numbers((3, 9, 8)), numbers((3, 2))
    lazy = hetero.dask.convolve2d(
        da.from_array(stack, chunks=(2, 4, 5)), da.from_array(kernel, chunks=2), "same"
    )
    wanted = [signal.convolve2d(image, kernel, "same") for image in stack]
    np.testing.assert_allclose(lazy.compute(), wanted, rtol=1e-12)


def test_convolutions_that_are_refused():
    image = da.ones((4, 9), chunks=4)
    with pytest.raises(ValueError, match=r"kernel \(5, 1\) is larger than the image \(4, 9\)"):
        hetero.dask.convolve2d(image, np.ones((5, 1)), "valid")
    with pytest.raises(ValueError, match="'symm' would read 5 points beyond"):
        hetero.dask.convolve2d(image, np.ones((6, 1)), boundary="symm")
    with pytest.raises(ValueError, match="two or more dimensions"):
        hetero.dask.convolve2d(image[0], np.ones((1, 1)))
    with pytest.raises(ValueError, match="mode"):
        hetero.dask.convolve2d(image, np.ones((1, 1)), "both")
    with pytest.raises(ValueError, match="channels last"):
        hetero.dask.convolve2d(da.ones((64, 60, 3)), np.ones((3, 3)))


@pytest.mark.parametrize("function", ["convolve2d", "matmul", "matvec"])
def test_placements_are_refused_at_the_call(function):
    operands = da.ones((4, 4)), np.ones(4) if function == "matvec" else np.ones((4, 4))
    for error, placed in (
        (DeviceNotAvailable, {"device": "cuda:77"}),
        (MethodNotAvailable, {"method": "nonsense"}),
        (TypeError, {"unknown": 1}),
    ):
        with pytest.raises(error):
            getattr(hetero.dask, function)(*operands, **placed)


def test_narrow_blocks_are_no_images_in_colour():
    stack, kernel = numbers((20, 30, 41)), numbers((3, 1))
    lazy = hetero.dask.convolve2d(da.from_array(stack, chunks=(20, 30, 4)), kernel, "same")
    wanted = np.stack([signal.convolve2d(image, kernel, "same") for image in stack])
    np.testing.assert_allclose(lazy.compute(), wanted, rtol=1e-12)


# -- Products --------------------------------------------------------------------------------------

SHAPES = [
    ((7, 5), (5, 6)),
    ((5,), (5, 6)),
    ((7, 5), (5,)),
    ((5,), (5,)),
    ((2, 7, 5), (5, 6)),
    ((2, 7, 5), (1, 5, 6)),
    ((7, 5), (3, 5, 6)),
]


@pytest.mark.parametrize("dtypes", [("float32",) * 2, ("float64", "int64"), ("int8",) * 2])
@pytest.mark.parametrize("shapes", SHAPES)
def test_products_agree_with_numpy(shapes, dtypes):
    A, B = (numbers(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True))
    wanted = np.matmul(A, B)
    for cut in ((2, 3), (4, 4), (9, 2)):
        a, b = (da.from_array(one, chunks=c) for one, c in zip((A, B), cut, strict=True))
        for lazy in (hetero.dask.matmul(*pair) for pair in ((a, b), (A, b), (a, B))):
            assert (lazy.shape, lazy.dtype) == (wanted.shape, wanted.dtype)
            np.testing.assert_allclose(lazy.compute(), wanted, rtol=1e-6)


@pytest.mark.parametrize("shapes", [((7, 5), (5,)), ((2, 7, 5), (2, 5)), ((7, 5), (4, 5))])
def test_products_with_vectors_agree_with_numpy(shapes):
    A, x = map(numbers, shapes)
    lazy = hetero.dask.matvec(da.from_array(A, chunks=2), da.from_array(x, chunks=3))
    np.testing.assert_allclose(lazy.compute(), np.matvec(A, x), rtol=1e-12)
    lazy = hetero.dask.matvec(A, da.from_array(x, chunks=3))
    np.testing.assert_allclose(lazy.compute(), np.matvec(A, x), rtol=1e-12)


def test_a_numpy_operand_is_cut_as_the_other_one():
    B = da.ones((9, 4), chunks=(4, 3))
    assert hetero.dask.matmul(np.ones((5, 9)), B).chunks == ((5,), (3, 1))
    A = da.ones((4, 9), chunks=(3, 4))
    assert len(prefixes(hetero.dask.matmul(A, np.ones((9, 5)))) & {"hetero-matmul", "sum"}) == 2


def test_products_of_shapes_that_do_not_fit():
    with pytest.raises(ValueError, match=r"do not fit: \(2, 3\) and \(4, 2\)"):
        hetero.dask.matmul(da.ones((2, 3)), da.ones((4, 2)))
    with pytest.raises(ValueError, match="matmul"):
        hetero.dask.matmul(da.ones(()), da.ones((4, 2)))


# -- k-means ---------------------------------------------------------------------------------------


def groups(n=503, d=4, dtype="float64"):
    """Rows around five centers."""
    return (rng.normal(size=(n, d)) + 9 * rng.integers(0, 5, (n, 1))).astype(dtype)


def assert_same_clusters(X, lazy, k, **options):
    wanted, labels, info = hetero.kmeans(X, k, device="cpu", **options)
    centroids, own_labels, own_info = hetero.dask.kmeans(lazy, k, **options)
    assert centroids.dtype == wanted.dtype
    assert own_labels.dtype == np.int32
    assert own_labels.chunks[0] == tuple(filter(None, lazy.chunks[0]))
    np.testing.assert_array_equal(own_labels.compute(), labels)
    rtol = 1e-6 if wanted.dtype == np.float32 else 1e-12
    np.testing.assert_allclose(centroids, wanted, rtol=rtol, atol=rtol * np.abs(X).max())
    np.testing.assert_allclose(own_info["inertia"], info["inertia"], rtol=rtol)
    for name in ("iterations", "converged"):
        assert own_info[name] == info[name], name
    return own_info


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("weighted", [False, True])
def test_clusters_from_given_centroids_are_heteros(dtype, weighted):
    X = (groups() * 1000).astype(dtype)  # integers so large that no row lies between centroids
    weights = rng.random(len(X)) if weighted else None
    for tol, share, most in ((1e-4, 0, 300), (0.0, 0.02, 300), (0.0, 0, 3), (0.0, 0, 0)):
        options = {"init": X[:6].astype(float), "sample_weight": weights, "label_tol": share}
        assert_same_clusters(X, da.from_array(X, chunks=(97, 3)), 6, tol=tol, max_iter=most,
                             **options)  # fmt: skip


def test_empty_clusters_get_the_farthest_rows():
    X = groups()
    init = np.concatenate([X[:2], np.full((3, 4), 1e4) + np.arange(3)[:, None]])
    info = assert_same_clusters(X, da.from_array(X, chunks=100), 5, init=init)
    assert info["iterations"] > 1


@pytest.mark.parametrize("init", ["k-means++", "random", lambda X, k, random_state: X[:k]])
def test_initial_centroids_of_few_rows_are_heteros(init):
    X, weights = groups(), rng.random(503)
    lazy = da.from_array(X, chunks=(200, 4))
    for seed in range(2):
        options = {"random_state": seed, "sample_weight": weights, "n_init": 2}
        assert_same_clusters(X, lazy, 6, init=init, **options)


@pytest.mark.parametrize(("init", "rest"), [("k-means++", 0), ("random", 0), ("random", 1e-9)])
def test_few_rows_with_weight_among_many_get_the_centroids(init, rest):
    n = 140_000
    X, weights = rng.random((n, 2)), np.full(n, rest)
    weights[[5, 70_000, n - 1]] = 1.0
    for seed in range(3):
        options = {"init": init, "sample_weight": weights, "random_state": seed}
        for call, rows in (
            (hetero.kmeans, X),
            (hetero.dask.kmeans, da.from_array(X, chunks=n // 4)),
        ):
            centroids, _, info = call(rows, 3, **options)
            assert info["inertia"] <= n * rest
            np.testing.assert_allclose(
                sorted(centroids.tolist()), sorted(X[weights == 1.0].tolist()), atol=n * rest
            )


def test_the_best_start_counts():
    X = groups(200)
    alone = [
        hetero.dask.kmeans(da.from_array(X, chunks=60), 5, init="random", random_state=state)
        for state in [np.random.RandomState(5)] * 4
    ]
    best = hetero.dask.kmeans(
        da.from_array(X, chunks=60), 5, init="random", random_state=5, n_init=4
    )
    inertias = [info["inertia"] for _, _, info in alone]
    assert best[2]["inertia"] == min(inertias) < max(inertias)


def test_blocks_without_rows_and_without_weight():
    X = groups(30)
    lazy = da.from_array(X, chunks=((10, 0, 10, 10), (4,)))
    weights = np.repeat([1.0, 0.0, 2.0], 10)
    assert_same_clusters(X, lazy, 3, init=X[:3], sample_weight=weights)


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
def test_empty_images_are_heteros(mode):
    empty, kernel = np.ones((0, 5)), np.ones((1, 1))
    found = outcome(lambda: hetero.dask.convolve2d(da.from_array(empty), kernel, mode).compute())
    assert found == outcome(lambda: hetero.convolve2d(empty, kernel, mode))


def outcome(call):
    """Shape and dtype of a result, or the error."""
    try:
        result = call()
    except ValueError as error:
        return str(error)
    return result.shape, result.dtype


def test_what_clustering_refuses():
    X = groups(30)
    lazy = da.from_array(X, chunks=10)
    with pytest.raises(ValueError, match=r"n_samples=30 should be >= n_clusters=31"):
        hetero.dask.kmeans(lazy, 31)
    with pytest.raises(ValueError, match=r"sample_weight.shape == \(3,\), expected \(30,\)"):
        hetero.dask.kmeans(lazy, 3, sample_weight=np.ones(3))
    with pytest.raises(ValueError, match="at least one non-zero"):
        hetero.dask.kmeans(lazy, 3, sample_weight=0)
    with pytest.raises(ValueError, match="sample_weight contains NaN"):
        hetero.dask.kmeans(lazy, 3, sample_weight=np.where(np.arange(30) == 20, np.nan, 1))
    with pytest.raises(ValueError, match=r"initial centers \(2, 4\) does not match"):
        hetero.dask.kmeans(lazy, 3, init=X[:2])
    masked = da.ma.masked_less(lazy, X.mean())
    with pytest.raises(ValueError, match="blocks of X must be NumPy arrays, got MaskedArray"):
        hetero.dask.kmeans(masked, 3)
    with pytest.raises(
        ValueError, match="blocks of sample_weight must be NumPy arrays, got Masked"
    ):
        hetero.dask.kmeans(lazy, 3, sample_weight=masked[:, 0])
    for init in ("k-means++", X[:3]):
        with pytest.raises(ValueError, match="Input X contains NaN"):
            hetero.dask.kmeans(da.where(lazy == X[20, 0], np.nan, lazy), 3, init=init)


def test_fewer_distinct_clusters_are_a_warning():
    with pytest.warns(RuntimeWarning, match=r"distinct clusters \(1\) found smaller"):
        hetero.dask.kmeans(da.ones((9, 2), chunks=4), 3, random_state=0)


def test_the_estimator_is_heteros():
    X, weights = groups(), rng.random(503)
    lazy = da.from_array(X, chunks=(97, 3))
    options = {"init": X[:5], "tol": 0.0, "label_tol": 0.01}
    own = hetero.dask.KMeans(5, **options).fit(lazy, sample_weight=weights)
    other = hetero.KMeans(5, **options).fit(X, sample_weight=weights)
    np.testing.assert_array_equal(own.labels_.compute(), other.labels_)
    for name in ("cluster_centers_", "inertia_", "n_iter_", "n_features_in_"):
        np.testing.assert_allclose(getattr(own, name), getattr(other, name), rtol=1e-12)
    np.testing.assert_array_equal(own.predict(lazy[:50]).compute(), other.predict(X[:50]))
    far = other.transform(X)  # by products, of which the largest distance decides the rounding
    np.testing.assert_allclose(own.transform(lazy).compute(), far, rtol=0, atol=1e-13 * far.max())
    np.testing.assert_allclose(
        own.score(lazy, sample_weight=weights), other.score(X, None, weights)
    )
    small = hetero.dask.KMeans(5, init=X[:5], tol=0.0).fit(lazy.astype("float32"))
    assert small.transform(lazy.astype("float32")).dtype == np.float32  # as it is computed
    assert own.get_params()["tol"] == 0.0
    with pytest.raises(ValueError, match="X has 3 features, expected 4"):
        own.predict(lazy[:, :3])
    with pytest.raises(ValueError, match="X must have 2 dimensions"):
        own.predict(X[0])
    later = own.predict(X[:50].tolist())
    expected = other.predict(X[:50])
    own.cluster_centers_[:] = 0.0
    np.testing.assert_array_equal(later.compute(), expected)
    with pytest.raises(ValueError, match="not fitted"):
        hetero.dask.KMeans().predict(lazy)


# -- What holds for all ----------------------------------------------------------------------------


def test_nothing_is_computed_before_it_is_asked_for():
    seen = []

    def block(number):
        seen.append(number)
        return np.full((4, 4), float(number))

    parts = [da.from_delayed(dask.delayed(block)(i), (4, 4), float) for i in range(2)]
    X = da.concatenate(parts)
    fitted = hetero.dask.KMeans(1, init=np.ones((1, 4))).fit(da.ones((4, 4)))
    lazy = [
        hetero.dask.convolve2d(X, np.ones((3, 3)), "same"),
        hetero.dask.matmul(X, np.ones((4, 2))),
        hetero.dask.matvec(X, da.ones(4)),
        fitted.predict(X),
        fitted.transform(X),
    ]
    assert not seen
    for one in lazy:
        seen.clear()
        one.compute()
        assert sorted(seen) == [0, 1]


def test_unknown_chunks_are_dasks_error():
    X = da.ones((8, 4), chunks=4)
    unknown = X[X[:, 0] > 0]
    for call in (
        lambda: hetero.dask.convolve2d(unknown, np.ones((3, 3))),
        lambda: hetero.dask.matmul(np.ones((2, 8)), unknown),
        lambda: hetero.dask.kmeans(unknown, 2),
    ):
        with pytest.raises(ValueError, match="A possible solution"):
            call()
    assert hetero.dask.matmul(unknown, np.ones((4, 2))).compute().shape == (8, 2)


def test_tasks_have_names():
    X = da.ones((8, 4), chunks=4)
    assert "hetero-convolve2d" in prefixes(hetero.dask.convolve2d(X, np.ones((3, 3))))
    assert "hetero-matmul" in prefixes(hetero.dask.matmul(X, X.T))
    seen = []
    with dask.callbacks.Callback(pretask=lambda key, *_: seen.append(dask.utils.key_split(key))):
        hetero.dask.kmeans(X, 1, init=np.ones((1, 4)))
    assert seen.count("hetero-kmeans") == 4, "an iteration and the last labels, of two blocks"


@pytest.mark.parametrize("name", ["solve_cg", "solve_poisson"])
def test_solves_are_refused(name):
    with pytest.raises(
        NotImplementedError, match=rf"{name} .* halos and sums .* hetero.mpi.{name}"
    ):
        getattr(hetero.dask, name)(da.ones((4, 4)), da.ones(4))


def test_without_dask_the_error_says_what_to_install(monkeypatch):
    for name in [n for n in sys.modules if n.startswith("hetero.dask")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(hetero, "dask", hetero.dask)  # put back
    monkeypatch.setitem(sys.modules, "dask.array", None)
    with pytest.raises(ImportError, match=r"needs Dask; pip install 'dask\[array\]' distributed"):
        import hetero.dask as _  # noqa: F401


# -- On a cluster ----------------------------------------------------------------------------------


def test_on_a_cluster_of_two_processes(client):
    X, A = groups(), numbers((60, 60))
    with dask.config.set(scheduler="distributed"):
        lazy = da.from_array(X, chunks=(97, 4))
        assert_same_clusters(X, lazy, 5, init=X[:5])
        a = da.from_array(A, chunks=23)
        np.testing.assert_allclose(hetero.dask.matmul(a, A).compute(), A @ A, rtol=1e-12)
        found = hetero.dask.convolve2d(a, A[:5, :4], "same").compute()
    np.testing.assert_allclose(found, signal.convolve2d(A, A[:5, :4], "same"), rtol=1e-12)


def test_the_example_of_the_page_runs():
    page = (Path(__file__).parents[2] / "docs" / "dask.md").read_text("utf-8")
    (example,) = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    names = {}
    exec(compile(example, "docs/dask.md", "exec"), names)
    assert names["info"]["converged"]
    smooth = names["smooth"].compute()
    np.testing.assert_allclose(
        names["product"][:3].compute(), smooth[:3] @ names["image"].T.compute(), rtol=1e-4
    )
