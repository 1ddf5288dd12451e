"""matmul's rungs at their own thresholds, under a simulator, and by NVIDIA's compiler.

As a script this file is what Oclgrind simulates: ``python tests/kernels/test_matmul_rungs.py``.
"""

from __future__ import annotations

import itertools
import os
from concurrent.futures import ThreadPoolExecutor

import compiled
import kernel_runs
import numpy as np
import pytest
import runtimes

import hetero
from hetero import registry
from hetero.kernels.matmul import rungs
from hetero.kernels.procedure import card as cards
from hetero.kernels.procedure import reckon

DTYPES = ("float32", "float64")
# A card of today (H100 SXM): what derived parameters are reckoned for, and registers compiled for.
TODAY = cards.Card(
    name="H100",
    multiprocessors=132,
    blocks=32,
    threads=2048,
    registers=1 << 16,
    shared=228 << 10,
    block_threads=1024,
    block_shared=227 << 10,
    warp=32,
    group=32,
    transactions=(32,),
    saturating=132 * 2048,
    bandwidth=3.35e12,
    clock=1.98e9,
    cache=50 << 20,
    register_unit=256,
    shared_unit=128,
    shared_reserved=1024,
)


def tile(shape, rung):
    """Rows and columns of C of a block, and columns of the tile of A."""
    row = rungs.RUNGS[rung]
    columns, rows = (1, 1) if row.tile is None else row.tile(*shape)
    depths = {"matmul_column": shape.x, "matmul_registers": 8}
    return rows, columns, depths.get(row.kernel, 32)


def planned(rung, m, n, k, dtype, card, shape=None, batch=1):
    strides = (m * k, k, 1), (k * n, n, 1), (m * n, n, 1)
    names = "a_strides", "b_strides", "c_strides"
    strides = dict(zip(names, strides, strict=True))
    dims = {"m": m, "n": n, "k": k, "batch": batch, "dtype": dtype}
    return rungs.plan_rung(rung, **dims, **strides, card=card, shape=shape)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rung", rungs.RUNGS)
def test_thresholds(rung, dtype):
    """A block's tile, one less and one more, in each extent; nothing, and one."""
    from test_agree import check  # which asks for all devices, as the simulator need not

    device = runtimes.opencl_device()
    place = {"device": device.name, "method": rung}
    rng = np.random.default_rng(3)
    rows, columns, depth = tile(rungs.RUNGS.chosen(rung, dtype, (64, 64, 64), device.card()), rung)
    extents = ((rows - 1, rows + 1), (columns - 1, columns + 1), (depth - 1, depth, depth + 1))
    for m, n, k in [*itertools.product(*extents), (2, 9, 2), (rows, columns, 1)]:
        if 1 in (m, n):  # which is a matvec
            continue
        operands = [rng.random(shape).astype(dtype) - 0.5 for shape in ((m, k), (k, n))]
        check(hetero.matmul(*operands, **place), operands, "ij,jk->ik")
    for a, b in (((0, 3), (3, 4)), ((2, 0), (0, 4)), ((2, 3), (3, 0))):
        result = hetero.matmul(np.ones(a, dtype), np.ones(b, dtype), **place)
        assert result.shape == (a[0], b[1])
        assert not result.any()


@pytest.mark.parametrize(
    "rung", ["uncoalesced", "hybrid-row", "tiles4", "tuned", "quads", "buffered"]
)
def test_every_legal_shape_multiplies_right(rung):
    """Some of them, from the smallest to the largest, launched as a sweep does."""
    device = runtimes.opencl_device()
    row = next(r for r in registry.rungs("matmul", "opencl") if r.method == rung)
    A, B = np.random.default_rng(0).random((2, 37, 37), np.float32)
    problem = hetero.plan("matmul", A, B, device=device.name, method=rung).problem
    shaping = row.shaping(device, problem)
    assert shaping.chosen in shaping.shapes
    result = np.empty_like(A)
    with device.active():
        (a, _a), (b, _b), (c, _c) = (device.allocate(x.nbytes) for x in (A, B, result))
        device.upload(A, a)
        device.upload(B, b)
        for shape in shaping.shapes[:: max(1, len(shaping.shapes) // 5)]:
            device.fill(c, result.nbytes)
            shaping.run(shape, registry.Arguments((a, b), c))
            device.download(c, result)
            np.testing.assert_allclose(result, A @ B, rtol=1e-5, err_msg=str(shape))
        with pytest.raises(ValueError, match=r"shape must be one of 1x1.*, got 3x5x7|, got 3x5x7"):
            shaping.run(rungs.Shape(3, 5, 7), registry.Arguments((a, b), c))


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_legal_shape_asks_for_too_much(dtype):
    item = np.dtype(dtype).itemsize
    for rung in rungs.RUNGS:
        found = rungs.RUNGS.shapes(rung, dtype, TODAY)
        assert len(set(found)) == len(found)
        for shape in found:
            (launch,) = planned(rung, 64, 64, 64, dtype, TODAY, shape).launches
            assert launch.block == shape.x * shape.y <= TODAY.block_threads
            rows, columns, depth = tile(shape, rung)
            kernel = rungs.RUNGS[rung].kernel
            if kernel == "matmul_shared":
                assert (rows * (depth + 1) + depth * columns) * item <= 48 << 10
            if kernel == "matmul_column":
                assert rows * depth * item <= 48 << 10


TUNED = "tuned", "float32"


def test_tuned_launches_what_is_derived():
    for n in (512, 4096, 16384):
        shape = rungs.RUNGS.chosen(*TUNED, (n, n, n), TODAY)
        seconds = [reckon.matmul(TODAY, 4, s, n, n, n) for s in rungs.RUNGS.shapes(*TUNED, TODAY)]
        assert reckon.matmul(TODAY, 4, shape, n, n, n) == min(seconds) < max(seconds)
        (launch,) = planned("tuned", n, n, n, "float32", TODAY).launches
        assert {("BX", shape.x), ("BY", shape.y), ("ROWS", shape.elements)} <= {*launch.defines}
        across = -(-n // (shape.x * shape.y))
        assert launch.grid == across * -(-n // shape.elements)


def every_launch(dtype):
    """Each rung's own kernel, and for "tuned" what is derived for some sizes."""
    found = {}
    for rung in rungs.RUNGS:
        for n in (64, 512, 4096) if rung == "tuned" else (512,):
            (launch,) = planned(rung, n, n, n, dtype, TODAY).launches
            found[launch.source, launch.defines] = launch
    return [*found.values()]


@pytest.mark.parametrize(("arch", "dtype"), [("sm_80", "float32"), ("sm_90", "float64")])
def test_compiles_without_spills(arch, dtype):
    launches = every_launch(dtype)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        sizes = pool.map(lambda launch: compiled.compile_cuda(launch, arch), launches)
        bad = [launch for launch, size in zip(launches, sizes, strict=True) if size]
    assert not bad


def simulate():
    """The smallest products that reach every rung's whole and partial tiles."""
    runner = kernel_runs.BufferRunner(runtimes.simulator())
    card = TODAY._replace(block_threads=16, warp=8, transactions=(32,))
    for rung in rungs.RUNGS:
        there = rungs.RUNGS.shapes(rung, "float32", card)
        shape = min(there, key=lambda s: (s.x * s.y, s.elements, s.x))
        rows, columns, depth = tile(shape, rung)
        m, n, k = (
            rows + 1,
            columns + 1,
            (depth + 1 if rungs.RUNGS[rung].kernel == "matmul_column" else 3),
        )
        A, B = np.random.default_rng(0).random((2, 80, 80), np.float32)
        A, B, C = A[:m, :k].copy(), B[:k, :n].copy(), np.zeros((m, n), np.float32)
        runner.run(planned(rung, m, n, k, "float32", card, shape), A=A, B=B, C=C)
        np.testing.assert_allclose(C, A @ B, rtol=1e-5)


def test_simulated_without_races_and_within_bounds():
    assert runtimes.simulated(__file__, "good") == ""


if __name__ == "__main__":
    simulate()
