"""kmeans on several devices by rows, in ranges of rows, and where a device fails on the way."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import scipy.sparse
from fakes import failing, moves, noting
from runtimes import opencl_device
from scipy.spatial.distance import cdist

import hetero
from hetero import devices
from hetero.errors import DeviceError
from hetero.ops.kmeans import problem
from hetero.ops.kmeans import ranges as moving
from hetero.ops.kmeans.device import DeviceRows
from hetero.ops.kmeans.fit import Fit, fit, most_changed
from hetero.ops.kmeans.ranges import RangeRows
from hetero.pricing import places
from hetero.profile import inventory


@pytest.fixture
def device():
    return opencl_device()


@pytest.fixture
def cut(monkeypatch):
    """``cut(X, rows, stay)``: a device has room for ``stay`` ranges of so many rows, and for what
    goes through it."""

    def cut(X, rows, stay=0):
        room = (stay + 3) * rows * (2 * X[0].nbytes + 16) / moving._ROOM + 64
        monkeypatch.setattr(places, "room", lambda info: room)
        monkeypatch.setattr(moving, "_RANGES", 1)
        monkeypatch.setattr(moving, "_MOST", rows * X[0].nbytes)

    return cut


def points(n, d, k, dtype="float64", seed=0):
    rng = np.random.default_rng(seed)
    centres = 8 * rng.random((k, d))
    X = centres[rng.integers(k, size=n)] + rng.standard_normal((n, d))
    return np.ascontiguousarray(X.astype(dtype))


def parted(used, X, k, weights=None, **asked):
    asked = {"maxiter": 300, "tol": 1e-4, "init": "k-means++", **asked}
    counted = asked.get("label_tol", 0.0) > 0.0
    rows = RangeRows(used, problem(X, k, sample_weight=weights), X, weights, counted=counted)
    run, labels, centroids = fit(rows, Fit(**asked, random=np.random.RandomState(5)), k)
    return centroids, labels, run._asdict()


def agrees(found, X, k, **options):
    expected = hetero.kmeans(X, k, random_state=5, device="cpu", **options)
    np.testing.assert_array_equal(found[1], expected[1])
    np.testing.assert_allclose(found[0], expected[0], rtol=0, atol=1e-12 * abs(X).max())
    np.testing.assert_allclose(found[2]["inertia"], expected[2]["inertia"], rtol=1e-9)
    assert found[2]["iterations"] == expected[2]["iterations"]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("number", "rows"), [(2, None), (3, None), (2, 70), (1, 1), (1, 99)])
def test_shares_and_ranges(device, number, rows, weighted, cut):
    """Of rows that stay on several devices, and of ranges that go through each."""
    n = 5 if rows == 1 else 400
    X, weights = points(n, 3, 4), np.random.default_rng(1).random(n) if weighted else None
    if rows:
        cut(X, rows)
    emptied = X[:4] + [[0.0], [0.0], [1e3], [1e3]]
    for init in ("k-means++", "random", emptied, lambda X, k, random_state: X[:k]):
        starts = 2 if isinstance(init, str) and init == "random" else 1
        found = parted([device] * number, X, 4, weights, init=init, starts=starts)
        agrees(found, X, 4, init=init, n_init=starts, sample_weight=weights)
    assert not devices.troubles()


@pytest.mark.parametrize("weighted", [False, True])
def test_seeds_of_several_parts(device, weighted):
    """By rows of one device and from the host: the CPU's, over parts of rows and of columns."""
    X, weights = points(5000, 35, 6), np.random.default_rng(1).random(5000) if weighted else None
    asked, whole = {"max_iter": 2, "sample_weight": weights}, {"device": device.name}
    agrees(hetero.kmeans(X, 6, random_state=5, **asked, **whole), X, 6, **asked)
    agrees(parted(2 * [device], X, 6, weights, maxiter=2), X, 6, **asked)


@pytest.mark.parametrize("stay", [0, 5])
def test_ranges_that_stay(device, stay, monkeypatch, cut):
    """Rows go up once where they have room, the others once an iteration but for two ranges."""
    X = points(1000, 2, 3)
    cut(X, 100, stay)
    sent = moves(monkeypatch, type(device), X[:100].nbytes)
    found = parted([device], X, 3, init=X[:3])
    agrees(found, X, 3, init=X[:3])
    others = 10 - stay - 2
    uploads = sent.count(("upload", X[:100].nbytes))
    assert abs(uploads - 10 - found[2]["iterations"] * others) <= others


@pytest.mark.parametrize("offset", [-16.0, 3000.3])
@pytest.mark.parametrize(("number", "rows"), [(1, 700), (3, None), (2, 700)])
def test_rows_as_near_to_two_centroids_get_the_labels_of_all(device, number, rows, offset, cut):
    """In float32 what is subtracted decides them: one mean of all, in one device's arithmetic."""
    rng = np.random.default_rng(4)
    X = np.sort(rng.integers(0, 64, (4000, 3)), axis=0) / 2 + offset
    X, init = X.astype(np.float32), (rng.integers(0, 32, (40, 3)) + offset).astype(np.float32)
    made = problem(X, 40)
    with device.active():
        buffer, _owner = device.allocate(X.nbytes)
        device.upload(X, buffer)
        whole = DeviceRows(device, made, buffer)
        whole.begin(init - whole.mean)
        expected, added = whole.labels, whole.sums()[0]
    if rows:
        cut(X, rows)
    found = RangeRows([device] * number, made, X)
    np.testing.assert_array_equal(found.mean, whole.mean)
    assert whole.mean.any() == (offset > 0)
    found.restart(init)
    found.assign(init - found.mean)
    np.testing.assert_array_equal(found.labels, expected)
    sums, _ = found.sums()
    np.testing.assert_allclose(sums, added, rtol=1e-5, atol=1e-5 * abs(added).max())


# -- Little room, and failures ---------------------------------------------------------------------


def test_rows_that_the_device_has_no_room_for(device, monkeypatch):
    """By what it has, only where the device is named."""
    X, made, info = points(500, 3, 4), [], {**device.describe(), "memory_bytes": 2000}
    noting(monkeypatch, type(device), "allocate", made.append)
    monkeypatch.setattr(type(device), "describe", lambda self: info)
    inventory.changed()
    assert hetero.plan("kmeans", X, 4).chosen.device == "cpu"
    found = hetero.kmeans(X, 4, random_state=5, device=device.name)
    assert found[2]["device"] == device.name
    assert max(made) < X.nbytes, "in ranges"
    agrees(found, X, 4)
    assert not devices.troubles()


@pytest.mark.parametrize("init", ["k-means++", "random"])
def test_the_cpu_makes_a_fit_anew(device, init, monkeypatch):
    """From the same random numbers, though some were drawn before the device failed."""
    X, given = points(600, 3, 6), {"init": init, "n_init": 2, "method": "lloyd"}
    expected = hetero.kmeans(X, 6, **given, random_state=5, device="cpu")
    looks = failing(monkeypatch, DeviceRows, "state", 4, DeviceError("gone"))
    random = np.random.RandomState(5)
    centroids, labels, info = hetero.kmeans(X, 6, **given, random_state=random, device=device.name)
    assert len(looks) == 4
    assert (info["device"], info["iterations"]) == ("cpu", expected[2]["iterations"])
    np.testing.assert_array_equal(labels, expected[1])
    np.testing.assert_array_equal(centroids, expected[0])


# -- What holds in every place ---------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Number of distinct clusters")
@pytest.mark.parametrize("way", ["lloyd", "products", "csr", "device", 2, 1])
def test_labels_are_nearest_with_more_clusters_than_distinct_rows(device, way, cut):
    """Clusters without rows get none that lies on its centroid but for rounding."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        distinct = rng.integers(-9, 9, (3, 7)).astype(float)
        X, init = distinct[np.arange(17) // 6 % 3], 9 * rng.standard_normal((15, 7))
        if isinstance(way, int):
            if way == 1:
                cut(X, 9)
            centroids, labels, info = parted([device] * way, X, 15, init=init)
        else:
            method = {"csr": "products", "device": "lloyd"}.get(way, way)
            where = device.name if way == "device" else "cpu"
            given = scipy.sparse.csr_array(X) if way == "csr" else X
            placed = {"device": where, "method": method}
            centroids, labels, info = hetero.kmeans(given, 15, init=init, **placed)
        far = ((X[:, None] - centroids) ** 2).sum(axis=2)
        own = far[np.arange(len(X)), labels]
        assert info["converged"]
        np.testing.assert_allclose(own, far.min(axis=1), rtol=0, atol=1e-12)
        np.testing.assert_allclose(info["inertia"], own.sum(), rtol=1e-9, atol=1e-12)


def test_sparse_rows_without_an_entry():
    centroids, labels, info = hetero.kmeans(scipy.sparse.csr_array((3, 2)), 1)
    assert not centroids.any()
    assert not labels.any()
    assert info["inertia"] == 0.0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("max_iter", [0, 3])
@pytest.mark.parametrize("where", ["lloyd", "products", "device", "on device", 1, 2])
def test_rows_that_are_not_finite(device, where, max_iter):
    """Found wherever they go, in ranges and shares, too, and where they lie."""
    X = points(50, 3, 2)
    asked = {"init": X[:2].copy(), "max_iter": max_iter, "tol": 0.0}
    placed = {"device": device.name} if where == "device" else {"device": "cpu", "method": where}

    def fitted():
        if isinstance(where, int):
            given = Fit(max_iter, 0.0, asked["init"])
            rows = RangeRows([device] * where, problem(X, 2, **asked), X, given=given.given)
            return fit(rows, given, 2)
        if where != "on device":
            return hetero.kmeans(X, 2, **asked, **placed)
        with hetero.use(device=device.name, results="device"):
            return hetero.kmeans(hetero.matmul(X, np.eye(3)), 2, **asked)

    fitted()
    for X[17, 1] in (np.nan, np.inf, -np.inf):
        with pytest.raises(ValueError, match="Input X contains"):
            fitted()


@pytest.mark.parametrize("n", [5, 5000])
@pytest.mark.parametrize("k", [8, 140])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_get_the_nearest_centroid_of_equals_the_first(n, k, dtype):
    """By NumPy for few rows; by the loop, with either order of a product. Numbers are exact."""
    whole = np.random.default_rng(1).integers(0, 9, (n + k, 4)).astype(dtype)
    rows, fitted = whole[:n], hetero.KMeans(k, init="random", max_iter=1).fit(whole)
    half = whole[n::4]
    fitted.cluster_centers_ = np.repeat(np.concatenate([half, 8 - half]), 2, axis=0)
    apart = cdist(rows, fitted.cluster_centers_, "sqeuclidean")
    np.testing.assert_array_equal(fitted.predict(rows), apart.argmin(axis=1))
    score = fitted.score(rows, sample_weight=np.arange(n))
    np.testing.assert_allclose(-score, np.arange(n) @ apart.min(axis=1))
    given = {"init": fitted.cluster_centers_, "max_iter": 0, "device": "cpu"}  # tol is the default
    for method in ("lloyd", "products"):
        _, labels, _ = hetero.kmeans(whole, k, method=method, **given)
        np.testing.assert_array_equal(labels[:n], apart.argmin(axis=1))
    rows[-1, 2] = np.inf
    with pytest.raises(ValueError, match="X contains infinity"):
        fitted.predict(rows)


# -- Fits that are over when few labels change: in the same iteration wherever they compute --------

N, K = 2601, 5  # more rows than the threads of all blocks that count, on two cores


@cache
def rows():
    return np.random.default_rng(4).standard_normal((N, 3))


@cache
def changes():
    """How many labels each of Lloyd's iterations changes, as in a book."""
    X, counts, labels = rows(), [], np.full(N, -1)
    centroids = X[:K]
    while not counts or counts[-1]:
        new = ((X[:, None] - centroids) ** 2).sum(axis=2).argmin(axis=1)
        counts.append(int((new != labels).sum()))
        labels, centroids = new, np.array([X[new == c].mean(axis=0) for c in range(K)])
    return counts


@pytest.mark.parametrize("place", ["products", "lloyd", "opencl", "shares", "ranges"])
def test_the_last_iteration(device, place, cut):
    """One call after the other: the shape is remembered, the share is another."""
    if place == "ranges":
        cut(rows(), 250)
    options, counts = {"init": rows()[:K], "tol": 0.0}, changes()
    assert len(counts) > 20
    shares = {0.0: len(counts), 1.0: 1}  # and the iteration that is the last one
    for at in (1, 5, 12, 13, len(counts) - 2):
        for most in (counts[at], counts[at] - 0.5):  # half a label below
            shares[most / N] = next(i for i, count in enumerate(counts, 1) if count <= most)
    for share, iterations in shares.items():
        if place in ("shares", "ranges"):
            used = [device] * (3 if place == "shares" else 2)
            centroids, labels, info = parted(used, rows(), K, label_tol=share, **options)
        else:
            at = (
                {"device": device.name} if place == "opencl" else {"device": "cpu", "method": place}
            )
            centroids, labels, info = hetero.kmeans(rows(), K, label_tol=share, **options, **at)
        assert (info["iterations"], info["converged"]) == (iterations, True), share
        nearest = ((rows()[:, None] - centroids) ** 2).sum(axis=2).argmin(axis=1)
        np.testing.assert_array_equal(labels, nearest)


@pytest.mark.parametrize("share", [0.0, 1e-9, 0.002, 0.02, 0.2])
def test_with_empty_clusters_and_several_starts(share):
    """Where the host gives the centroids of an iteration it decides too; a start counts anew."""
    far = np.concatenate([rows()[:2], np.full((3, 3), 1e4) + np.arange(3)[:, None]])
    for options in ({"init": far}, {"init": "random", "n_init": 3, "random_state": 7}):
        options |= {"tol": 0.0, "label_tol": share}
        runs = [
            hetero.kmeans(rows(), K, device=device, method=method, **options)
            for device, method in (("cpu", "products"), (opencl_device().name, "lloyd"))
        ]
        assert runs[0][2]["iterations"] == runs[1][2]["iterations"]
        np.testing.assert_array_equal(runs[0][1], runs[1][1])


def test_shares_of_labels():
    """One that is a number of labels is that number; what is no share is refused."""
    for n in (1, 3, 1000, 12_345, 488_565):
        for most in {0, 1, n // 3, n - 1, n}:
            assert most_changed(most / n, n) == most
            assert most_changed((most + 0.999) / n, n) == most
        assert most_changed(1e308, n) == n
    for share in (-0.1, np.inf, np.nan, "0.1", None):
        with pytest.raises(ValueError, match=r"'label_tol' parameter of KMeans must be a float"):
            hetero.kmeans(rows(), K, label_tol=share)
