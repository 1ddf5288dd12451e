"""Every implementation of every operation, on every device that is here, against another one.

The list is the registry's own: a new implementation, of a new operation too, is tested without a
line here. Products are compared with exact sums beside that.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from layouts import LAYOUTS

import hetero
import hetero.ops
from hetero import devices, registry
from hetero.arrays import describe
from hetero.errors import MethodNotAvailable
from hetero.evaluation.calls import Arrays, draw
from hetero.moving import transfer
from hetero.ops.multigrid import grids
from hetero.pricing import pricing

pytestmark = pytest.mark.optimised  # programs as users run them

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


def places(operations=None, devices_of_a_kind=None):
    """Each runnable implementation on each device, as (operation's name, device, method); on all of
    a kind together where one of each kind is enough."""
    found = []
    kinds = [name.partition(":")[0] for name in devices.available()]
    here = ["cpu"]
    for number, name in enumerate(devices.available()):
        if kinds[:number].count(kinds[number]) < (devices_of_a_kind or len(kinds)):
            here.append(name)
    if devices_of_a_kind == 1:
        here += pricing.groups(hetero.machine()["devices"])  # equal ones; others share nothing
    for operation in operations or [o.name for o in registry.operations()]:
        for implementation in registry.lookup(operation):
            for device in here:
                if device.endswith("*") and not (
                    registry.operation(operation).cut or implementation.shared
                ):
                    continue
                if implementation.run and device.partition(":")[0] == implementation.kind:
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


def sized():
    """Each implementation of a product with each of its sizes.

    A product with one row or one column is a matvec, by the methods that this has.
    """
    of_vectors = {row.method for row in registry.lookup("matvec")}
    for place in places(OPERANDS):
        for sizes in SIZES:
            if 1 in sizes[2:4] and place.values[2] not in of_vectors:
                continue
            yield pytest.param(*place.values, sizes, marks=place.marks, id=f"{place.id}-{sizes}")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("operation", "device", "method", "sizes"), [*sized()])
def test_sizes(operation, device, method, sizes, dtype):
    function, make, sums = OPERANDS[operation]
    operands = make(sizes, dtype, np.random.default_rng(5))
    check(run(function, operands, device, method), operands, sums)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layouts", LAID, ids="-".join)
@pytest.mark.parametrize(("operation", "device", "method"), places(OPERANDS))
def test_layouts(operation, device, method, layouts, dtype):
    function, make, sums = OPERANDS[operation]
    operands = make(((3,), (3,), 33, 18, 21), dtype, np.random.default_rng(6))
    first, second = (LAYOUTS[name](x) for name, x in zip(layouts, operands, strict=True))
    check(run(function, (first, second), device, method), operands, sums)
    check(run(function, (first[1], second[1]), device, method), [x[1] for x in operands], sums)


# Solves are compared by their solutions, so they must go on until those are known well.
SOLVES = {"cg": {"float32": 1e-6, "float64": 1e-12}, "poisson": {"float32": 0.0, "float64": 1e-12}}
# Of the largest value; a grid's condition number is 1e3.
CLOSE = {"float32": 2e-3, "float64": 1e-8, "int64": 1e-8}
DRAWN = {"opencl": 1}  # that compiles anew for each size
LARGEST, LARGER, TRIED = 40, 1000, 200


@pytest.mark.parametrize(("operation", "device", "method"), places(devices_of_a_kind=1))
def test_random_calls(operation, device, method, monkeypatch):
    """What `hetero verify` draws, beside the same call in float64 by another method on the CPU."""
    monkeypatch.setattr(grids, "LEAST_SHARED", 1000)  # what several devices divide
    agrees(registry.operation(operation), device, method)


def agrees(operation, device, method):
    """The method's results for random calls are another method's, up to rounding."""
    source, memory, done, reasons = random.Random(7), Arrays("host"), 0, []
    for number in range(TRIED):  # larger ones where a method takes none of the small
        trial = draw(operation, source, "host", LARGEST if number < TRIED // 2 else LARGER)
        operands, options = memory.of(trial), dict(trial.options)
        if number >= 3 * TRIED // 4 and operation.name not in SOLVES:  # what takes no others
            operands = tuple(np.rint(99 * x).astype(np.int64) for x in operands)
        dtype = next(x.dtype.name for x in operands if isinstance(x, np.ndarray))
        if operation.name in SOLVES:
            options["rtol"] = SOLVES[operation.name][dtype]
        try:
            plan = hetero.plan(operation.name, *operands, device=device, method=method, **options)
        except MethodNotAvailable as error:  # not for these operands
            reasons.append(str(error))
            continue
        if (plan.chosen.device, plan.chosen.method) != (device, method):
            reasons.append(f"planned elsewhere: {plan}")  # where there is a single way
            continue
        result = operation.call(*operands, device=device, method=method, **options)
        expected = elsewhere(operation, operands, options, (device, method))
        if isinstance(result, tuple):
            result, expected = result[0], expected[0]
        assert result.dtype == dtype
        assert not devices.troubles(), "the device failed and the CPU answered"
        limit = CLOSE[dtype] * max(abs(expected).max(), np.finfo(np.float32).tiny)
        np.testing.assert_array_less(abs(result - expected), limit)
        done += 1
        if done == DRAWN.get(device.partition(":")[0], 4):
            return
    missing = [reason for reason in reasons if "pip install" in reason]
    if not done and missing:
        pytest.skip(missing[0])
    assert done, reasons[-1]


def elsewhere(operation, operands, options, but):
    """The call in float64 on the CPU, by another method where one can do it."""
    wide = tuple(x.astype(float) if isinstance(x, np.ndarray) else x for x in operands)
    if "rtol" in options:
        options = {**options, "rtol": 1e-12}
    plan = hetero.plan(operation.name, *wide, device="cpu", **options)
    able = [c.method for c in plan.candidates if c.reason is None]
    others = [method for method in able if ("cpu", method) != but]
    return operation.call(*wide, device="cpu", method=(others or able)[0], **options)


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
@pytest.mark.parametrize(
    ("operation", "method"), [("matvec", "tiled"), ("matmul", "tiled"), ("matmul", "library")]
)
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
