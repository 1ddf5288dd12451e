"""Products in tiles that move while others are computed: which tiles, right results, failures."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import hetero
from hetero import devices
from hetero.devices.budget import rounded
from hetero.ops.products import streaming, tiling
from hetero.ops.products.streaming import Lengths
from hetero.ops.products.tiling import Grid

SMALL = Lengths(least=4, least_bytes=1, batch_bytes=(2000, 500), most_tiles=64)


@pytest.fixture
def small(monkeypatch):
    """Tiles of some rows and columns."""
    monkeypatch.setattr(streaming, "LENGTHS", SMALL)
    monkeypatch.setattr(streaming, "_MULTIPLE", 4)


# -- Which tiles -----------------------------------------------------------------------------------


def grids():
    for batch, (a, b) in [((), ((), ())), ((2, 3), ((True, True), (False, True)))]:
        for shape in [(1, 1, 1), (12, 7, 3), (5, 40, 2), (33, 33, 9)]:
            for lengths in [(1, 4, 4), (2, 7, 3), (1, 40, 1)]:
                yield Grid(batch, shape, lengths, a, b, 4)


@pytest.mark.parametrize("grid", [*grids()], ids=str)
def test_each_tile_once_with_its_panels(grid):
    axes = [range(extent) for extent in grid.batch[:-1]]
    last = [range(0, extent, grid.lengths[0]) for extent in grid.batch[-1:]]
    everything = set(
        itertools.product(itertools.product(*axes, *last), range(grid.rows), range(grid.columns))
    )
    seen = set()
    for share in (1.0, 0.6, 0.3, 0.0):
        sizes = [*map(rounded, grid.panel_bytes)]
        whole = sum(n * size for n, size in zip((*grid.panels(), 3), sizes, strict=True))
        room = max(share * whole, sum(sizes))
        for made in tiling.fitted(grid, room):
            assert made.nbytes <= room
            a, b = {}, {}
            visits = made.visits()
            assert len(visits) == len(everything)
            assert {visit[:3] for visit in visits} == everything
            for visit in visits:
                key = visit.group and tuple(
                    g if there else 0 for g, there in zip(visit.group, grid.a_batch, strict=True)
                )
                assert visit.load_a == (a.get(visit.a) != (key, visit.row))
                a[visit.a] = key, visit.row
                key = visit.group and tuple(
                    g if there else 0 for g, there in zip(visit.group, grid.b_batch, strict=True)
                )
                assert visit.load_b == (b.get(visit.b) != (key, visit.column))
                b[visit.b] = key, visit.column
            loads = sum(v.load_a for v in visits), sum(v.load_b for v in visits)
            if share == 1.0:
                assert loads == grid.panels(), "each panel is moved once"
            seen.add(made.slots)
    assert seen


def test_what_is_computed_grows_with_the_square_of_what_was_moved():
    grid = Grid((), (64, 64, 64), (1, 8, 8), (), (), 4)
    (made,) = tiling.fitted(grid, 1e9)
    moved = 0
    for done, visit in enumerate(made.visits(), 1):
        moved += visit.load_a + visit.load_b
        assert done >= (moved // 2 - 1) ** 2, "a panel is loaded before the others are used up"


def test_the_fewest_bytes_that_fit():
    """Of A all panels are held, or as many as fit; those of B go by once for each set of them."""
    grid = Grid((), (64, 64, 64), (1, 8, 8), (), (), 4)
    a, b, c = map(rounded, grid.panel_bytes)
    for held in (2, 4, 6, 8):
        ways = tiling.fitted(grid, held * a + 3 * b + 3 * c)
        moved = min(sum(v.load_a + v.load_b for v in made.visits()) for made in ways)
        sets = -(-8 // (held if held == 8 else held - 1))
        assert moved <= 8 + 8 * sets


# -- Results ---------------------------------------------------------------------------------------


SHAPES = [
    ((4, 8), (8, 4)),
    ((3, 8), (8, 5)),
    ((5, 8), (8, 9)),
    ((33, 17), (17, 31)),
    ((1, 8), (8, 40)),
    ((40, 8), (8, 1)),
    ((40, 8), (8,)),
    ((8,), (8, 40)),
    ((8,), (8,)),
    ((3, 20, 8), (3, 8, 20)),
    ((7, 3, 4), (7, 4, 3)),
    ((7, 3, 4), (4, 3)),
    ((20, 8), (5, 8, 20)),
    ((2, 3, 9, 8), (2, 3, 8, 7)),
    ((2, 1, 9, 8), (2, 3, 8, 7)),
]


def integers(shape, seed=0, dtype=np.float32):
    """Numbers whose products and sums are exact."""
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_products(opencl, small, shapes, dtype):
    A, B = (integers(shape, number, dtype) for number, shape in enumerate(shapes))
    result = hetero.matmul(A, B, device=opencl, method="streamed")
    expected = np.matmul(A, B)
    assert type(result) is type(expected)
    assert not devices.troubles()
    np.testing.assert_array_equal(result, expected)
