"""What a call may take of a device: `use(memory_limit=...)` and HETERO_MEMORY_LIMIT."""

from __future__ import annotations

import gc
import time
import types

import numpy as np
import pytest

import hetero
from hetero import devices
from hetero.devices import storage
from hetero.errors import DeviceMemoryError
from hetero.pricing import places
from hetero.profile import inventory

A = np.random.default_rng(1).integers(-8, 9, (150, 100)).astype(np.float32)
B = np.random.default_rng(2).integers(-8, 9, (100, 125)).astype(np.float32)
WHOLE = A.nbytes + B.nbytes + 4 * 150 * 125


@pytest.fixture
def held(opencl, monkeypatch):
    """The bytes that are held of the device: ``now``, and the ``most`` so far."""
    device = devices.get(opencl)
    found = types.SimpleNamespace(now=0, most=0)

    class Owner:
        def __init__(self, size, owner):
            self.size, self.owner = size, owner
            found.now += size
            found.most = max(found.most, found.now)

        def __del__(self):
            found.now -= self.size

    def counted(nbytes, allocate=device.allocate):
        buffer, owner = allocate(nbytes)
        return buffer, Owner(nbytes, owner)

    monkeypatch.setattr(device, "allocate", counted)
    yield found
    device.clear()


def test_limits_are_read():
    for nbytes, same in (
        (4 * 10**9, (4 * 10**9, 4e9, np.int64(4e9), "4 GB", "4e9", " 4000000000 ")),
        (512 << 20, ("512MiB",)),
        (15 * 10**5, ("1.5 mb", "1.5e+3 kB")),
    ):
        assert [places.parsed_limit(given) for given in same] == [nbytes] * len(same)


def test_what_is_no_limit():
    for given in ("", "GB", "4 XB", "-4 GB", "nan", "1e", "1e400", 0, -1, 0.5, 1e30, 10**400):
        with pytest.raises(ValueError, match=r"memory_limit must be bytes above 0.*got"):
            hetero.use(memory_limit=given)
    for given in (True, [4], b"4 GB"):
        with pytest.raises(TypeError, match="memory_limit must be a number of bytes or a string"):
            hetero.use(memory_limit=given)


def test_a_limit_of_the_environment_that_is_none_is_passed_by(monkeypatch, opencl, warnings_of):
    """With one warning, at the first call on a device; calls by NumPy alone do not ask for it."""
    monkeypatch.setenv("HETERO_MEMORY_LIMIT", "much")
    for _ in range(2):
        np.testing.assert_array_equal(hetero.matmul(np.eye(3), np.eye(3)), np.eye(3))
        plan = hetero.plan("matmul", A, B, device=opencl)
        assert plan.chosen.method == "tiled"
        np.testing.assert_allclose(hetero.matmul(A, B, device=opencl), A @ B)
    (warning,) = warnings_of()
    assert "HETERO_MEMORY_LIMIT must be bytes above 0" in warning
    assert "'much'" in warning


def test_the_innermost_limit_holds_and_the_environments_last(opencl, monkeypatch):
    chosen = lambda: hetero.plan("matmul", A, B, device=opencl).chosen.method  # noqa: E731
    monkeypatch.setenv("HETERO_MEMORY_LIMIT", str(WHOLE // 2))
    assert chosen() == "streamed"
    with hetero.use(memory_limit=2 * WHOLE):
        assert chosen() == "tiled"
        with hetero.use(memory_limit="100 kB"):
            assert chosen() == "streamed"
            with hetero.use(method="streamed"):
                assert places.memory_limit() == 100_000
        assert chosen() == "tiled"
    monkeypatch.delenv("HETERO_MEMORY_LIMIT")
    assert chosen() == "tiled"


@pytest.mark.parametrize("limit", [WHOLE // 2, 40_000, 1_000])
def test_a_call_holds_no_more(opencl, held, limit):
    with hetero.use(device=opencl, memory_limit=limit):
        result = hetero.matmul(A, B)
        assert held.most <= limit
        if limit > 10_000:
            assert hetero.plan("matmul", A, B).chosen.method == "streamed"
            assert held.most > 0
    np.testing.assert_array_equal(result, A @ B)
    gc.collect()
    assert held.now == 0
    assert not devices.troubles()


def test_what_needs_more_than_its_operands_is_the_cpus(opencl, held, warnings_of):
    """The limit holds for all that a solve allocates, also where f and u alone would fit."""
    f = np.random.default_rng(3).random((20, 25))
    with hetero.use(device=opencl, memory_limit=2 * f.nbytes):
        u = hetero.solve_poisson(f, method="multigrid", rtol=1e-3)[0]
        assert held.most <= 2 * f.nbytes
    expected = hetero.solve_poisson(f, device="cpu", method="multigrid", rtol=1e-3)[0]
    np.testing.assert_allclose(u, expected, rtol=0.1, atol=1e-2 * abs(expected).max())
    assert devices.disabled(opencl) is None


def test_a_budget_counts_what_is_held():
    with storage.limited_to(1000):
        owners = [storage.allocated("x", 400, object), storage.allocated("y", 900, object)]
        with pytest.raises(DeviceMemoryError, match=r"700 bytes and 400 held .* limit, 1000"):
            storage.allocated("x", 700, object)
        owners.append(storage.allocated("x", 600, object))
        del owners[0]
        with pytest.raises(ZeroDivisionError):
            storage.allocated("x", 400, lambda: 1 / 0)
        owners.append(storage.allocated("x", 400, object))
        with storage.limited_to(None):
            storage.allocated("x", 10**9, object)
    storage.allocated("x", 10**9, object)
    inventory.changed()


def test_a_plan_has_no_more_tiles_than_are_worth_it(opencl, held, warnings_of):
    """What has room for 159 000 tiles of 3x3 only was planned for 3 s, and ran for a minute."""
    A, B = np.ones((1100, 900), np.float32), np.ones((900, 1300), np.float32)
    begin = time.perf_counter()
    with hetero.use(device=opencl, memory_limit=50_000):
        result = hetero.matmul(A, B)
        assert "there is no room for the smallest range" in str(hetero.plan("matmul", A, B))
    assert time.perf_counter() - begin < 2.0
    assert held.most <= 50_000
    np.testing.assert_array_equal(result, np.full((1100, 1300), 900, np.float32))
    assert devices.disabled(opencl) is None
