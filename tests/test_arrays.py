"""Describing operands: host arrays, stand-ins, and whatever has ``__cuda_array_interface__``."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest

import hetero
from hetero.arrays import (
    Operand,
    Spec,
    describe,
    element_strides,
    is_device_array,
    overlap,
)
from hetero.ops.products.operands import collapse_batch


class Foreign:
    """An array of a library that nobody knows."""

    def __init__(self, **changes):
        interface = {
            "shape": (3, 4),
            "typestr": "<f4",
            "data": (0x1000, False),
            "version": 3,
            **changes,
        }
        self.__cuda_array_interface__ = {k: v for k, v in interface.items() if v != "left out"}


# -- Host ----------------------------------------------------------------------------------------


def test_host_arrays():
    A = np.zeros((6, 8), ">i2")[::2, ::-1]
    A.flags.writeable = False
    found = describe(A)
    assert found == Operand((3, 8), (32, -2), np.dtype(">i2"), "host", 0, True, None)
    assert (found.size, found.nbytes) == (24, 48)


def test_what_is_no_array():
    for value in (5, "text", None, [1.0], object()):
        with pytest.raises(TypeError, match=type(value).__name__):
            describe(value)
        assert not is_device_array(value)
    assert not is_device_array(np.zeros(3))


def test_specs():
    found = describe(hetero.spec((3, 4), "float32", on="cuda:1", order="F"))
    assert found == Operand((3, 4), (4, 12), np.dtype("float32"), "cuda:1")
    assert hetero.spec(5).shape == (5,)
    assert hetero.spec(np.int64(5)).shape == (5,)
    assert repr(hetero.spec((2, 3), "f4")) == "spec((2, 3), 'float32', on='host', order='C')"


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (((3, -1),), {}, "-1"),
        ((3,), {"order": "K"}, "'C' or 'F', got 'K'"),
        ((3,), {"on": "gpu"}, "'host' or .*got 'gpu'"),
    ],
)
def test_specs_that_make_no_sense(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        Spec(*arguments, **options)
    with pytest.raises(TypeError):
        Spec((3,), "no dtype")


# -- Devices -------------------------------------------------------------------------------------


def test_an_interface():
    found = describe(Foreign())
    assert found == Operand((3, 4), (16, 4), np.dtype("<f4"), "cuda:0", 0x1000, False, None)
    assert is_device_array(Foreign())


def test_strides_may_be_none_or_anything():
    assert describe(Foreign(strides=None)).strides == (16, 4)
    assert describe(Foreign(strides=(-64, 8))).strides == (-64, 8)
    assert describe(Foreign(shape=(), strides=None)).strides == ()
    assert describe(Foreign(shape=[3, 4], strides=[16, 4])).shape == (3, 4)


def test_readonly_and_pointer():
    assert describe(Foreign(data=(0x1000, True))).readonly
    assert describe(Foreign(data=(0, False), shape=(0, 4))).pointer == 0
    assert describe(Foreign(data=(None, False), shape=(0, 4))).pointer == 0


@pytest.mark.parametrize("typestr", ["<f8", ">f4", "|b1", "<c8", "<i8", "<f2", "|u1"])
def test_dtypes(typestr):
    assert describe(Foreign(typestr=typestr)).dtype == np.dtype(typestr)


def test_structured_dtype():
    found = describe(Foreign(typestr="|V8", descr=[("x", "<f4"), ("y", "<f4")]))
    assert found.dtype.names == ("x", "y")


@pytest.mark.parametrize("stream", [None, 1, 2, 0x7F00])
def test_streams(stream):
    assert describe(Foreign(stream=stream)).stream == stream


def test_older_interfaces_have_no_stream():
    assert describe(Foreign(version=2)).stream is None


def test_masks_are_refused():
    with pytest.raises(TypeError, match="mask"):
        describe(Foreign(mask=Foreign()))
    assert describe(Foreign(mask=None)).shape == (3, 4)


@pytest.mark.parametrize("missing", ["shape", "typestr", "data"])
def test_interfaces_that_say_nothing_usable(missing):
    with pytest.raises(TypeError, match=missing):
        describe(Foreign(**{missing: "left out"}))


def test_which_device():
    def on(**device):
        array = Foreign()
        array.device = types.SimpleNamespace(**device)
        return describe(array).location

    assert on(id=2) == "cuda:2"  # CuPy
    assert on(type="cuda", index=3) == "cuda:3"  # torch
    assert on(index=None) == "cuda:0"
    assert describe(Foreign()).location == "cuda:0"


def test_streams_of_torch_come_from_torch(monkeypatch):
    """Its interface is version 2, without one."""

    class Tensor(Foreign):
        device = types.SimpleNamespace(index=1)

    Tensor.__module__ = "torch"
    asked = []

    def current_stream(device):
        asked.append(device)
        return types.SimpleNamespace(cuda_stream=0x99)

    torch = types.SimpleNamespace(cuda=types.SimpleNamespace(current_stream=current_stream))
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert describe(Tensor()).stream == 0x99
    assert asked == [Tensor.device]
    torch.cuda.current_stream = lambda device: types.SimpleNamespace(cuda_stream=0)
    assert describe(Tensor()).stream is None, "the default stream"


# -- Layout --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "dense", "c"),
    [
        (lambda x: x, True, True),
        (lambda x: x.T, True, False),
        (lambda x: x.transpose(1, 0, 2), True, False),
        (lambda x: x[:1], True, True),
        (lambda x: x[::2], False, False),
        (lambda x: x[..., :2], False, False),
        (lambda x: x[::-1], False, False),
        (lambda x: x[:, :1, :], False, False),
        (lambda x: np.broadcast_to(x[:1], x.shape), False, False),
        (lambda x: x[0, 0, 0], True, True),
        (lambda x: x[:1, :1, :1], True, True),
    ],
)
def test_dense(make, dense, c):
    found = describe(np.asarray(make(np.zeros((4, 3, 5)))))
    assert found.is_dense() is dense
    assert found.is_c_contiguous() is c


def test_strides_once_staged():
    x = np.zeros((4, 6), np.float32)
    assert describe(x.T).staged_strides() == (1, 6), "moved as it lies"
    assert describe(x[:, ::2]).staged_strides() == (3, 1), "packed"
    assert describe(Foreign(strides=(32, -8))).staged_strides() == (8, -2), "stays as it is"
    assert describe(Foreign(strides=(18, 4))).staged_strides() is None


def test_element_strides():
    assert element_strides((2, 3, 4)) == (12, 4, 1)
    assert element_strides((2, 3, 4), "F") == (1, 2, 6)
    assert element_strides(()) == ()
    assert element_strides((3, 0, 4)) == (4, 4, 1)


@pytest.mark.parametrize(
    ("start", "strides", "meets"),
    [
        (0x1000, (16, 4), True),
        (0x1000 + 48, (16, 4), False),
        (0x1000 + 44, (16, 4), True),
        (0x1000 - 48, (16, 4), False),
        (0x1000 - 44, (16, 4), True),
        (0x1000 + 48 + 32, (-16, 4), False),
        (0x1000 + 48 + 28, (-16, 4), True),
    ],
)
def test_overlap(start, strides, meets):
    first, second = describe(Foreign()), describe(Foreign(data=(start, False), strides=strides))
    assert overlap(first, second) is meets
    assert overlap(second, first) is meets
    assert not overlap(first, second._replace(location="cuda:1"))
    assert not overlap(first, second._replace(shape=(0, 4)))


# -- Batches -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shapes", "strides", "expected"),
    [
        ([(), ()], [(), ()], (1, [0, 0])),
        ([(5,), (5,)], [(12,), (20,)], (5, [12, 20])),
        ([(5,), ()], [(12,), ()], (5, [12, 0])),
        ([(5,), (1,)], [(12,), (99,)], (5, [12, 0])),
        ([(2, 5), (2, 5)], [(60, 12), (100, 20)], (10, [12, 20])),
        ([(2, 5), (5,)], [(60, 12), (20,)], None),
        ([(2, 5), (2, 5)], [(60, 12), (101, 20)], None),
        ([(2, 1), (1, 5)], [(60, 12), (100, 20)], None),
        ([(1, 5), (5,)], [(7, 12), (20,)], (5, [12, 20])),
        ([(2, 5), ()], [(60, 12), ()], (10, [12, 0])),
        ([(2, 5), (1, 1)], [(60, 12), (3, 4)], (10, [12, 0])),
        ([(3, 2, 5), (3, 2, 5)], [(120, 60, 12), (0, 0, 0)], (30, [12, 0])),
    ],
)
def test_batch_axes_become_one(shapes, strides, expected):
    assert collapse_batch(shapes, strides) == expected
