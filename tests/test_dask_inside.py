"""What `hetero.dask` does inside: BLAS's threads, samples of rows, a GPU of each worker."""

from __future__ import annotations

import contextlib
import threading
import types

import numpy as np
import pytest
from test_dask import groups, threads  # noqa: F401  a fixture

import hetero
from hetero import devices

distributed, da = pytest.importorskip("distributed"), pytest.importorskip("dask.array")
import hetero.dask  # noqa: E402
from hetero.dask import clustering  # noqa: E402


def test_blas_has_one_thread_where_each_of_dasks_has_a_product(monkeypatch):
    limited = []

    @contextlib.contextmanager
    def one_thread():
        limited.append(threading.current_thread())
        yield

    monkeypatch.setattr(hetero.dask.cpu, "one_thread", one_thread)
    described = {**hetero.dask.cpu.describe(), "cores": 4}
    monkeypatch.setattr(hetero.dask.cpu, "describe", lambda: described)
    A = da.ones((4, 4), chunks=2)
    hetero.dask.matmul(A, A).compute(scheduler="sync")
    hetero.dask.matmul(A, A[:, :1]).rechunk(4).compute()
    assert len(limited) == 4, "of four products on Dask's threads, of eight on the caller's"
    hetero.dask.matmul(A[:2], A[:, :1]).compute()
    hetero.dask.matmul(A, A).compute()
    assert len(limited) == 12, "none of two, all eight"
    assert threading.main_thread() not in limited


def test_initial_centroids_of_many_rows_are_of_a_sample(monkeypatch):
    monkeypatch.setattr(clustering, "_SAMPLE", 100)
    X, seen = groups(2000), []
    lazy = da.from_array(X, chunks=300)

    def first(rows, k, random_state):
        seen.append(len(rows))
        return rows[:k]

    for weights in (None, 2.0, X[:, 0] ** 2):
        options = {"random_state": 0, "n_init": 3, "sample_weight": weights}
        for init in ("k-means++", "random"):
            _, labels, info = hetero.dask.kmeans(lazy, 5, init=init, **options)
            scale = 1.0 if weights is None else np.mean(weights)
            assert info["inertia"] < 6 * X.size * scale, "each group is a cluster"
            assert len(np.unique(labels.compute())) == 5
        hetero.dask.kmeans(lazy, 5, init=first, max_iter=1, **options)
    assert all(100 < count <= 160 for count in seen)  # 32 rows for each cluster
    assert len(seen) == 9


def test_a_block_without_rows_has_labels_and_distances():
    X = groups(30)
    lazy, fitted = da.from_array(X, chunks=((10, 0, 20), (4,))), hetero.KMeans(3).fit(X)
    own = hetero.dask.KMeans(3, init=fitted.cluster_centers_, max_iter=0).fit(lazy)
    np.testing.assert_array_equal(own.predict(lazy).compute(), fitted.labels_)
    np.testing.assert_allclose(own.transform(lazy).compute(), fitted.transform(X), atol=1e-12)


@pytest.mark.parametrize(
    ("worker", "chosen", "options", "used"),
    [
        (0, "cuda:0", {}, "cuda:0"),
        (2, "cuda:0", {}, "cuda:0"),
        ("node-7", "cuda:0", {}, "cuda:1"),
        ("unnumbered", "cuda:0", {}, None),
        (1, "cpu", {}, None),
        (1, "cuda:0", {"device": "cuda:0"}, "cuda:0"),
    ],
)
def test_a_worker_runs_on_the_gpu_of_its_number(monkeypatch, two, worker, chosen, options, used):
    """Where hetero would take a GPU, and none is named."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(distributed, "get_worker", lambda: types.SimpleNamespace(name=worker))
    plan = types.SimpleNamespace(chosen=types.SimpleNamespace(device=chosen))
    monkeypatch.setattr(hetero.dask, "plan", lambda *_, **__: plan)

    def device():
        return hetero.dask.run("matmul", call=lambda **given: given.get("device"), **options)

    assert device() == used
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert device() == options.get("device"), "it has one of its own"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(devices, "found", {})
    assert device() == options.get("device")
