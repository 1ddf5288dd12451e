"""kmeans on several devices by rows, in blocks of rows, and where a device fails on the way."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse
from runtimes import opencl_device
from scipy.spatial.distance import cdist

import hetero
from hetero import devices, registry
from hetero.errors import DeviceError, DeviceMemoryError
from hetero.host import loops
from hetero.ops import kmeans as operation
from hetero.ops.kmeans import problem
from hetero.ops.kmeans import ranges as moving
from hetero.ops.kmeans.device import DeviceRows
from hetero.ops.kmeans.fit import Fit, Run, fit
from hetero.ops.kmeans.ranges import RangeRows, Share
from hetero.profile import inventory
from hetero.registry import Arguments


@pytest.fixture
def device():
    return opencl_device()


def points(n, d, k, dtype="float64", seed=0):
    rng = np.random.default_rng(seed)
    centres = 8 * rng.random((k, d))
    X = centres[rng.integers(k, size=n)] + rng.standard_normal((n, d))
    return np.ascontiguousarray(X.astype(dtype))


def parted(used, X, k, weights=None, rows=None, room=1 << 20, **asked):
    asked = {"maxiter": 300, "tol": 1e-4, "init": "k-means++", **asked}
    made = problem(X, k, sample_weight=weights)
    cut = {"room": room, "size": rows} if len(used) == 1 else {}
    given = RangeRows(used, made, X, weights, **cut)
    outcome, centroids = fit(given, Fit(**asked, random=np.random.RandomState(5)), k)
    return centroids, outcome.labels, outcome.run


def agrees(found, X, k, **options):
    centroids, labels, run = found
    expected = hetero.kmeans(X, k, random_state=5, device="cpu", **options)
    np.testing.assert_array_equal(labels, expected[1])
    np.testing.assert_allclose(centroids, expected[0], rtol=0, atol=1e-12 * abs(X).max())
    np.testing.assert_allclose(run.inertia, expected[2]["inertia"], rtol=1e-9)
    assert run.iterations == expected[2]["iterations"]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("number", [2, 3])
def test_several_devices(device, number, weighted):
    X = points(400, 3, 4)
    weights = np.random.default_rng(1).random(400) if weighted else None
    for init in ("k-means++", "random", X[:4].copy()):
        found = parted([device] * number, X, 4, weights, init=init)
        agrees(found, X, 4, init=init, sample_weight=weights)


@pytest.mark.parametrize("rows", [1, 99, 100, 101, 300])
def test_blocks_of_rows(device, rows):
    """Around a whole number of blocks, and all rows in one."""
    X = points(300 if rows > 1 else 5, 2, 3)
    for init in ("k-means++", "random"):
        found = parted([device], X, 3, rows=rows, init=init, starts=2)
        agrees(found, X, 3, init=init, n_init=2)
    init = X[:3].copy()
    agrees(parted([device], X, 3, rows=rows, init=init), X, 3, init=init)


@pytest.mark.parametrize("stay", [0, 1, 5, 7, 8, 10])
@pytest.mark.parametrize("weighted", [False, True])
def test_blocks_that_stay(device, stay, weighted, monkeypatch):
    """Rows go up once where they have room, the others once an iteration but for two blocks."""
    X, rows = points(1000, 2, 3), 100
    weights = np.random.default_rng(1).random(1000) if weighted else None
    room = (stay + 3) * (2 * X[:rows].nbytes + 16 * rows) / 0.75 + 64
    sent, real = [], type(device).begin_upload

    def begin_upload(self, source, *where):
        sent.append(source.shape)
        return real(self, source, *where)

    monkeypatch.setattr(type(device), "begin_upload", begin_upload)
    init = X[:3].copy()
    found = parted([device], X, 3, weights, rows=rows, room=room, init=init)
    agrees(found, X, 3, init=init, sample_weight=weights)
    iterations = found[2].iterations + 1  # at the end the labels are found once more
    moving = 10 - stay if stay < 8 else 0
    expected = 10 + (iterations - 1) * max(moving - 2, 0)
    assert abs(sent.count((rows, 2)) - expected) <= max(moving - 2, 0)


def test_every_allocation_may_fail(device, monkeypatch):
    """Blocks get smaller and none stays; without room for those, the CPU goes on."""
    X, real = points(1000, 4, 3), type(device).allocate
    init = X[:3].copy()
    asked = {"rows": 250, "room": 1 << 16, "init": init, "maxiter": 1}
    made, failing = [], [0]

    def allocate(self, nbytes):
        made.append(nbytes)
        if len(made) == failing[0]:
            raise DeviceMemoryError("no room")
        return real(self, nbytes)

    monkeypatch.setattr(type(device), "allocate", allocate)
    parted([device], X, 3, **asked)
    assert len(made) > 20
    for number in range(1, len(made) + 1):
        made.clear()
        failing[0] = number
        agrees(parted([device], X, 3, **asked), X, 3, init=init, max_iter=1)
    monkeypatch.setattr(moving, "_LEAST", 1600)
    made.clear()

    def none(self, nbytes):
        made.append(nbytes)
        raise DeviceMemoryError("no room")

    monkeypatch.setattr(type(device), "allocate", none)
    with pytest.raises(DeviceError, match="no room"):
        parted([device], X, 3, **asked)
    assert max(made) == 250 * 32
    assert min(made) == 59 * 32, "half of it, and once more"


def test_an_interrupt_leaves_nothing_on_the_way(device, monkeypatch):
    X, seen = points(1000, 2, 3), []

    def begin(self, centroids, real=DeviceRows.begin):
        seen.append(centroids)
        if len(seen) == 7:
            raise KeyboardInterrupt
        return real(self, centroids)

    monkeypatch.setattr(DeviceRows, "begin", begin)
    with pytest.raises(KeyboardInterrupt):
        parted([device], X, 3, rows=200, room=4000, init=X[:3].copy())
    agrees(parted([device], X, 3, rows=200, room=4000, init=X[:3].copy()), X, 3, init=X[:3].copy())


@pytest.mark.parametrize("number", [2, 3])
def test_several_devices_without_room_take_blocks(device, number, monkeypatch):
    """Each goes through blocks of its own part, where one has no room for that."""
    X, real = points(400, 3, 4), type(device).allocate
    weights = np.random.default_rng(1).random(400)

    def allocate(self, nbytes):
        if nbytes > X.nbytes // 8:
            raise DeviceMemoryError("no room")
        return real(self, nbytes)

    monkeypatch.setattr(type(device), "allocate", allocate)
    monkeypatch.setattr(moving, "_LEAST", 1)
    info = {**device.describe(), "memory_bytes": 10 * X.nbytes}
    monkeypatch.setattr(type(device), "describe", lambda self: info)
    taken = count(monkeypatch, Share, "_laid_out")
    for init in ("k-means++", X[:4].copy()):
        made = problem(X, 4, sample_weight=weights)
        given = RangeRows([device] * number, made, X, weights)
        asked = Fit(maxiter=300, tol=1e-4, init=init, random=np.random.RandomState(5))
        outcome, centroids = fit(given, asked, 4)
        agrees((centroids, outcome.labels, outcome.run), X, 4, init=init, sample_weight=weights)
    assert len(taken) > 4 * number
    assert not devices.troubles()


@pytest.mark.parametrize("offset", [-16.0, 3000.3])
@pytest.mark.parametrize("way", ["blocks", "parts", "blocks of parts"])
def test_rows_as_near_to_two_centroids_get_the_labels_of_the_whole(device, way, offset):
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
    if way == "blocks":
        found = RangeRows([device], made, X, room=1 << 20, size=700)
    elif way == "parts":
        found = RangeRows([device] * 3, made, X)
    else:
        found = RangeRows([device] * 2, made, X, size=700)
    np.testing.assert_array_equal(found.mean, whole.mean)
    assert whole.mean.any() == (offset > 0)
    found.restart(init)
    found.assign(init - found.mean)
    np.testing.assert_array_equal(found.labels, expected)
    sums, _ = found.sums()
    np.testing.assert_allclose(sums, added, rtol=1e-5, atol=1e-5 * abs(added).max())


@pytest.mark.parametrize("blocks", [False, True])
def test_iterations_far_from_zero_keep_their_digits(device, blocks):
    """Centroids go from one iteration to the next less the mean, as on one device."""
    X = (points(900, 3, 6, seed=2) + 3e5).astype(np.float32)
    init = X[:6].copy()
    found = parted([device] * (1 if blocks else 2), X, 6, rows=200, init=init, tol=0.0)
    expected = hetero.kmeans(X, 6, init=init, tol=0.0, device=device.name)
    np.testing.assert_array_equal(found[1], expected[1])
    np.testing.assert_array_equal(found[0], expected[0])
    assert found[2].iterations == expected[2]["iterations"]


def test_empty_clusters_take_rows_of_any_part(device):
    X = np.arange(200.0)[:, None] ** 1.5
    init = np.array([[100.0], [1e9], [1e9]])
    agrees(parted([device] * 2, X, 3, init=init), X, 3, init=init)
    agrees(parted([device], X, 3, init=init, rows=70), X, 3, init=init)


def labels_are_nearest(X, k, init, way, device):
    """Of a fit by a method of the CPU, on a device, or on two parts or blocks of its rows."""
    if isinstance(way, int):
        centroids, labels, run = parted([device] * way, X, k, init=init, rows=9)
        converged, inertia = run.converged, run.inertia
    else:
        placed = {"device": device.name} if way == "device" else {"device": "cpu", "method": way}
        given = scipy.sparse.csr_array(X) if way == "csr" else X
        placed["method"] = {"csr": "products", "device": "lloyd"}.get(way, way)
        centroids, labels, info = hetero.kmeans(given, k, init=init, **placed)
        converged, inertia = info["converged"], info["inertia"]
    far = ((X[:, None] - centroids) ** 2).sum(axis=2)
    own = far[np.arange(len(X)), labels]
    assert converged
    np.testing.assert_allclose(own, far.min(axis=1), rtol=0, atol=1e-12)
    np.testing.assert_allclose(inertia, own.sum(), rtol=1e-9, atol=1e-12)


@pytest.mark.filterwarnings("ignore:Number of distinct clusters")
@pytest.mark.parametrize("way", ["lloyd", "products", "csr", "device", 2, 1])
def test_labels_are_nearest_with_more_clusters_than_distinct_rows(device, way):
    """Clusters without rows get none that lies on its centroid but for rounding."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        distinct = rng.integers(-9, 9, (3, 7)).astype(float)
        X, init = distinct[np.arange(17) // 6 % 3], 9 * rng.standard_normal((15, 7))
        labels_are_nearest(X, 15, init, way, device)


@pytest.mark.filterwarnings("ignore:Number of distinct clusters")
@pytest.mark.parametrize("way", ["lloyd", "products", "device", 2])
def test_labels_are_nearest_after_an_iteration_that_moved_rows_and_no_label(device, way):
    rng = np.random.default_rng(431)
    apart = 10.0 ** -int(rng.integers(9, 15))
    X = rng.integers(0, 2, 8)[:, None] * np.array([1.0, 2.0]) + apart * rng.integers(0, 3, (8, 1))
    init = rng.standard_normal((6, 2)) * rng.choice([1, 10])
    labels_are_nearest(X, 6, init, way, device)


def test_a_callable_gets_all_rows_less_their_mean(device):
    X, seen = points(60, 2, 3), []

    def init(rows, k, random_state):
        seen.append(rows)
        return rows[:k]

    agrees(parted([device] * 2, X, 3, init=init), X, 3, init=init)
    np.testing.assert_allclose(seen[0], X - X.mean(axis=0), atol=1e-12)


def test_rows_that_the_device_has_no_room_for(device, monkeypatch):
    """Only where the device is named; else the CPU is chosen."""
    X = points(500, 3, 4)
    info = {**device.describe(), "memory_bytes": 2000}
    monkeypatch.setattr(type(device), "describe", lambda self: info)
    inventory.changed()
    assert hetero.plan("kmeans", X, 4).chosen.device == "cpu"
    plan = hetero.plan("kmeans", X, 4, device=device.name)
    assert (plan.chosen.device, plan.chosen.method) == (device.name, "lloyd")
    loaded = count(monkeypatch, Share, "_laid_out")
    found = hetero.kmeans(X, 4, random_state=5, device=device.name)
    assert found[2]["device"] == device.name
    assert len(loaded) > 40, "blocks of ten rows"
    agrees((*found[:2], Run(*list(found[2].values())[:3])), X, 4)
    inventory.changed()


def test_a_device_that_is_full_takes_blocks(device, monkeypatch):
    X = points(40_000, 4, 4)
    whole, real = X.nbytes, type(device).allocate

    def allocate(self, nbytes):
        if nbytes >= whole:
            raise DeviceMemoryError("no room")
        return real(self, nbytes)

    monkeypatch.setattr(type(device), "allocate", allocate)
    info = {**device.describe(), "memory_bytes": 4 * whole}
    monkeypatch.setattr(type(device), "describe", lambda self: info)
    found = hetero.kmeans(X, 4, random_state=5, device=device.name)
    assert found[2]["device"] == device.name
    agrees((*found[:2], Run(*list(found[2].values())[:3])), X, 4)
    assert not devices.disabled(device.name)


@pytest.mark.parametrize("init", ["k-means++", "random"])
def test_the_cpu_makes_a_fit_anew(device, init, monkeypatch):
    """From the same random numbers, though some were drawn before the device failed."""
    X, looks, state = points(600, 3, 6), [], DeviceRows.state
    given = {"init": init, "n_init": 2, "random_state": np.random.RandomState(5)}
    expected = hetero.kmeans(X, 6, **{**given, "random_state": 5}, device="cpu", method="lloyd")

    def failing(rows):
        looks.append(rows)
        if len(looks) > 3:
            raise DeviceError("gone")
        return state(rows)

    monkeypatch.setattr(DeviceRows, "state", failing)
    centroids, labels, info = hetero.kmeans(X, 6, **given, device=device.name, method="lloyd")
    assert looks
    assert (info["device"], info["iterations"]) == ("cpu", expected[2]["iterations"])
    np.testing.assert_array_equal(labels, expected[1])
    np.testing.assert_array_equal(centroids, expected[0])
    hetero.reset(device.name)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("max_iter", [0, 3])
@pytest.mark.parametrize("where", ["cpu lloyd", "cpu products", "device", "on device", 1, 2])
def test_rows_that_are_not_finite(device, where, max_iter):
    """Found wherever they go, in blocks and parts, too, and where they lie."""
    X = points(50, 3, 2)
    kind, _, method = str(where).partition(" ")
    asked = {"init": X[:2].copy(), "max_iter": max_iter, "tol": 0.0}
    placed = {"device": "cpu", "method": method} if kind == "cpu" else {"device": device.name}
    row = next(i for i in registry.lookup("kmeans") if (i.kind, i.method) == ("opencl", "lloyd"))

    def fitted():
        if isinstance(where, int):
            given = Arguments((X,), np.empty((2, 3)), Fit(max_iter, 0.0, asked["init"].copy()))
            return row.run((device,) * where, problem(X, 2, **asked), given)
        if where != "on device":
            return hetero.kmeans(X, 2, **asked, **placed)
        with hetero.use(device=device.name, results="device"):
            return hetero.kmeans(hetero.matmul(X, np.eye(3)), 2, **asked)

    fitted()
    for value in (np.nan, np.inf, -np.inf):
        before, X[17, 1] = X[17, 1], value
        with pytest.raises(ValueError, match="Input X contains"):
            fitted()
        X[17, 1] = before


def count(monkeypatch, owner, name, calls=None):
    """A list that grows by one with each call of a method."""
    calls = [] if calls is None else calls
    real = getattr(owner, name)

    def counted(self, *arguments):
        calls.append(name)
        return real(self, *arguments)

    monkeypatch.setattr(owner, name, counted)
    return calls


@pytest.mark.parametrize("rows", [1, 3, 100])
def test_clusters_without_rows_are_counted_in_all_labels(rows, monkeypatch):
    monkeypatch.setattr(operation, "_AT_A_TIME", rows)
    X = np.repeat([[0.0], [5.0], [9.0]], 4, axis=0)
    with pytest.warns(RuntimeWarning, match=r"distinct clusters \(3\) found smaller .* \(4\)"):
        hetero.kmeans(X, 4, init=[[0.0], [5.0], [9.0], [9.0]], max_iter=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hetero.kmeans(X, 3, init=[[9.0], [5.0], [0.0]])


@pytest.mark.parametrize("n", [5, 5000])
@pytest.mark.parametrize("k", [8, 140])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_get_the_nearest_centroid_of_equals_the_first(n, k, dtype, monkeypatch):
    """By NumPy for few rows; by the loop, with either order of a product. Numbers are exact."""
    monkeypatch.setattr(loops, "is_ready", lambda name: True)
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
