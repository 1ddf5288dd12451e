"""The portable kernels and their launch plans, with no GPU.

They are compiled for NVIDIA's GPUs by NVRTC, run on an OpenCL device, and simulated by Oclgrind,
which reports data races and accesses out of bounds. As a script this file is what Oclgrind
simulates: ``python tests/kernels/test_kernels.py``.
"""

from __future__ import annotations

import itertools

import kernel_runs
import numpy as np
import pytest
import runtimes
from kernel_runs import DTYPES, LAYOUTS, WRITABLE, run_matmul, run_matvec

from hetero import kernels
from hetero.kernels.matmul import plan as matmul_tiles


@pytest.fixture(scope="module")
def portable():
    """Runs plans on an OpenCL device, of this machine's CPU or other."""
    return kernel_runs.Runner(runtimes.opencl_device()._device)


# -- On OpenCL -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_matvec_other_operands(portable, dtype):
    for layout, x, y in itertools.product(("row", "column"), LAYOUTS, WRITABLE):
        run_matvec(portable, 12, 20, 2, dtype, (layout, x, y))
    run_matvec(portable, 64, 64, 3, dtype, offset=1)
    run_matvec(portable, 64, 64, 3, dtype, shared=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", range(4))
def test_matvec_columns_that_begin_anywhere(portable, dtype, offset):
    """Every remainder of rows, columns and addresses; several tiles, batches, parts; no overrun."""
    for m, k in itertools.product((16, 17, 18, 35, 127, 250), (16, 33, 140)):
        launch_plan = run_matvec(portable, m, k, 1, dtype, ("column", "row", "row"), offset=offset)
        aligned = launch_plan.variant.startswith("columns")
        width = 16 // np.dtype(dtype).itemsize
        assert aligned == (m % width == 0 and offset % width == 0), launch_plan.variant
        assert aligned or launch_plan.variant.startswith("shifted")
    launch_plan = run_matvec(portable, 37, 90, 3, dtype, ("column", "column", "row"), offset=offset)
    assert launch_plan.variant.startswith("shifted")
    layouts = ("column", "row", "row")
    launch_plan = run_matvec(portable, 19, 60_001, 1, dtype, layouts, multiprocessors=132)
    assert launch_plan.variant.startswith("shifted")
    assert len(launch_plan.launches) == 2


@pytest.mark.parametrize("offset", range(4))
def test_matvec_rows_that_begin_anywhere(portable, offset):
    """Every remainder of columns and addresses; several tiles, batches; no overrun."""
    for m, k in itertools.product((25, 27, 33), (512, 513, 514, 515, 1030)):
        launch_plan = run_matvec(portable, m, k, 1, "float32", offset=offset)
        aligned = k % 4 == 0 and offset % 4 == 0
        assert launch_plan.variant.startswith("rows" if aligned else "shifted_rows"), (m, k)
    for layouts in (
        ("row, odd padding", "row, strided", "row"),
        ("row", "column", "row, reversed"),
    ):
        launch_plan = run_matvec(portable, 37, 701, 3, "float32", layouts, offset=offset)
        assert launch_plan.variant.startswith("shifted_rows")


@pytest.mark.parametrize("dtype", DTYPES)
def test_matvec_short_rows(portable, dtype):
    """Several rows to a thread, with some of them missing at the end; not if many would be."""
    for m, k in itertools.product((1024, 1279, 1281), (4, 8, 12, 20, 36, 64)):
        launch_plan = run_matvec(portable, m, k, 1, dtype, multiprocessors=2)
        assert ("ROWS", 4) in launch_plan.launches[0].defines
    run_matvec(portable, 509, 8, 3, dtype, ("row, padded", "row", "row, strided"))
    for m, k, batch in ((4, 4, 100), (1, 64, 100), (528, 64, 1)):
        launch_plan = run_matvec(portable, m, k, batch, dtype, multiprocessors=132)
        assert ("ROWS", 1) in launch_plan.launches[0].defines


@pytest.mark.parametrize(
    ("dtype", "index"),
    [(dtype, i) for dtype in DTYPES for i in range(len(matmul_tiles.tiles(dtype, None)))],
)
def test_matmul_tiles(portable, monkeypatch, index, dtype):
    """Every tile and transpose, at sizes below, at and above the tile's."""
    tile = matmul_tiles.tiles(dtype, None)[index]
    monkeypatch.setattr(matmul_tiles, "tiles", lambda *which: (tile,))
    for la, lb in itertools.product(("row", "column"), repeat=2):
        launch_plan = run_matmul(portable, tile.m + 4, tile.n + 8, 36, 1, dtype, (la, lb, "row"))
        assert launch_plan.variant == f"tile{tile.m}x{tile.n}"
    for layout in ("row", "column"):
        run_matmul(portable, 17, tile.n + 1, 21, 1, dtype, (layout, layout, "row"))
        run_matmul(portable, tile.m, tile.n, 40, 1, dtype, (layout, layout, "column"), 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_matmul_layouts(portable, layout, dtype):
    run_matmul(portable, 36, 44, 20, 2, dtype, (layout, "row", "column"), 0, True)
    run_matmul(portable, 36, 44, 20, 2, dtype, ("column", layout, "row"))
    if layout in WRITABLE:
        run_matmul(portable, 36, 44, 20, 2, dtype, ("row", "column", layout))


@pytest.mark.parametrize("dtype", DTYPES)
def test_matmul_splits_k(portable, dtype):
    launch_plan = run_matmul(portable, 20, 24, 20_000, 2, dtype)
    assert len(launch_plan.launches) == 2
    assert launch_plan.workspace >= 2 * 2 * 20 * 24


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["row", "column"])
def test_infinities_stay_where_they_belong(portable, layout, dtype):
    """Padding must make no NaN of an infinity: sizes leave a rest in every direction."""
    run_matmul(portable, 21, 19, 13, 1, dtype, (layout, layout, "row"), infinite=True)
    run_matvec(portable, 21, 13, 1, dtype, (layout, "row, strided", "row"), infinite=True)


# -- Plans alone ---------------------------------------------------------------------------------


def plans(**options):
    """Yield plans of many shapes and layouts, on a large GPU without options."""
    options = {"batch": 1, "multiprocessors": 132, "shared_limit": 227 << 10} | options

    def strides(rows, columns, by_rows):
        return (rows * columns, *((columns, 1) if by_rows else (1, rows)))

    either = True, False
    common = [*itertools.product(DTYPES, (4, 16), (None, (9, 0)))]
    sizes = (1, 3, 17, 64, 130, 520, 1028, 4096, 1 << 20)
    for m, k, (dtype, alignment, capability) in itertools.product(sizes, sizes, common):
        given = {"dtype": dtype, "alignment": alignment, "capability": capability} | options
        vectors = {"x_strides": (k, 1), "y_strides": (m, 1)} | given
        for by_rows in either:
            a = strides(m, k, by_rows)
            yield kernel_runs.planned(kernels.plan_matvec, m=m, k=k, a_strides=a, **vectors)
    sizes = (8, 17, 64, 256, 520, 1024, 4096)
    for m, n, k in itertools.product(sizes, repeat=3):
        for (dtype, alignment, capability), a, b in itertools.product(common, either, either):
            given = {"dtype": dtype, "alignment": alignment, "capability": capability} | options
            given |= {"a_strides": strides(m, k, a), "b_strides": strides(k, n, b)}
            given["c_strides"] = strides(m, n, True)
            yield kernel_runs.planned(kernels.plan_matmul, m=m, n=n, k=k, **given)


@pytest.mark.parametrize("block_limit", [64, 100, 256])
def test_no_block_is_larger_than_allowed(block_limit):
    """No plan asks for more threads than the device takes."""
    limits = {"block_limit": block_limit, "multiprocessors": 8, "shared_limit": 32 << 10}
    for launch_plan in plans(**limits, capability=None):
        assert (launch_plan.workspace > 0) == (len(launch_plan.launches) == 2)
        for launch in launch_plan.launches:
            assert launch.block <= block_limit, launch_plan
            assert 0 < launch.grid < 2**31


# -- Oclgrind ------------------------------------------------------------------------------------


def simulate():
    """Run the smallest problems that reach every kernel."""
    runner = kernel_runs.BufferRunner(runtimes.simulator())
    # To optimise these kernels takes longer than to interpret what is not.
    plain = kernel_runs.BufferRunner(runtimes.simulator(), "-cl-opt-disable")
    for layout, (m, k) in itertools.product(("row", "column"), ((5, 7), (8, 40), (4, 300))):
        run_matvec(runner, m, k, 1, "float64", (layout, "row", "row"), block_limit=64)
    small = {"block_limit": 64, "multiprocessors": 1}
    run_matvec(runner, 130, 8, 1, "float64", **small)
    launch_plan = run_matvec(runner, 19, 18, 1, "float32", ("column", "row", "row"), **small)
    assert launch_plan.variant.startswith("shifted")
    layouts = itertools.product(("row", "column"), repeat=2)
    one, other = (5, 7, 9), (36, 4, 20)
    for (la, lb), sizes in zip(layouts, (one, other, other, one), strict=True):
        run_matmul(plain, *sizes, 1, "float32", (la, lb, "row"), block_limit=64)
    assert len(run_matmul(plain, 4, 4, 256, 1, "float32").launches) == 2


def test_no_races_nor_bounds():
    assert runtimes.simulated(__file__) == ""


if __name__ == "__main__":
    simulate()
