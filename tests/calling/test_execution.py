"""Running plans: what happens when a device fails, is set aside, or was the parent process's."""

from __future__ import annotations

import dataclasses

import fakes
import numpy as np
import pytest
from scipy import signal

import hetero
from hetero import devices
from hetero.errors import DeviceError, DeviceMemoryError
from hetero.host import cpu
from hetero.profile import inventory

rng = np.random.default_rng(7)
A32 = rng.random((6, 5), np.float32)
B32 = rng.random((5, 7), np.float32)


@pytest.mark.parametrize("shape", [(3, 3), (60, 60)])
def test_the_cpu_answers_by_its_own_fastest_way(opencl, monkeypatch, shape):
    """Not by whichever is registered first: a direct sum of a large filter takes minutes."""
    image, filter = rng.random((200, 200)), rng.random(shape)
    wanted = hetero.plan("convolve2d", image, filter, device="cpu").chosen.method
    ran = []

    def instead(i):
        def run(devices, problem, arguments):
            if devices:
                raise DeviceError("ill")
            ran.append(i.method)
            return i.run(devices, problem, arguments)

        return dataclasses.replace(i, run=run)

    fakes.change_rows(monkeypatch, "convolve2d", instead)
    inventory.changed()
    result = hetero.convolve2d(image, filter, device=opencl, method="direct")
    assert ran == [wanted]
    np.testing.assert_allclose(result, signal.convolve2d(image, filter), rtol=1e-10)


def test_a_host_without_memory_is_not_the_devices_trouble(opencl, monkeypatch, warnings_of):
    fakes.failing(monkeypatch, cpu, "empty", 1, MemoryError("Unable to allocate 9 GiB"))
    np.testing.assert_array_equal(hetero.matmul(A32, B32, device=opencl), A32 @ B32)
    (text,) = warnings_of()
    assert text.startswith("the host has not enough free memory (out of host memory")
    assert opencl not in devices.troubles()


def test_reset_takes_a_device_back(monkeypatch, opencl, warnings_of):
    attempts = []

    def run(*_):
        attempts.append(1)
        raise DeviceError("ill")

    failing = lambda i: dataclasses.replace(i, run=run) if i.kind == "opencl" else i  # noqa: E731
    fakes.change_rows(monkeypatch, "matmul", failing)
    for _ in range(3):
        np.testing.assert_array_equal(hetero.matmul(A32, B32, device=opencl), A32 @ B32)
        assert (devices.disabled(opencl) is None) == (len(attempts) == 1)
    first, second = warnings_of()
    assert first == f"{opencl} failed (ill); the CPU computes this call"
    assert f"hetero.reset('{opencl}')" in second
    assert len(attempts) == 2
    assert "ill" in hetero.machine()["devices"][opencl]["set_aside"]
    assert hetero.machine()["failed"] == {opencl: "ill"}
    hetero.reset(opencl)
    assert "set_aside" not in hetero.machine()["devices"][opencl]
    for _ in range(3):
        hetero.matmul(A32, B32, device=opencl)
    assert len(attempts) == 4
    assert devices.disabled(opencl)
    hetero.reset()
    assert devices.disabled(opencl) is None


@pytest.mark.parametrize("operation", ["matmul", "convolve2d"])
def test_a_device_set_aside_while_a_call_is_cut_leaves_it_to_the_cpu(
    opencl, monkeypatch, operation
):
    def full(nbytes):
        for _ in range(2):
            devices.count_failure(opencl, DeviceError("ill"))
        inventory.changed()
        raise DeviceMemoryError("full")

    A, B = rng.random((400, 400)), rng.random((400, 400) if operation == "matmul" else (3, 3))
    function = getattr(hetero, operation)
    expected = function(A, B, device="cpu")
    assert hetero.plan(operation, A, B, device=opencl).chosen.device == opencl
    monkeypatch.setattr(devices.get(opencl), "allocate", full)
    np.testing.assert_allclose(function(A, B, device=opencl), expected, rtol=1e-12)


def test_reset_opens_an_opencl_device_anew(opencl, monkeypatch, warnings_of):
    """Whatever is kept there belongs to the context that is given up."""
    device = devices.get(opencl)
    rhs = rng.random((16, 16))
    solved = hetero.solve_poisson(rhs, device=opencl)
    lost, queue = device._opened

    def refused(used, *_):
        if used is queue:
            raise device.cl.RuntimeError("enqueue_copy failed: INVALID_COMMAND_QUEUE")

    fakes.noting(monkeypatch, device.cl, "enqueue_copy", refused)
    for _ in range(2):
        hetero.matmul(A32, B32, device=opencl)
    assert devices.disabled(opencl)
    hetero.reset(opencl)
    said = len(warnings_of())
    hetero.matmul(A32, B32, device=opencl)
    np.testing.assert_allclose(hetero.solve_poisson(rhs, device=opencl), solved, rtol=1e-9)
    assert device._opened[0] != lost
    assert len(warnings_of()) == said
    assert not devices.troubles()


def test_a_failure_of_one_of_several_is_booked_on_that_one(two, monkeypatch, warnings_of):
    """The second of two equal ones fails in mid-solve, and the CPU begins anew."""
    used, twin = [], {**two[0].describe(), "name": "twin"}

    def run(devices, problem, arguments):
        used.append([device.name for device in devices])
        arguments.output[...] = np.nan
        with devices[1].active():
            raise DeviceError("fell off the bus")

    def changed(i):
        return dataclasses.replace(i, run=run) if (i.kind, i.method) == ("cuda", "jacobi") else i

    fakes.change_rows(monkeypatch, "poisson", changed)
    for device in two:
        monkeypatch.setattr(device, "describe", lambda: twin)
    inventory.changed()
    f = rng.random((64, 40))
    known = {"rtol": 0.0, "maxiter": 100, "method": "jacobi"}
    expected = hetero.solve_poisson(f, device="cpu", **known)
    for number in (1, 2):
        u, info = hetero.solve_poisson(f, device="cuda:*", return_info=True, **known)
        assert used == [["cuda:0", "cuda:1"]] * number
        np.testing.assert_allclose(u, expected, rtol=1e-12, atol=1e-12)
        assert (info["device"], info["method"], info["iterations"]) == ("cpu", "jacobi", 100)
        assert len(warnings_of()) == number
        assert all(said.startswith("cuda:1 failed") for said in warnings_of())
    assert devices.disabled("cuda:0") is None
    assert "fell off the bus" in devices.disabled("cuda:1")
    assert list(devices.troubles()) == ["cuda:1"]
