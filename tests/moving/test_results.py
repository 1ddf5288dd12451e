"""Results that stay on the device that computed them, and `hetero.to_host`."""

from __future__ import annotations

import logging
import sys
import types

import fakes
import numpy as np
import pytest
import runtimes
from layouts import LAYOUTS
from scipy import signal, sparse

import hetero
from hetero import devices, profile, registry
from hetero.arrays import describe
from hetero.errors import DeviceError, DeviceMemoryError

rng = np.random.default_rng(11)
N = 40
X = 2 * rng.random((N, N), np.float32) / N
TAPS = rng.random((5, 3), np.float32) / 6


def chain(matmul, convolve2d):
    """19 mixed calls on one matrix."""
    B = A = matmul(X, X)
    for _ in range(6):
        A = matmul(convolve2d(matmul(A, B), TAPS, "same"), B)
    return A


@pytest.mark.parametrize("kind", ["cuda", "opencl"])
def test_a_chain_of_20_calls_is_uploaded_once_and_downloaded_once(cuda, opencl, monkeypatch, kind):
    device = devices.get("cuda:0" if kind == "cuda" else opencl)
    copied = fakes.moves(monkeypatch, device, X.nbytes)
    with hetero.use(device=device.name, results="device"):
        A = chain(hetero.matmul, hetero.convolve2d)
        y = hetero.matvec(A, X[0])
        assert copied == [("upload", X.nbytes)]
        assert type(A).__module__.startswith("cupy" if kind == "cuda" else "pyopencl")
        assert describe(A).location == describe(y).location == device.name
        assert "synchronize" not in cuda.log
        got = hetero.to_host(A)
        assert copied[1] == ("download", X.nbytes)
    assert cuda.log.count("compute") == (20 if kind == "cuda" else 0)
    expected = chain(np.matmul, signal.convolve2d)
    assert (expected @ X[0]).min() > 1e-6
    np.testing.assert_allclose(got, expected, rtol=1e-4)
    np.testing.assert_allclose(hetero.to_host(y), expected @ X[0], rtol=1e-4)


@pytest.mark.parametrize(
    "error", [DeviceError("planted"), MemoryError("Out of memory"), DeviceMemoryError("planted")]
)
def test_a_device_that_fails_or_has_no_room_leaves_the_result_on_the_host(
    cuda, monkeypatch, caplog, error
):
    """Where there is no room, by CuPy's MemoryError or by ours, nothing is set aside."""
    caplog.set_level(logging.ERROR, "hetero")
    fails = (cuda, "enqueue") if type(error) is DeviceError else (sys.modules["cupy"], "empty")
    with hetero.use(device="cuda", results="device"):
        with monkeypatch.context() as patch:
            patch.setattr(*fails, fakes.raising(error))
            C = hetero.matmul(X, X)
        assert type(C) is np.ndarray
        np.testing.assert_allclose(C, X @ X, rtol=1e-5)
        D = hetero.matmul(C, C)
        assert type(D) is fakes.Cupy
    np.testing.assert_allclose(hetero.to_host(D), X @ X @ X @ X, rtol=1e-4)
    assert devices.disabled("cuda:0") is None
    assert bool(devices.health["cuda:0"].failure) == (type(error) is DeviceError)


def test_what_cupy_keeps_is_given_back_where_a_device_is_short(cuda, monkeypatch):
    """Results that stayed and were dropped lie in CuPy's pool."""
    kept = [X.nbytes]
    pool = types.SimpleNamespace(free_bytes=lambda: sum(kept), free_all_blocks=kept.clear)
    monkeypatch.setattr(sys.modules["cupy"], "get_default_memory_pool", lambda: pool)

    def short(nbytes):
        if kept:
            raise DeviceMemoryError("planted")

    fakes.noting(monkeypatch, cuda, "allocate", short)
    with hetero.use(device="cuda"):
        np.testing.assert_allclose(hetero.matmul(X, X), X @ X, rtol=1e-5)
    assert cuda.log.count("compute") == 1
    assert not kept


def test_a_machine_without_devices_gives_numpy_arrays(monkeypatch):
    monkeypatch.setattr(devices, "found", {})
    with hetero.use(results="device"):
        C = hetero.matmul(X, X)
        assert type(C) is np.ndarray
        assert type(hetero.convolve2d(C, TAPS)) is np.ndarray
        assert "where" not in str(hetero.plan("matmul", X, X))
        np.testing.assert_array_equal(hetero.to_host(C), C)


# -- Prices --------------------------------------------------------------------------------------


def rows(*shapes, operation="matmul", **placed):
    found = hetero.plan(operation, *[hetero.spec(s, "float32") for s in shapes], **placed)
    return found, {(c.device, c.method): c for c in found.candidates if c.seconds is not None}


@pytest.mark.parametrize("operation", ["matmul", "convolve2d"])
def test_a_result_that_stays_costs_no_download_and_one_on_the_cpu_its_upload(cuda, operation):
    shapes = ((2000, 2000), (2000, 2000) if operation == "matmul" else (9, 9))
    _, usual = rows(*shapes, operation=operation)
    with hetero.use(results="device"):
        found, stays = rows(*shapes, operation=operation)
    assert "-> (20" in str(found).replace(found.profile_name, "")
    assert "where it is computed" in str(found)
    assert set(usual) == set(stays)
    assert {c.implementation.blocks for c in stays.values()} == {"", registry.ALWAYS}
    nbytes = found.problem.output.nbytes
    for place, candidate in stays.items():
        terms = dict(usual[place].terms)
        if place[0] == "cpu" or candidate.implementation.blocks == registry.ALWAYS:
            link = profile.current().link("cuda:0", "upload")(nbytes)
            terms["upload next"] = link
            assert f"upload next {link * 1e3:.3g} ms" in str(found)
        else:
            assert terms.pop("download") > 0
        assert candidate.terms == pytest.approx(terms)
        assert candidate.seconds == pytest.approx(sum(terms.values()))


def test_what_several_devices_share_is_on_the_host(two):
    """And charged the upload; its parts are priced as ever."""
    shapes = (4000, 4000), (4000, 4000)
    _, usual = rows(*shapes)
    with hetero.use(results="device"):
        _, stays = rows(*shapes)
        told = str(hetero.plan("matmul", X, X, device="cuda:*").problem)
        C = hetero.matmul(X, X, device="cuda:*")
    assert told.endswith("-> (40, 40) on host")
    assert type(C) is np.ndarray
    np.testing.assert_allclose(C, X @ X, rtol=1e-5)
    together = [place for place in stays if place[0] == "cuda:*"]
    assert together
    later = profile.current().link("cuda:0", "upload")(4 * 4000 * 4000)
    for place in together:
        terms = {**usual[place].terms, "upload next": later}
        assert stays[place].terms == pytest.approx(terms)
        assert stays[place].seconds == pytest.approx(sum(terms.values()))


# -- Bringing arrays to the host -----------------------------------------------------------------

VALUES = rng.random((7, 6), np.float32)
VIEWS = {name: lay(VALUES) for name, lay in LAYOUTS.items()}
VIEWS |= {
    "a stack turned": rng.random((2, 3, 4)).transpose(1, 0, 2),
    "none": VALUES[:0],
    "a number": np.array(3.0),
}


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("name", VIEWS)
def test_any_layout(cuda, name, wait):
    values = VIEWS[name]
    array = fakes.Cupy.of(values, cuda)
    got = hetero.to_host(array, wait=wait)
    got = got if wait else got.wait()
    np.testing.assert_array_equal(got, values)
    assert got.dtype == values.dtype
    for out in (np.empty_like(values), np.empty((*values.shape, 2), values.dtype)[..., 0]):
        found = hetero.to_host(array, out, wait=wait)
        found = found if wait else found.wait()
        assert found is out
        np.testing.assert_array_equal(out, values)


def test_what_lies_on_the_host_stays_there():
    assert hetero.to_host(VALUES) is VALUES
    assert hetero.to_host(VALUES, wait=False).wait() is VALUES
    out = np.empty_like(VALUES)
    assert hetero.to_host(VALUES, out) is out
    np.testing.assert_array_equal(out, VALUES)
    np.testing.assert_array_equal(hetero.to_host([[1, 2]]), [[1, 2]])
    with pytest.raises(TypeError, match="to_host takes dense arrays, got csr_array"):
        hetero.to_host(sparse.csr_array(VALUES))


def test_wrong_outs(cuda):
    array = fakes.Cupy.of(VALUES, cuda)
    readonly = np.empty_like(VALUES)
    readonly.flags.writeable = False
    for out, error, message in (
        (np.empty((6, 7), "f4"), ValueError, r"shape \(7, 6\) and dtype float32, got \(6, 7\)"),
        (np.empty((7, 6)), ValueError, "and float64$"),
        ([], TypeError, "must be a NumPy array, got list"),
        (readonly, ValueError, "writeable"),
    ):
        with pytest.raises(error, match=message):
            hetero.to_host(array, out)


def test_a_download_that_fails_is_tried_once_more(cuda, monkeypatch, warnings_of):
    array = fakes.Cupy.of(VALUES, cuda)
    tries = fakes.failing(monkeypatch, cuda, "enqueue", 1, DeviceError("planted"))
    np.testing.assert_array_equal(hetero.to_host(array), VALUES)
    assert len(warnings_of()) == 1
    tries.clear()
    with pytest.raises(DeviceError, match="planted"):
        hetero.to_host(array, wait=False).wait()


# -- On a real device ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", runtimes.EACH_KIND)
def test_solves_and_clusters(kind):
    name, grid = runtimes.of_kind(kind)[0].name, hetero.Poisson((N, N), dtype=np.float32)
    with hetero.use(device=name, results="device"):
        u = hetero.solve_poisson(X, method="multigrid", rtol=1e-4)
        x, info = hetero.solve_cg(grid, X.ravel(), rtol=1e-4)
        again, _ = hetero.solve_cg(grid, x, rtol=1e-4)
        tiny = hetero.solve_poisson(X * np.float32(1e-35), method="multigrid")
        centroids, labels, _ = hetero.kmeans(X, 3, random_state=0)
        for array in (u, x, again, centroids, labels):
            assert describe(array).location == name
        assert type(tiny) is np.ndarray, "solved in other units"
        assert describe(labels).dtype == np.int32
    assert info == 0
    expected = hetero.solve_poisson(X, device="cpu")
    np.testing.assert_allclose(hetero.to_host(u), expected, rtol=5e-3)
    np.testing.assert_allclose(hetero.to_host(x).reshape(N, N), expected, rtol=5e-3)
    expected = hetero.solve_poisson(expected, device="cpu")
    np.testing.assert_allclose(hetero.to_host(again).reshape(N, N), expected, rtol=5e-3)
    plain, numbers, _ = hetero.kmeans(X, 3, random_state=0, device=name)
    np.testing.assert_array_equal(hetero.to_host(labels), numbers)
    np.testing.assert_array_equal(hetero.to_host(centroids), plain)


def test_arrays_of_pyopencl(opencl):
    """Not those of another context, nor those that do not begin where their buffer does."""
    import pyopencl as cl
    from pyopencl import array as arrays

    with hetero.use(device=opencl, results="device"):
        A = hetero.matmul(X, X)
        turned = hetero.matmul(A.T, X)
        out = hetero.matmul(X, X)
        assert hetero.matmul(A, X, out=out) is out
    np.testing.assert_allclose(hetero.to_host(turned), (X @ X).T @ X, rtol=1e-4)
    np.testing.assert_allclose(hetero.to_host(out), X @ X @ X, rtol=1e-4)
    np.testing.assert_allclose(hetero.to_host(A.T), (X @ X).T, rtol=1e-5)
    with pytest.raises(TypeError, match="must begin where its buffer does"):
        hetero.matmul(A[1:], X)
    context = cl.Context([devices.get(opencl)._device])
    queue = cl.CommandQueue(context)
    with pytest.raises(TypeError, match="one that hetero made"):
        hetero.matmul(arrays.to_device(queue, X), X)
