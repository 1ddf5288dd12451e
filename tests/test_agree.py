"""Every implementation of every operation, on every device that is here, against a slow reference.

The list is the registry's own: a new implementation is tested without a line here.
"""

from __future__ import annotations

import numpy as np
import pytest
from layouts import LAYOUTS

import hetero
import hetero.ops
from hetero import devices
from hetero.arrays import describe
from hetero.errors import MethodNotAvailable
from hetero.runtime import registry, transfer

# (batch of A, batch of B, m, n, k); matvec leaves n out. Small and odd, around the tiles' edges.
SIZES = [
    ((), (), 1, 1, 1),
    ((), (), 1, 7, 5),
    ((), (), 7, 1, 5),
    ((), (), 3, 5, 1),
    ((), (), 16, 16, 16),
    ((), (), 31, 33, 17),
    ((), (), 65, 64, 63),
    ((), (), 130, 67, 129),
    ((), (), 128, 128, 128),
    ((), (), 5, 3, 3001),
    ((), (), 1500, 2, 3),
    ((), (), 3, 1501, 2),
    ((3,), (3,), 9, 8, 7),
    ((3,), (), 9, 8, 7),
    ((), (3,), 9, 8, 7),
    ((2, 3), (2, 3), 5, 4, 33),
    ((1,), (4,), 6, 5, 8),
]
LAID = [("F", "C"), ("C", "F"), ("F", "F"), ("padded", "padded"), ("strided", "reversed")]
DTYPES = ["float32", "float64"]


def places():
    """Each runnable implementation on each device, as (operation, device, method)."""
    found = []
    for operation in [o.name for o in registry.operations()]:
        for implementation in registry.lookup(operation):
            if implementation.run is None or operation not in OPERANDS:
                continue
            for device in ("cpu", *devices.available()):
                if device.partition(":")[0] == implementation.kind:
                    marks = [pytest.mark.gpu] if implementation.kind == "cuda" else []
                    case = (operation, device, implementation.method)
                    found.append(pytest.param(*case, marks=marks, id="-".join(case)))
    return found


def matvec_operands(sizes, dtype, rng):
    batch_a, batch_b, m, _, k = sizes
    shapes = (*batch_a, m, k), (*batch_b, k)
    return tuple((rng.random(shape) - 0.5).astype(dtype) for shape in shapes)


def matmul_operands(sizes, dtype, rng):
    batch_a, batch_b, m, n, k = sizes
    shapes = (*batch_a, m, k), (*batch_b, k, n)
    return tuple((rng.random(shape) - 0.5).astype(dtype) for shape in shapes)


# operation -> (function, operands, sum over products in the notation of einsum)
OPERANDS = {
    "matvec": (hetero.matvec, matvec_operands, "...ij,...j->...i"),
    "matmul": (hetero.matmul, matmul_operands, "...ij,...jk->...ik"),
}
# Their implementations are walked likewise by test_solve_cg.py and test_solve_poisson.py.
SOLVES = ("cg", "poisson")


def test_every_runnable_operation_is_known_here():
    runnable = {
        o.name for o in registry.operations() if any(i.run for i in registry.lookup(o.name))
    }
    assert runnable == {*OPERANDS, *SOLVES, "convolve2d"}  # the last: test_convolve2d.py


def check(result, operands, sums):
    """Within the bound that holds for sums of products in whatever order."""
    exact = [x.astype(np.longdouble) for x in operands]
    expected = np.einsum(sums, *exact)
    magnitude = np.einsum(sums, *map(abs, exact))
    k = operands[0].shape[-1]
    bound = (k + 1) * np.finfo(operands[0].dtype).eps * magnitude
    assert result.dtype == operands[0].dtype
    assert result.shape == expected.shape
    np.testing.assert_array_less(abs(result - expected), bound + np.finfo(result.dtype).tiny)


def run(function, operands, device, method):
    """The result by this very implementation, or a skip that names why it cannot."""
    operation = function.__name__
    try:
        chosen = hetero.plan(operation, *operands, device=device, method=method).chosen
        assert (chosen.device, chosen.method) == (device, method), "planned elsewhere"
        result = function(*operands, device=device, method=method)
    except MethodNotAvailable as error:
        if "cuBLAS needs" not in str(error):  # only cuBLAS has layouts that it does not take
            raise
        pytest.skip(str(error))
    assert not devices.troubles(), "the device failed and the CPU answered"
    return result


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(("operation", "device", "method"), places())
def test_sizes(operation, device, method, sizes, dtype):
    function, make, sums = OPERANDS[operation]
    operands = make(sizes, dtype, np.random.default_rng(5))
    check(run(function, operands, device, method), operands, sums)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layouts", LAID, ids="-".join)
@pytest.mark.parametrize(("operation", "device", "method"), places())
def test_layouts(operation, device, method, layouts, dtype):
    function, make, sums = OPERANDS[operation]
    operands = make(((3,), (3,), 33, 18, 21), dtype, np.random.default_rng(6))
    first, second = (LAYOUTS[name](x) for name, x in zip(layouts, operands, strict=True))
    check(run(function, (first, second), device, method), operands, sums)
    check(run(function, (first[1], second[1]), device, method), [x[1] for x in operands], sums)


class OnDevice:
    """A device array of no known library, of any strides, in memory that hetero's device gave."""

    def __init__(self, host, device):
        low, high = np.lib.array_utils.byte_bounds(host)
        raw = np.frombuffer(_bytes(low, high - low), np.uint8).copy()
        address, self._owner = device.allocate(raw.nbytes)
        device.upload(raw, address)
        offset = host.__array_interface__["data"][0] - low
        self.__cuda_array_interface__ = {
            "shape": host.shape,
            "typestr": host.dtype.str,
            "data": (address + offset, False),
            "strides": host.strides,
            "version": 3,
            "stream": None,
        }


def _bytes(address, size):
    import ctypes

    return (ctypes.c_char * size).from_address(address)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layouts", [("C", "C"), *LAID], ids="-".join)
@pytest.mark.parametrize("method", ["tiled", "library"])
@pytest.mark.parametrize("operation", OPERANDS)
def test_layouts_on_the_device(operation, method, layouts, dtype):
    """Operands that lie on a GPU are not packed: their strides reach the kernels as they are."""
    function, make, sums = OPERANDS[operation]
    operands = make(((), (), 67, 34, 45), dtype, np.random.default_rng(6))
    device = devices.get("cuda:0")
    laid = [
        LAYOUTS[name](x) if x.ndim > 1 else x for name, x in zip(layouts, operands, strict=True)
    ]
    with device.active():
        arrays = [OnDevice(x, device) for x in laid]
    result = run(function, arrays, "cuda:0", method)
    check(transfer.to_host(result, describe(result)), operands, sums)
