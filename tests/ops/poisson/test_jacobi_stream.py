"""Jacobi's method on grids that a device has no room for: slabs of them go there in turn."""

from __future__ import annotations

import numpy as np
import pytest

import hetero
from hetero import devices
from hetero.errors import DeviceError, DeviceMemoryError
from hetero.ops.linear_systems.types import DeviceFailed, Stencil
from hetero.ops.poisson import jacobi_device, jacobi_stream

# Lines of whole vectors and others, in two and three dimensions; fewer rows than a slab has.
SHAPES = [
    ((2, 9), "float32"),
    ((41, 64), "float32"),
    ((26, 67), "float64"),
    ((12, 6, 7), "float64"),
]


@pytest.fixture
def device(opencl):
    found = devices.get(opencl)
    with found.active():
        yield found


def problem(shape, dtype):
    rng = np.random.default_rng(3)
    stencil = Stencil(shape, tuple(0.5 + 0.3 * axis for axis in range(len(shape))))
    return stencil, *(rng.standard_normal(shape).astype(dtype) for _ in range(2))


def room_for(rows, shape, dtype):
    """Bytes for slabs of so many rows."""
    columns = -(-shape[-1] // 4) * 4
    plane = columns * np.dtype(dtype).itemsize * (shape[1] if len(shape) == 3 else 1)
    each = 2 * (3 * plane + 8) + (0 if columns == shape[-1] else 3 * plane)
    return (rows + 0.5) * each / 0.75


@pytest.mark.parametrize(("shape", "dtype"), SHAPES, ids=str)
def test_the_bits_are_those_of_the_whole(device, shape, dtype):
    """Slabs of three rows and more, whatever number of sweeps they see at once."""
    stencil, f, start = problem(shape, dtype)
    for sweeps in (1, 30):
        whole = start.copy()
        expected = jacobi_device.solve([device], stencil, f, whole, sweeps=sweeps, dtype=dtype)
        for rows, reach in ((3, 256), (9, 2), (20, 256), (100, 8)):
            u, room = start.copy(), room_for(rows, shape, dtype)
            outcome = jacobi_stream.solve(
                device, stencil, f, u, room=room, sweeps=sweeps, reach=reach
            )
            assert outcome == expected
            np.testing.assert_array_equal(u, whole)


def test_the_residual_ends_it(device):
    """After as many sweeps as of the whole; a right-hand side of zero at once."""
    stencil, f, start = problem((26, 68), "float64")
    whole, u, room = start.copy(), start.copy(), room_for(20, (26, 68), "float64")
    expected = jacobi_device.solve([device], stencil, f, whole, rtol=0.1)
    assert expected.iterations > 64
    assert jacobi_stream.solve(device, stencil, f, u, room=room, rtol=0.1) == expected
    np.testing.assert_array_equal(u, whole)
    zero = np.zeros_like(f)
    assert jacobi_stream.solve(device, stencil, zero, u, room=room, rtol=0.1).residual == 0.0
    assert not u.any()


def test_what_is_on_the_device_keeps_to_its_room(device, monkeypatch):
    stencil, f, u = problem((60, 67), "float32")
    made, real = [], type(device).allocate

    def allocate(self, nbytes):
        made.append(nbytes)
        return real(self, nbytes)

    monkeypatch.setattr(type(device), "allocate", allocate)
    for rows in (3, 10, 30):
        made.clear()
        room = room_for(rows, u.shape, "float32")
        jacobi_stream.solve(device, stencil, f, u, room=room, sweeps=3)
        assert 0.5 * room < sum(made) <= room


def test_a_limit_of_memory(opencl):
    """`solve_poisson` computes there, without and with x0, on fewer bytes than f has."""
    f = np.random.default_rng(0).standard_normal((90, 80))
    options = {"method": "jacobi", "rtol": 0.0, "maxiter": 40, "device": opencl}
    for x0 in (None, f[::-1].copy()):
        whole = hetero.solve_poisson(f, x0=x0, **options)
        with hetero.use(memory_limit=f.nbytes // 2):
            u, info = hetero.solve_poisson(f, x0=x0, return_info=True, **options)
        assert (info["device"], info["iterations"]) == (opencl, 40)
        np.testing.assert_array_equal(u, whole)


def test_every_allocation_may_fail(device, monkeypatch):
    """Then slabs are smaller; where not even three rows have room, the CPU sweeps."""
    stencil, f, start = problem((40, 67), "float64")
    expected = start.copy()
    jacobi_device.solve([device], stencil, f, expected, sweeps=9)
    made, failing, real = [], [0], type(device).allocate

    def allocate(self, nbytes):
        made.append(nbytes)
        if len(made) == failing[0]:
            raise DeviceMemoryError("no room")
        return real(self, nbytes)

    monkeypatch.setattr(type(device), "allocate", allocate)
    room = room_for(30, f.shape, "float64")
    while failing[0] <= len(made):
        made.clear()
        failing[0] += 1
        u = start.copy()
        jacobi_stream.solve(device, stencil, f, u, room=room, sweeps=9)
        np.testing.assert_array_equal(u, expected)
    assert failing[0] > 8
    with pytest.raises(DeviceFailed) as failed:
        jacobi_stream.solve(device, stencil, f, start, room=500, sweeps=9)
    assert isinstance(failed.value.__cause__, DeviceMemoryError)
    options = {"method": "jacobi", "rtol": 0.0, "maxiter": 40, "device": device.name}
    whole = hetero.solve_poisson(f, **options)
    with hetero.use(memory_limit=500):
        u, info = hetero.solve_poisson(f, return_info=True, **options)
    assert info["device"] == "cpu"
    np.testing.assert_allclose(u, whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("error", [DeviceError("gone"), KeyboardInterrupt()], ids=str)
def test_a_failure_brings_the_last_whole_u(device, error, monkeypatch):
    stencil, f, start = problem((40, 64), "float64")
    room, stores = room_for(13, f.shape, "float64"), []
    real = type(device).begin_download

    def begin_download(self, *given):
        stores.append(given)
        if len(stores) == 16:  # in the second pass, after the norm of f and the first
            raise error
        return real(self, *given)

    monkeypatch.setattr(type(device), "begin_download", begin_download)
    with pytest.raises(type(error)) as failed:
        jacobi_stream.solve(device, stencil, f, start.copy(), room=room, sweeps=9, reach=3)
    monkeypatch.undo()
    if isinstance(error, DeviceError):
        assert failed.value.iterations == 3
        expected = start.copy()
        jacobi_device.solve([device], stencil, f, expected, sweeps=3)
        np.testing.assert_array_equal(failed.value.x, expected)
    u, expected = start.copy(), start.copy()
    jacobi_stream.solve(device, stencil, f, u, room=room, sweeps=9, reach=3)
    jacobi_device.solve([device], stencil, f, expected, sweeps=9)
    np.testing.assert_array_equal(u, expected)
