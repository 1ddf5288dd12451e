"""k-means' labels by 16-bit pieces on tensor cores: what is cut, and which labels are sure."""

import ctypes

import cuda_on_cpu
import numpy as np
import pytest
import runtimes
import tensor_core
from test_kmeans_kernels import GPU, on_device, once, points

from hetero import devices
from hetero.kernels.kmeans import plan as plans
from hetero.kernels.kmeans import shapes
from hetero.profile import inventory


def planned(n=20_000, d=128, k=1024, dtype="float32", alignment=16, target=GPU):
    return plans.plan_lloyd(shapes.Points(n, d, k, dtype, False, alignment, target))


def test_where_they_are_taken():
    assert planned().prepare
    for other in ({"n": 5_000}, {"dtype": "float64"}, {"k": 20}, {"d": 16}):
        assert not planned(**other).prepare, other
    for other in ({"capability": (10, 0)}, {"shared_limit": 160 << 10}):
        assert not planned(target=GPU._replace(**other)).prepare, other


# -- Cutting, on the CPU ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cut():
    """``cut(X, norms)``: the values of the pieces in float64, the facts and the list's length."""
    run = cuda_on_cpu.kernel("kmeans_cut.cu", "cut_rows", {})

    def cut(X, norms=None):
        (n, d), steps, panels = X.shape, -(-X.shape[1] // 64) * 2, -(-len(X) // 128)
        pieces = np.full((panels, steps, 2, 128, 4, 8), 0xAAAA, np.uint16)
        facts, unsure = np.full((panels * 128, 2), np.nan, np.float32), np.array([7], np.int32)
        state, given = np.zeros(4, np.int32), X if norms is None else norms
        arrays = (X, given, pieces, facts, unsure, state)
        sizes = n, d, steps, int(d % 4 == 0), int(norms is not None)
        assert run(panels * 16, *arrays, *sizes) is None
        return tensor_core.put_together(pieces), facts, int(unsure[0])

    return cut


@pytest.mark.parametrize("d", [128, 70])
def test_pieces_and_lengths_of_points(cut, d):
    X = np.random.default_rng(d).standard_normal((150, d)).astype(np.float32)
    X[3], X[4], X[5] = 0, 1e-25, 1e-35
    X[6] *= np.float32(2.0**70)
    values, facts, listed = cut(X)
    is_cut = np.r_[0:5, 6:150]
    scaled = values[:150, :d] * facts[:150, :1].astype(float) / -2
    np.testing.assert_allclose(scaled[is_cut], X[is_cut], rtol=2.0**-21, atol=1e-7 * 2.0**-40)
    lengths = np.sqrt((X.astype(float) ** 2).sum(1))
    lengths[[4, 5]] = np.inf  # squares are too small for float32
    np.testing.assert_allclose(facts[:150, 1], lengths, rtol=1e-5)
    assert listed == 0
    assert not values[150:].any()
    assert not values[:, d:].any()
    assert not values[5].any()


def test_facts_of_centroids(cut):
    C = np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32)
    norms = np.arange(5, dtype=np.float32)
    values, facts, _ = cut(C, norms)
    np.testing.assert_allclose(values[:5] * facts[:5, :1], C, rtol=2.0**-21, atol=1e-12)
    np.testing.assert_array_equal(facts[:, 1], [*norms, *[np.inf] * 123])


# -- Which labels are sure -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def is_sure():
    """`is_sure` of kmeans_sure.cu, compiled for the CPU."""
    found = cuda_on_cpu.functions("kmeans_sure.cu").is_sure
    found.argtypes = [ctypes.c_float] * 4
    return lambda least, second, x: bool(found(least, second, np.linalg.norm(x), len(x)))


def distances(X, C, dots):
    """|c|^2 - 2 x.c in float32, by a model of the scalar products."""
    n, k = len(X), len(C)
    products = dots(np.repeat(X, k, 0), np.tile(C, (n, 1))).astype(np.float32).reshape(n, k)
    return (C.astype(float) ** 2).sum(1).astype(np.float32) - 2 * products


@pytest.mark.parametrize("kind", ["normal", "ties", "wide"])
def test_what_is_sure_is_the_label_of_float32(is_sure, kind):
    """Centroids in pairs, so near to each other that rounding decides for many rows."""
    random = np.random.default_rng(3)
    X, C = random.standard_normal((60, 192)), random.standard_normal((6, 192))
    if kind == "wide":
        X, C = X * np.exp(2 * random.standard_normal(X.shape)), C * 100
    if kind != "normal":
        C[1::2] = C[::2] * (1 + 3e-7 * random.standard_normal((3, 192)))
    X, C = X.astype(np.float32), C.astype(np.float32)
    by_pieces = distances(X, C, lambda a, b: tensor_core.dots(a, b, True))
    labels = distances(X, C, tensor_core.chained).argmin(1)
    nearest = np.sort(by_pieces, axis=1)[:, :2]
    sure = np.array([is_sure(*two, x) for two, x in zip(nearest, X, strict=True)])
    other = by_pieces.argmin(1) != labels
    assert not (sure & other).any()
    assert other.any() == (kind != "normal")
    assert sure.mean() > 0.9 if kind == "normal" else not sure.all()


def test_what_is_no_number_is_not_sure(is_sure):
    x = np.ones(4, np.float32)
    assert is_sure(1.0, np.inf, x)
    for least, second in ((np.inf, np.inf), (-np.inf, np.nan), (np.nan, np.inf)):
        assert not is_sure(least, second, x)
    assert not is_sure(0.0, 1.0, np.array([np.inf], np.float32))
    assert not is_sure(0.0, 1e38, np.full(4, 1e25, np.float32))


# -- The rows that are not -------------------------------------------------------------------------


@pytest.mark.parametrize("d", [20, 33])
def test_only_rows_of_the_list_get_labels(d):
    device = runtimes.opencl_device()
    X, _, start = points(300, d, 140, "float32")
    listed = np.array([5, 299, 0, 64, 65, 170], np.int32)

    def tiled(where):
        return shapes.tiled(where, shapes._AGAIN)

    with on_device(device, X, None, 140, tiled) as rows:
        rows.begin(start - rows.mean)
        expected = rows.download("labels", (300,), np.int32)
        launch = rows._plan.assign[0]
        launch = launch._replace(
            defines=(*launch.defines, ("LISTED", 1)), arguments=(*launch.arguments, "unsure")
        )
        device.upload(np.r_[np.int32(len(listed)), listed], rows._space.allocate(28, "unsure"))
        device.upload(np.full(300, -1, np.int32), rows.buffers["labels"])
        rows._start(launch)
        found = rows.download("labels", (300,), np.int32)
    expected[np.setdiff1d(np.arange(300), listed)] = -1
    np.testing.assert_array_equal(found, expected)


@pytest.mark.gpu
@pytest.mark.parametrize(("d", "k"), [(128, 600), (300, 400), (784, 100), (65, 1000)])
@pytest.mark.parametrize("kind", ["normal", "integers", "scales"])
def test_labels_are_those_of_float32(d, k, kind):
    """Through a few iterations, also of rows as near to several centroids."""
    if inventory.devices().get("cuda:0", {}).get("arch") != "sm_90":
        pytest.skip("no GPU of compute capability 9.0")
    device, random, n = devices.get("cuda:0"), np.random.default_rng(d), 20_011
    X = random.standard_normal((n, d)).astype(np.float32)
    if kind == "integers":
        X = random.integers(0, 3, (n, d)).astype(np.float32)
    if kind == "scales":
        X *= np.exp2(random.integers(-70, 40, (n, 1))).astype(np.float32)
    start = X[random.choice(n, k, replace=False)]
    if kind == "integers":
        start[1::7] = start[0]  # empty clusters: the first iteration is the last one
    found = []
    for forced in (None, lambda where: shapes.tiled(where, shapes.tiles("float32")[0])):
        with on_device(device, X, None, k, forced) as rows:
            assert bool(rows._plan.prepare) == (forced is None)
            rows.restart(start - rows.mean)
            labels = []
            for _ in range(3):
                once(rows)
                labels.append(rows.download("labels", (n,), np.int32))
            found.append(labels)
    np.testing.assert_array_equal(*found)
