"""Wavefronts of the rungs' kernels, against the figures that their sources' comments give."""

from __future__ import annotations

import pytest

from hetero.kernels.procedure.counts import Wavefronts, counted

FLOPS = 2.0 * 32  # of one multiply-add of each thread of a warp


def each(kernel, item=4, last=0, flops=FLOPS, **defines):
    return counted(kernel, {"REAL": "float", **defines}, last, item, flops)


@pytest.mark.parametrize(("item", "quad"), [(4, 1 / 4), (8, 1 / 2)])
def test_products(item, quad):
    """One line of B for a warp takes a wavefront for each 128 bytes."""
    line = item / 4
    assert each("matmul_naive", item, BX=32, BY=4) == Wavefronts(1 + line, 0)
    assert each("matmul_naive", item, BX=8, BY=16).cache == 5  # of A four rows
    assert each("matmul_rows", item, BX=32, BY=4, ROWS=4) == Wavefronts(1 + line / 4, 0)
    column = each("matmul_column", item, BX=32, BY=8, ROWS=16)
    assert column == Wavefronts(line / 16, quad)
    shared = each("matmul_shared", item, BX=64, BY=8, ROWS=4)
    tiles = (1 / 64 + 1 / 32) * line
    assert shared == pytest.approx(Wavefronts(tiles, line / 4 + quad + tiles))


def test_patterns():
    """Swapped rows and columns ask for a line for each thread of a warp, whatever the dtype."""
    assert each("matmul_naive", BX=32, BY=4, SWAPPED=1) == Wavefronts(32 + 1, 0)
    assert each("matmul_naive", 8, BX=32, BY=4, SWAPPED=1) == Wavefronts(32 + 1, 0)
    spread, grouped = (
        each("matmul_pattern", BX=32, BY=4, NX=2, NY=2, GROUPED=g).cache for g in (0, 1)
    )
    assert (spread, grouped) == (1 + 1, 1 + 2)  # of B every other element of a line
    once, twice = (each("matmul_shared", BX=64, BY=8, ROWS=4, TILES=t).banks for t in (1, 2))
    assert once > twice  # an element of A serves both tiles
    assert each("convolve_constant", BX=32, BY=16).cache + 1 == each("convolve_naive").cache


def test_products_by_squares():
    """A quarter of an element of shared memory for each product; by 16 bytes fewer reads."""
    shape = {"BX": 16, "BY": 16, "SIDE": 8}
    tiles = (1 / 128 + 1 / 128) * 1
    assert each("matmul_registers", GROUP=1, **shape).banks == pytest.approx(16 / 64 + tiles)
    # Of two quads of A one wavefront each, of two of B, 256 bytes, two each.
    assert each("matmul_registers", GROUP=4, **shape).banks == pytest.approx(6 / 64 + tiles)


def test_a_column_of_a_square_lies_in_one_bank_unless_it_is_padded():
    for kernel, read in (("split", 32), ("shared", 32), ("padded", 1), ("tuned", 1)):
        assert each(f"matvec_{kernel}") == Wavefronts(1, 1 + read)
    assert each("matvec_padded", 8, SIDE=32, PARTS=8) == Wavefronts(2, 2 + 2)
    assert each("matvec_naive") == Wavefronts(33, 0)
    assert each("matvec_constant") == Wavefronts(32, 0)


def test_convolutions():
    assert each("convolve_naive", BX=32, BY=16) == Wavefronts(2, 0)
    assert each("convolve_shared", BX=32, BY=16) == Wavefronts(2 / 16, 2 / 16 + 2)
    assert each("convolve_row", BX=32, BY=16) == Wavefronts(2 / 32, 2 / 32 + 2)
    assert each("convolve_tuned", BX=32, BY=2, STEP=16) == Wavefronts(2 / 32, 2 / 32 + 1.25)
    # Rows of 16 threads begin in the same bank, those of 8 in one of two.
    assert each("convolve_row", BX=16, BY=2).banks - 2 * 2 / 16 == 1 + 2
    assert each("convolve_shared", BX=16, BY=2).banks - 2 * 2 / 2 == 1 + 1


def test_sweeps_and_distances():
    """A point has 10 flops as the methods count them, and 6 accesses in 2-D, 8 in 3-D."""
    assert each("jacobi_naive", flops=320.0) == Wavefronts(6, 0)
    assert each("jacobi_naive", 8, flops=320.0) == Wavefronts(12, 0)
    assert each("jacobi_naive", flops=320.0, DIMS=3) == Wavefronts(8, 0)
    assert each("jacobi_shared", flops=320.0) == Wavefronts(3, 5)
    assert each("assign_points", last=1) == Wavefronts(33, 0)
    assert each("assign_points", last=5000) == Wavefronts(2, 0)
    assert each("assign_shared", last=5000) == Wavefronts(1, 1)


def test_what_is_not_counted_has_no_wavefronts():
    assert each("matmul") is None
    assert each("matvec_naive", flops=10 * FLOPS).cache == 330
