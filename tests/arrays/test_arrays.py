"""What hetero asks of arrays: host arrays, stand-ins, and device arrays of each library."""

from __future__ import annotations

import ctypes
import sys
import types

import fakes
import numpy as np
import pytest

import hetero
from hetero.arrays import (
    UNKNOWN_STREAM,
    Operand,
    Spec,
    as_array,
    describe,
    is_device_array,
    libraries,
    library_of,
)
from hetero.arrays.libraries import _pointer
from hetero.devices.cuda.driver import DeviceArray


class Foreign:
    """An array of a library that nobody knows."""

    def __init__(self, **changes):
        interface = {"shape": (3, 4), "typestr": "<f4", "data": (0x1000, False), "version": 3}
        interface |= changes
        self.interface = {k: v for k, v in interface.items() if v != "left out"}

    __cuda_array_interface__ = property(lambda self: self.interface)


# -- Host ----------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("missing", ["shape", "typestr", "data"])
def test_interfaces_that_say_nothing_usable(missing):
    with pytest.raises(TypeError, match=missing):
        describe(Foreign(**{missing: "left out"}))
    with pytest.raises(TypeError, match="mask"):
        describe(Foreign(mask=Foreign()))


def test_streams_of_torch_come_from_torch(monkeypatch):
    """Its interface is version 2, without one."""

    class Tensor(Foreign):
        device = types.SimpleNamespace(index=1)

    Tensor.__module__ = "torch"
    asked = []

    def current_stream(device):
        asked.append(device)
        return types.SimpleNamespace(cuda_stream=0x99)

    cuda = types.SimpleNamespace(current_stream=current_stream)
    torch = types.SimpleNamespace(cuda=cuda, strided=object())
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert describe(Tensor()).stream == 0x99
    assert asked == [Tensor.device]
    current = types.SimpleNamespace(cuda_stream=0)
    cuda.current_stream = lambda *device: current
    assert describe(Tensor()).stream is None, "the default stream"
    access = libraries.TORCH.access(Tensor, False)  # of remembered calls
    for current.cuda_stream, ordered in ((0, True), (0x99, False)):
        assert access.ordered() is ordered


# -- Libraries -----------------------------------------------------------------------------------


def of_library(name, base=Foreign, **contents):
    """A type that is taken for a library's own."""
    return type("ndarray", (base,), {"__module__": name, **contents})


@pytest.mark.parametrize(
    ("name", "adapter"),
    [
        ("cupy._core.core", "cupy"),
        ("torch", "torch"),
        ("pycuda.gpuarray", "pycuda"),
        ("numba.cuda.cudadrv.devicearray", "numba"),
        ("numba_cuda.numba.cuda", "numba"),
        ("jax", "other"),
    ],
)
def test_a_library_is_known_by_its_module(name, adapter):
    kind = of_library(name)
    for made in (kind(), type("Subclass", (kind,), {})()):
        assert library_of(made).name == adapter
    assert library_of(kind()) is library_of(kind())


def test_a_tensor_may_lie_on_the_host():
    tensor = of_library("torch", is_cuda=False)
    assert not is_device_array(tensor())
    tensor.is_cuda = True
    assert is_device_array(tensor())


def test_the_interface_of_a_type_may_be_of_no_use_on_the_host():
    """As that of JAX's arrays."""

    def interface(self):
        raise AttributeError("not on a GPU")

    kind = of_library("jax", object, __cuda_array_interface__=property(interface))
    assert not is_device_array(kind())
    with pytest.raises(TypeError, match="not on a GPU"):
        describe(kind())


def test_a_new_array_is_numbas_where_the_operand_is(monkeypatch):
    made = Foreign(data=(0x2000, False), shape=(2, 3))
    cuda = types.SimpleNamespace(device_array=lambda shape, dtype: made)
    monkeypatch.setitem(sys.modules, "numba", types.SimpleNamespace(cuda=cuda))
    monkeypatch.setitem(sys.modules, "numba.cuda", cuda)
    like = of_library("numba")()
    assert library_of(like).empty(like, (2, 3), np.dtype("float32")) is made


# -- Arrays that hetero makes without PyCUDA


class Memory(fakes.Memory):
    """Some of the host's, that counts as of cuda:1."""

    ordinal = 1

    def __int__(self):
        return self.address


def seen(array):
    found = describe(array)
    assert found.location == "cuda:1"
    assert found.is_ordered()
    return fakes.view(found.pointer, found.shape, found.dtype, found.strides)


def test_an_array_of_our_own_is_described_and_viewed():
    whole = DeviceArray((4, 5, 3), "float32", allocator=Memory)
    host = np.random.default_rng(0).random((4, 5, 3), np.float32)
    seen(whole)[...] = host
    assert (whole.ndim, whole.size, whole.nbytes) == (3, 60, 240)
    for index in (
        *(2, np.int64(-1), slice(1, None, 2), ..., None, (), (1, 2, 0), (slice(None), 3)),
        *((slice(None, None, -1), ..., slice(2, 0, -1)), (None, 1, ..., 2)),
    ):
        view = whole[index]
        np.testing.assert_array_equal(seen(view), host[index])
        assert (view.ndim, view.size) == (np.ndim(host[index]), np.size(host[index]))
    np.testing.assert_array_equal(seen(whole[1:][::-2][0]), host[1:][::-2][0])
    assert whole.strides == host.strides
    assert whole.T.strides == host.T.strides
    columns = DeviceArray((4, 5, 3), "float32", allocator=Memory, order="F")
    seen(columns)[...] = host
    np.testing.assert_array_equal(seen(columns[1:, 2]), host[1:, 2])
    assert columns.strides == np.asfortranarray(host).strides


def test_an_array_of_our_own_refuses_what_it_cannot():
    array = DeviceArray((4, 5), "float64", allocator=Memory)
    with pytest.raises(TypeError, match="integers or slices"):
        array[[1, 2]]
    with pytest.raises(TypeError, match="integers or slices"):
        array[:, np.array([True] * 5)]
    with pytest.raises(IndexError):
        array[4]
    with pytest.raises(TypeError, match="to_host"):
        np.asarray(array)
    assert as_array(array) is array
    assert not library_of(array).pickles


# -- DLPack --------------------------------------------------------------------------------------

# Where fields of a DLManagedTensorVersioned lie.
FIELDS = {
    "major": (0, ctypes.c_uint32),
    "flags": (24, ctypes.c_uint64),
    "data": (32, ctypes.c_uint64),
    "device": (40, ctypes.c_int32),
    "number": (44, ctypes.c_int32),
    "code": (52, ctypes.c_uint8),
    "lanes": (54, ctypes.c_uint16),
    "strides": (64, ctypes.c_uint64),
    "byte_offset": (72, ctypes.c_uint64),
}


class Exported:
    """An array with ``__dlpack__`` and ``__dlpack_device__`` and nothing else.

    NumPy makes the capsule of its memory, in which ``changes`` are made; ``is_old``: of before
    version 1.
    """

    device_type = 2  # CUDA

    def __init__(self, array, is_old=False, **changes):
        self.array, self.is_old, self.changes = array, is_old, changes
        self.asked = []

    def __dlpack_device__(self):
        return self.device_type, 0

    def __dlpack__(self, *, stream=None, **options):
        if self.is_old and options:
            raise TypeError("unexpected keyword")
        self.asked.append((stream, options))
        capsule = self.array.view().__dlpack__(**options)
        for name, value in self.changes.items():
            offset, kind = FIELDS[name]
            kind.from_address(_pointer(capsule, b"dltensor_versioned") + offset).value = value
        return capsule


class Standard(Exported):
    """The same of a library that follows the array API standard."""

    shape = property(lambda self: self.array.shape)
    dtype = property(lambda self: f"toy.{self.array.dtype}")
    device = property(lambda self: self.array.owner)

    def __array_namespace__(self):
        def empty(shape, dtype, device):
            return Standard(fakes.Cupy.empty(shape, dtype, device))

        return types.SimpleNamespace(empty=empty, float32=np.float32, float64=np.float64)


HOST_VALUES = np.arange(24, dtype=np.float32).reshape(4, 6)


@pytest.mark.parametrize("is_old", [True, False])
def test_dlpack(cuda, is_old):
    for values in (HOST_VALUES, HOST_VALUES.T, HOST_VALUES[::-2, 1:], HOST_VALUES[0, 0]):
        array = fakes.Cupy.of(np.asarray(values), cuda)
        exported = Exported(array, is_old)
        assert is_device_array(exported)
        assert as_array(exported) is exported
        expected = describe(array)._replace(stream=UNKNOWN_STREAM)
        assert describe(exported) == expected
        options = {} if is_old else {"max_version": (1, 0), "copy": False}
        assert exported.asked == [(1, options)]


def test_dlpack_without_strides_and_with_an_offset(cuda):
    array = fakes.Cupy.of(HOST_VALUES, cuda)
    found = describe(Exported(array, strides=0, data=array.pointer - 64, byte_offset=64, number=1))
    assert found == describe(array)._replace(location="cuda:1", stream=UNKNOWN_STREAM)


def test_dlpack_that_cannot_be_used(cuda):
    array = fakes.Cupy.of(HOST_VALUES, cuda)
    assert describe(Exported(array, flags=1)).readonly
    for options, message in (
        ({"flags": 2}, "exports a copy"),
        ({"major": 2}, "version 1 or older, got 2"),
        ({"code": 4}, "type code 4 with 32 bits"),
        ({"lanes": 4}, "4 lanes"),
    ):
        with pytest.raises(TypeError, match=message):
            describe(Exported(array, **options))
    refusing = Exported(array)
    refusing.__dlpack__ = fakes.raising(BufferError("no export"))
    with pytest.raises(TypeError, match="Exported cannot be exported by DLPack: no export"):
        describe(refusing)
    elsewhere = type("Elsewhere", (Exported,), {"device_type": 4})(array, device=4)
    assert not is_device_array(elsewhere)
    for function in (describe, as_array):
        with pytest.raises(TypeError, match="device"):
            function(elsewhere)


class Only:
    """An array of which nothing but its export is known."""

    def __init__(self, array):
        self.array = array

    __dlpack_device__ = property(lambda self: self.array.__dlpack_device__)
    __dlpack__ = property(lambda self: self.array.__dlpack__)


def test_dlpack_on_the_host_becomes_numpys():
    on_host = Only(HOST_VALUES)
    assert not is_device_array(on_host)
    assert np.shares_memory(as_array(on_host), HOST_VALUES)
    np.testing.assert_array_equal(
        hetero.matmul(on_host, HOST_VALUES.T), HOST_VALUES @ HOST_VALUES.T
    )


@pytest.mark.parametrize("place", [None, "cpu", "cuda"])
@pytest.mark.parametrize(
    ("kind", "is_old"), [(Exported, True), (Exported, False), (Standard, False)]
)
def test_products_of_dlpack_arrays(cuda, kind, is_old, place):
    """Read in place. Their library orders what was before; what comes after is waited for."""
    A, B = HOST_VALUES, HOST_VALUES.T.copy()
    first, second = (kind(fakes.Cupy.of(x, cuda), is_old) for x in (A, B))
    cuda.log.clear()
    result = hetero.matmul(first, second, device=place)
    assert type(result) is (Standard if kind is Standard else fakes.Array), "PyCUDA's stand-in"
    np.testing.assert_array_equal(hetero.to_host(result), A @ B)
    if place == "cuda":
        assert [x for x in cuda.log if x in ("upload", "compute")] == ["compute"]
        assert cuda.log[cuda.log.index("compute") + 1] == "synchronize"
    out = kind(fakes.Cupy.of(np.zeros((4, 4), np.float32), cuda), is_old)
    assert hetero.matmul(first, second, out=out, device=place) is out
    np.testing.assert_array_equal(out.array.get(), A @ B)
    with pytest.raises(TypeError, match="device arrays take no casting"):
        hetero.matmul(first, second, casting="no")


@pytest.mark.gpu
def test_dlpack_of_cupy():
    cupy = pytest.importorskip("cupy")
    A, B = cupy.asarray(HOST_VALUES), cupy.asarray(HOST_VALUES.T.copy())[::-1]
    out = cupy.zeros((4, 4), "float32")
    for stream in (cupy.cuda.Stream.null, cupy.cuda.Stream(non_blocking=True)):
        with stream:
            A *= 2
            result = hetero.matmul(Only(A), Only(B), device="cuda")
            hetero.matmul(Only(A), Only(B), out=Only(out), device="cuda")
            expected = A.get() @ B.get()
            np.testing.assert_array_equal(out.get(), expected)
        np.testing.assert_array_equal(hetero.to_host(result), expected)
