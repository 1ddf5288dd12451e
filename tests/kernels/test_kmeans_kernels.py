"""k-means' kernels and their launch plans, with no GPU.

They are run on an OpenCL device and simulated by Oclgrind; what copies asynchronously is run as
fibers on the CPU. As a script this file is what Oclgrind simulates.
"""

from __future__ import annotations

import contextlib
import functools
from types import SimpleNamespace
from unittest import mock

import cuda_on_cpu
import numpy as np
import pytest
import runtimes

from hetero.kernels import Target
from hetero.kernels.kmeans import plan as plans
from hetero.kernels.kmeans import shapes
from hetero.ops.kmeans.device import DeviceRows

DTYPES = ("float32", "float64")
GPU = Target(multiprocessors=132, shared_limit=227 << 10, capability=(9, 0))


def points(n, d, k, dtype, weighted=False, seed=0):
    """Rows around some centres, weights or None, and k of the rows as a start."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) + 2 * rng.integers(0, 4, size=(n, 1))
    weights = rng.uniform(0.1, 2, n).astype(dtype) if weighted else None
    X = X.astype(dtype)
    return X, weights, X[rng.choice(n, k, replace=False)]


def plain_distances(X, centroids):
    """Distances less |x|^2, in float64."""
    C = centroids.astype(float)
    return (C * C).sum(axis=1) - 2 * X.astype(float) @ C.T


@contextlib.contextmanager
def on_device(device, X, weights, k, forced=None, counted=False):
    """The rows on a device, with the assignment that is chosen or a forced one."""
    kept = []

    def up(array):
        buffer, owner = device.allocate(array.nbytes)
        device.upload(array, buffer)
        kept.append(owner)
        return buffer

    problem = SimpleNamespace(dims=(*X.shape, k), dtype=X.dtype.name, layout="")
    with mock.patch.object(plans, "choose", forced or plans.choose), device.active():
        weights = None if weights is None else up(weights)
        yield DeviceRows(device, problem, up(X), weights, counted=counted)


def once(rows, tolerance=-1.0, most=0.0):
    """One iteration."""
    rows._start(*rows._plan.iteration, tolerance=tolerance, most=most)


def check_labels(got, distances):
    """No centroid is nearer than by rounding, and few that are the nearest are missed."""
    labels = distances.argmin(axis=1)
    row = np.arange(len(got))
    apart = distances[row, got] - distances[row, labels]
    assert apart.max() <= 1e-6 * np.abs(distances).max()
    assert (got != labels).mean() < 0.02


def check_step(device, X, weights, centroids, forced=None):
    """One iteration: labels of least distances, means of what is labelled, the same bits again."""
    n, k = len(X), len(centroids)
    with on_device(device, X, weights, k, forced) as rows:
        mean, found = rows.mean, []
        for _ in range(2):
            rows.restart(centroids - mean)
            once(rows)
            of = {"labels": (n,), "centroids": centroids.shape, "state": (4,)}
            types = (np.int32, X.dtype, np.int32)
            found.append([rows.download(*one, t) for one, t in zip(of.items(), types, strict=True)])
            found[-1][2][2] = min(found[-1][2][2], 1)
    assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))
    got, means, state = found[0]
    check_labels(got, plain_distances(X - mean, centroids - mean))
    sums, weights = np.zeros(centroids.shape), np.ones(n) if weights is None else weights
    np.add.at(sums, got, (X - mean) * weights[:, None])
    totals = np.bincount(got, weights, k)
    filled = totals > 0
    expected = sums[filled] / totals[filled, None]
    atol = 64 * np.finfo(X.dtype).eps * (4 + X.shape[1]) * np.abs(X - mean).max()
    np.testing.assert_allclose(means[filled], expected, rtol=0, atol=atol)
    assert list(state) == ([0, 1, 0, 0] if filled.all() else [3, 0, 1, 1])


def labelled(device, X, start, forced=None):
    """The labels of rows, and the centroids' distances from them."""
    with on_device(device, X, None, len(start), forced) as rows:
        rows.restart(start - rows.mean)
        rows.label(None)
        return rows.labels, plain_distances(X - rows.mean, start - rows.mean)


# -- On OpenCL ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def portable():
    """A device of this file's own, whose hundred programs go with it."""
    from hetero.devices import opencl

    return opencl.OpenCLDevice(0, runtimes.opencl_device()._device)


@pytest.mark.parametrize("dtype", DTYPES)
def test_tiles(portable, dtype):
    """Every tile, at sizes one below, at and one above it, of points, centroids and columns."""
    for tile in shapes.tiles(dtype):
        for more, d in zip((-1, 0, 1, 1), (1, 7, 8, 12), strict=True):
            X, _, start = points(tile.m + more + tile.n, d, tile.n + more, dtype)
            forced = functools.partial(shapes.tiled, tile=tile)
            check_labels(*labelled(portable, X, start, forced))


@pytest.mark.parametrize("dtype", DTYPES)
def test_small(portable, dtype):
    """A point to a thread, with its sums: in groups, and alone."""
    seen = set()
    for d, k in ((2, 8), (4, 50), (16, 7), (31, 4)):
        for n, weighted in ((257, d < 4), (1100, d < 4)):
            X, weights, start = points(n, d, k, dtype, weighted)
            where = shapes.Points(n, d, k, dtype, weighted, 16, Target(4, shared_limit=48 << 10))
            found = dict(shapes.small(where).launches[0].defines)
            seen.add(min(found["GROUPS"], 2))
            check_step(portable, X, weights, start, forced=shapes.small)
    assert seen == {1, 2}


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_by_label(portable, monkeypatch, dtype):
    """Parts of several chunks, of one, and of a rest; few clusters and more than a block takes."""
    monkeypatch.setattr(plans, "_CHUNK", 256)
    forced = lambda where: shapes.tiled(where, shapes.tiles(dtype)[0])  # noqa: E731
    shapes_ = (1900, 40, 3, False), (1637, 5, 70, True), (2000, 4, 300, False), (130, 260, 2, True)
    for n, d, k, weighted in shapes_:
        check_step(portable, *points(n, d, k, dtype, weighted), forced=forced)


@pytest.mark.parametrize(("d", "k"), [(2, 9), (40, 9), (40, 90)])
def test_ties_go_to_the_lowest(portable, d, k):
    """Centroids that come several times, in any order: the first of them gets the points."""
    rng = np.random.default_rng(3)
    places = rng.integers(-4, 5, (3, d)).astype(np.float32)
    which = rng.integers(0, 3, k)
    which[:3] = 0, 1, 2
    X = np.repeat(places, 50, axis=0)
    first = [int(np.flatnonzero(which == place)[0]) for place in range(3)]
    assert np.array_equal(labelled(portable, X, places[which])[0], np.repeat(first, 50))


# -- What copies asynchronously, as fibers on the CPU ----------------------------------------------


def aligned_copy(array):
    """The elements at an address that 64 divides, with NaN behind them."""
    room = np.full(array.size + 64, np.nan, array.dtype)
    begin = -room.ctypes.data % 64 // room.itemsize
    room[begin : begin + array.size] = array.ravel()
    return room[begin:]


def emulated_labels(launch, tile, X, centroids):
    """What the emulated kernel finds."""
    n, d = X.shape
    k = len(centroids)
    where = shapes.Points(n, d, k, X.dtype.name, False, 16, GPU)
    depth, columns = shapes.tiled(where, tile).depth, -(-k // tile.n)
    packed = np.zeros((columns, depth, tile.n), X.dtype)
    for c, row in enumerate(centroids):
        packed[c // tile.n, :d, c % tile.n] = row
    norms = np.full(columns * tile.n, np.inf, X.dtype)
    norms[:k] = (centroids**2).sum(axis=1)
    labels, state = np.full(n + 8, -1, np.int32), np.zeros(4, np.int32)
    pointers = (*map(aligned_copy, (X, packed, norms)), labels, state)
    assert launch(-(-n // tile.m), *pointers, n, d, columns) is None
    assert np.all(labels[n:] == -1)
    return labels[:n]


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("tile", shapes.tiles("float64", (9, 0)), ids=lambda v: getattr(v, "m", v))
def test_what_copies(tile, aligned):
    """The kernel that copies tiles asynchronously, emulated."""
    where = shapes.Points(1, 2, 1, "float64", False, 16 * aligned, GPU)
    planned = shapes.tiled(where, tile).launches[0]
    launch = cuda_on_cpu.kernel(planned.source, planned.kernel, dict(planned.defines))
    for n, d, k in ((tile.m + 1, 36, 2 * tile.n + 1), (5, 4, 3), (tile.m, 17, tile.n), (2, 1, 1)):
        if aligned and d % 4:
            continue
        X, _, start = points(n, d, min(k, n), "float64")
        start = np.concatenate([start, start + 0.25, start - 0.25])[:k]
        check_labels(emulated_labels(launch, tile, X, start), plain_distances(X, start))


# -- Oclgrind -------------------------------------------------------------------------------------


def simulate():
    """The smallest problems that reach every kernel."""
    from hetero.devices import opencl

    device = opencl.OpenCLDevice(0, runtimes.simulator())
    for n, d, k in ((70, 3, 2), (70, 33, 9)):
        X, _, start = points(n, d, k, "float32")
        check_step(device, X, None, start)
        with on_device(device, X, None, k, counted=True) as rows:
            rows.restart(start - rows.mean)
            for _ in range(2):  # the second one counts what changed
                once(rows, 0.0, 1.0)
            assert 0 <= rows.state()[2] < n
            rows.label(None)
            rows.inertia(start)


def test_no_races_nor_bounds():
    assert runtimes.simulated(__file__) == ""


if __name__ == "__main__":
    simulate()
