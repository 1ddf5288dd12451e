"""Calls on host arrays in ranges that move while others are computed: results, failures, prices."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from fakes import failing, uploads
from made_up import GPU, link, machine, priced, reason, square
from scipy import signal

import hetero
from hetero import devices
from hetero.errors import DeviceError, DeviceMemoryError

SHAPES = [
    ((64, 48), (48, 64)),
    ((61, 48), (48, 67)),
    ((3, 48), (48, 505)),
    ((505, 17), (17, 3)),
    ((3, 40, 48), (3, 48, 40)),
    ((27, 13, 14), (27, 14, 13)),
    ((27, 13, 14), (14, 13)),
    ((40, 48), (5, 48, 40)),
    ((2, 3, 29, 38), (2, 3, 38, 27)),
]


def integers(shape, seed=0, dtype=np.float32):
    """Numbers whose products and sums are exact."""
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(dtype)


def streamed(opencl, limit=None):
    return hetero.use(device=opencl, method="streamed", memory_limit=limit)


def number_of(plan):
    """Ranges of a plan."""
    return int(plan.chosen.made_of.split()[0])


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_products_with_little_room(opencl, shapes):
    A, B = (integers(shape, number) for number, shape in enumerate(shapes))
    expected = np.matmul(A, B)
    limit = int(0.3 * (A.nbytes + B.nbytes + expected.nbytes))
    with streamed(opencl, limit):
        result = hetero.matmul(A, B)
        ranges = number_of(hetero.plan("matmul", A, B))
    assert type(result) is np.ndarray
    assert not devices.troubles()
    np.testing.assert_array_equal(result, expected)
    assert ranges > 1


def test_a_result_that_is_given(opencl):
    A, B = integers((63, 48), 1), integers((48, 61), 2)
    whole = np.full((126, 122), 5, np.float32)
    with streamed(opencl, 20_000):
        for out in (
            np.empty((63, 61), np.float32),
            np.empty((61, 63), np.float32).T,
            whole[1::2, ::-2],
        ):
            assert hetero.matmul(A, B, out) is out
            np.testing.assert_array_equal(out, A @ B)
        assert (whole[::2] == 5).all(), "wrote beside its result"
        for is_turned in (False, True):
            square = integers((59, 59), 3)
            expected = square @ square
            out = square.T if is_turned else square
            hetero.matmul(square, square.copy(), out)
            np.testing.assert_array_equal(out, expected)


def test_what_every_range_reads_goes_up_once(opencl, monkeypatch):
    """B, and each part of A; where there is room for parts only, those of B go by again."""
    moved = uploads(monkeypatch, devices.get(opencl))
    A, B = integers((900, 64), 1), integers((64, 40), 2)
    with streamed(opencl, B.nbytes + A.nbytes // 2):
        result = hetero.matmul(A, B)
        assert number_of(hetero.plan("matmul", A, B)) > 2
    np.testing.assert_array_equal(result, A @ B)
    assert sum(moved) == A.nbytes + B.nbytes
    moved.clear()
    A, B = integers((300, 200), 1), integers((200, 300), 2)
    with streamed(opencl, A.nbytes):
        result = hetero.matmul(A, B)
    np.testing.assert_array_equal(result, A @ B)
    assert A.nbytes + B.nbytes < sum(moved) < 5 * A.nbytes


CALLS = {
    "matmul": ((integers((63, 48), 1), integers((48, 61), 2)), np.matmul),
    "convolve2d": ((integers((150, 61), 1), integers((6, 5), 2)), signal.convolve2d),
}


@pytest.fixture(params=CALLS)
def call(request):
    """``run()`` makes a call in several ranges; the operands, and what it is to give."""
    operands, plain = CALLS[request.param]
    run = getattr(hetero, request.param)
    return lambda: run(*operands), operands, plain(*operands)


@pytest.mark.parametrize("limit", [None, 20_000])
def test_every_allocation_may_fail(opencl, call, monkeypatch, warnings_of, limit):
    """The result is right whichever finds no room; operands and memory are as before."""
    run, operands, expected = call
    before = [x.copy() for x in operands]
    device = devices.get(opencl)
    fails, number = 0, 1
    while fails <= number:
        hetero.clear_memory()
        fails += 1
        with streamed(opencl, limit), monkeypatch.context() as patch:
            made = failing(patch, type(device), "allocate", fails, DeviceMemoryError("planted"))
            result = run()
        number = max(number, len(made))
        np.testing.assert_array_equal(result, expected)
    assert number > 2
    for operand, was in zip(operands, before, strict=True):
        np.testing.assert_array_equal(operand, was)
    assert devices.disabled(opencl) is None
    hetero.clear_memory()
    gc.collect()
    assert not sum(device.memory_held().values())


@pytest.mark.parametrize("method", ["begin_upload", "begin_download", "launch"])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_a_device_that_fails_in_the_middle(opencl, call, monkeypatch, warnings_of, method, number):
    run, _, expected = call
    device = type(devices.get(opencl))
    calls = failing(monkeypatch, device, method, number, DeviceError("planted"))
    with streamed(opencl, 20_000):
        result = run()
    np.testing.assert_array_equal(result, expected)
    assert len(calls) == number
    (text,) = warnings_of()
    assert "the CPU computes this call" in text


def test_larger_than_the_device():
    way = link(1e-5, 1e10)
    bus = {name: {**way, "staged": way["pageable"]} for name in ("upload", "download")}
    constants = machine(links={"cuda:*": bus})
    whole, part = (
        priced(square(16384), {"cuda:0": {**GPU, "memory_bytes": room}}, constants, device="cuda:0")
        for room in (80 << 30, 1 << 30)
    )
    assert reason(part, "cuda:0", "tiled") == "needs 3.0 GiB, the device has 1.0 GiB"
    assert part.chosen.method == "streamed"
    assert whole.seconds < part.seconds < 1.2 * whole.seconds
