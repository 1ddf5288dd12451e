"""Remembered calls on device arrays give the same as the general way, or leave it to that."""

from __future__ import annotations

import contextlib
import dataclasses

import fakes
import numpy as np
import pytest
from scipy import signal

import hetero
import hetero.ops
from hetero import tables
from hetero.calling import planner
from hetero.errors import DeviceError

rng = np.random.default_rng(5)


class DriverError(Exception):
    """As the backend's library raises it."""


@pytest.fixture
def cuda(monkeypatch, cuda, general):
    """A fake device whose arrays the call cache knows."""
    cuda.ordered, cuda.general = True, general  # one for each call that was not remembered
    fakes.remember(monkeypatch, cuda, lambda: cuda.ordered)
    monkeypatch.setattr(cuda, "errors", (DriverError,))
    return cuda


def put(device, *shape):
    return fakes.Cupy.of(rng.standard_normal(shape).astype("float32"), device)


def product(device, A, B, **options):
    """How many calls went the general way; the result must be right."""
    before, expected = len(device.general), A.get() @ B.get()
    C = hetero.matmul(A, B, **options, device="cuda")
    assert options.get("out", C) is C
    np.testing.assert_allclose(C.get(), expected, rtol=1e-5, atol=1e-5)
    return len(device.general) - before


@pytest.fixture
def operands(cuda):
    """The device, and two matrices whose product is remembered."""
    A, B = put(cuda, 6, 4), put(cuda, 4, 5)
    assert [product(cuda, A, B) for _ in range(2)] == [1, 0]
    return cuda, A, B


def test_out_is_written_to_but_goes_the_general_way_where_it_overlaps(cuda):
    A, B = put(cuda, 4, 4), put(cuda, 4, 4)
    assert [product(cuda, A, B, out=put(cuda, 4, 4)) for _ in range(2)] == [1, 0]
    assert product(cuda, A, B, out=B) == 1


def test_other_addresses_are_prepared_apart(cuda):
    A = put(cuda, 6, 4)
    whole = put(cuda, 2 * 4 * 5 + 1)
    calls = []
    for offset in (0, 4, 0, 4):
        B = fakes.Cupy(
            whole.memory, whole.pointer + offset, (4, 5), "float32", (20, 4), cuda, None, False
        )
        calls.append(product(cuda, A, B))
    assert calls == [1, 0, 0, 0]
    assert [line for line in cuda.log if "prepare" in line] == ["prepare 16", "prepare 4"]


@pytest.mark.parametrize("change", ["context", "stream", "readonly", "forced", "plans"])
def test_the_unusual_goes_the_general_way(operands, change):
    cuda, A, B = operands
    cuda.context += change == "context"
    cuda.ordered = change != "stream"
    B.readonly = change == "readonly"
    if change == "plans":
        tables.forget()
    with hetero.use(device="cuda") if change == "forced" else contextlib.nullcontext():
        assert product(cuda, A, B) == 1
    cuda.context = 1  # as at first
    assert product(cuda, A, B) == (change in ("context", "stream", "readonly"))


@pytest.mark.parametrize("error", [DriverError, DeviceError, MemoryError, RuntimeError])
def test_a_failure_is_left_to_the_general_way(operands, monkeypatch, error):
    monkeypatch.setattr(fakes, "compute", fakes.raising(error("the device")))
    assert product(*operands) == 1


def test_a_mistake_is_no_failure_of_the_device(operands, monkeypatch):
    monkeypatch.setattr(fakes, "compute", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        product(*operands)


def test_what_cannot_be_remembered_still_has_its_result(cuda, monkeypatch):
    """The device fails, the CPU answers; that nothing can be prepared is no second failure."""
    fails = dict.fromkeys(("run", "prepare"), fakes.raising(DeviceError("no compiler")))
    failing = lambda i: dataclasses.replace(i, **fails) if i.kind == "cuda" else i  # noqa: E731
    fakes.change_rows(monkeypatch, "matmul", failing)
    tables.forget()
    product(cuda, put(cuda, 6, 4), put(cuda, 4, 5), method="tiled")


# -- Convolutions --------------------------------------------------------------------------------


def convolved(device, image, filter, mode="same", **options):
    before = len(device.general)
    options = {"device": "cuda", "method": "direct", **options}
    found = hetero.convolve2d(image, filter, mode, **options)
    boundary = options.get("boundary", "fill")
    taps = filter.get() if hasattr(filter, "get") else filter
    expected = signal.convolve2d(image.get(), taps, mode, boundary, options.get("fillvalue", 0))
    np.testing.assert_allclose(found.get(), expected, rtol=1e-5, atol=1e-5)
    return len(device.general) - before


@pytest.mark.parametrize("rows", [200, 600])  # 0.4 and 1.2 MB: the second one is watched
def test_images_on_the_host_are_planned_once_until_devices_may_hold_copies(cuda, rows, monkeypatch):
    planned, image, filter = [], rng.random((rows, 500), np.float32), rng.random((3, 4), np.float32)
    expected = signal.convolve2d(image, filter, "same")

    def plans(image):
        planned.clear()
        found = hetero.convolve2d(image, filter, "same", device="cuda", method="direct")
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        return len(planned)

    fakes.noting(monkeypatch, planner, "plan", lambda *_: planned.append(1))
    with hetero.use(watch=False):
        assert plans(image) == 1, "what is remembered holds outside of such blocks"
    uploads = fakes.uploads(monkeypatch, cuda)
    seen = [plans(image) for _ in range(4)]
    assert seen == ([1, 0, 0, 0] if rows == 200 else [1, 1, 1, 1])
    assert uploads.count(image.nbytes) == (4 if rows == 200 else 2), "then it is there"
    assert plans(image.copy()) == 0
    assert plans(hetero.keep(image.copy())) == 1
    monkeypatch.setenv("HETERO_WATCH", "0")
    assert plans(image) == 0


def test_filters_that_lie_on_the_device_are_read_there(cuda):
    image, filter = put(cuda, 20, 30), put(cuda, 3, 5)
    assert convolved(cuda, image, filter) == 1
    assert [convolved(cuda, image, filter) for _ in range(2)] == [0, 0]
    filter.view()[...] *= 2.0
    assert convolved(cuda, image, filter) == 0
    assert convolved(cuda, put(cuda, 20, 30), put(cuda, 3, 5)) == 0
    assert convolved(cuda, image, put(cuda, 5, 3)) == 1
    assert convolved(cuda, image, filter, boundary="wrap") == 1
    assert convolved(cuda, image, filter, fillvalue=0.0) == 1
    assert convolved(cuda, image, filter.get()) == 1, "its values on the host are another call"
    assert convolved(cuda, image, filter) == 0
