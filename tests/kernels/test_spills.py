"""What NVIDIA's compiler makes of every kernel, with no GPU: no registers are spilled."""

from __future__ import annotations

import itertools

import pytest
from compiled import spilling
from test_convolve_kernels import plan_for
from test_kernels import plans
from test_kmeans_kernels import GPU
from test_kmeans_pieces import planned as by_pieces
from test_tensor_product import planned as tensor

from hetero.kernels import Launch, Target
from hetero.kernels.cg import plan as cg
from hetero.kernels.jacobi import plan as jacobi
from hetero.kernels.kmeans import plan as kmeans
from hetero.kernels.kmeans import shapes
from hetero.kernels.multigrid import plan as multigrid

DTYPES = ("float32", "float64")
LARGE = Target(132)
LAYOUT = {"A_K", "B_K", "ALIGNED", "LANES", "GROUPS"}  # which change few registers


def of_products():
    """Of each tile, of a vector product each width and depth, three layouts or shapes of a block,
    which take turns from tile to tile."""
    tiles = {}
    for launch in (launch for launch_plan in plans() for launch in launch_plan.launches):
        tile = frozenset(pair for pair in launch.defines if pair[0] not in LAYOUT)
        tiles.setdefault((launch.source, tile), {})[launch.defines] = launch
    for turn, same in enumerate(map(list, (found.values() for found in tiles.values()))):
        yield from (same[(turn + i) % len(same)] for i in range(min(3, len(same))))


def of_convolutions():
    taps_shapes = [(side, side) for side in (1, 3, 5, 7, 9, 15)] + [(9, 1), (64, 31)]
    for dtype, taps in itertools.product(DTYPES, taps_shapes):
        for more in ({}, {"rank": 1}, {"warps": False}, {"alignment": 8}):
            yield from plan_for((4096, 4096), taps, dtype=dtype, **more).launches
        yield from plan_for((1, 5000), taps, dtype=dtype).launches


def launches_of(planned):
    return planned.pack, *planned.iteration, planned.distances


def of_kmeans():
    """Every tile, both ways to copy; of every other kernel the binaries that need the most
    registers, and a plain one."""
    for dtype, aligned in itertools.product(DTYPES, (False, True)):
        where = shapes.Points(10**6, 64, 1024, dtype, False, 16 * aligned, GPU)
        for tile in (*shapes.tiles(dtype), *shapes.tiles(dtype, (9, 0))):
            yield shapes.tiled(where, tile).launches[0]
    sizes = (10**5, 2, 8), (10**5, 32, 20), (10**6, 131, 500), (10**6, 128, 1024)
    for dtype, (n, d, k) in itertools.product(DTYPES, sizes):
        planned = kmeans.plan_lloyd(shapes.Points(n, d, k, dtype, True, 16, GPU))
        yield from (one for one in launches_of(planned) if "weights" in one.arguments)
    yield from planned.iteration[-2:]
    yield kmeans.columns(1000, 20, "float64", GPU)[0]
    for first, gathered in itertools.product((True, False), repeat=2):
        rows = shapes.Points(10**5, 40, 1, "float64", True, 16, GPU)
        seeds = kmeans.SeedsPlan(rows, 16, 1024, 128)
        yield seeds.try_seeds(16, first, gathered)


def of_cg():
    """But for a sparse matrix's numbers of entries in a row, of which there are four."""
    for dtype, diagonal, aligned in itertools.product(DTYPES, (False, True), (False, True)):
        options = {"dtype": dtype, "diagonal": diagonal}
        for rows, lines, columns in ((4096, 1, 4096), (512, 1, 300), (256, 256, 256), (8, 8, 8)):
            grid = cg.GridShare(rows, lines, columns, (1.0, float(lines > 1), 1.0))
            if not diagonal:
                yield cg.sweeps(grid, LARGE, dtype=dtype, aligned=aligned)[0]
        yield cg.vectors(4096, LARGE, aligned=aligned, **options)[0]
        yield cg.textbook(4096, LARGE, dtype=dtype, aligned=aligned)["cg_dots"]
        for mean, index in ((5, "int32"), (16, "int64"), (40, "int32"), (300, "int64")):
            yield from cg.csr(1000, 1000 * mean, index, LARGE, **options)
    for dtype in DTYPES:
        for n in (64, 256, 300, 512):
            grid = cg.GridShare(n, 1, n, (1.0, 0.0, 1.0))
            for count in (1, 2):
                how = {"dtype": dtype, "shared_limit": 1 << 17, "devices": count}
                yield cg.cooperative(grid, LARGE, **how)


def of_poisson():
    for dtype, warps in itertools.product(DTYPES, (True, False)):
        grid = jacobi.GridSlab.of((500, 999), (1.0, 1.0), dtype)
        yield jacobi.change_pitch(grid, 999, 1000, LARGE)
        for depth in (1, jacobi.DEPTH[dtype]):
            yield jacobi.blocked(grid, (0, 500), depth, LARGE._replace(warps=warps))
    for dtype, real in zip(DTYPES, ("float", "double"), strict=True):
        for file, macros in (
            ("dst.cu", (("THREADS", 256),)),
            ("multigrid_coarse.cu", (("THREADS", 1024), ("POOL", 1024))),
            ("stencil.cu", (("THREADS", 128), ("DIMS", 3))),
        ):
            yield Launch(file, "", (("REAL", real), *macros), 1, 1, ())
        for shape, coarse in (((64, 1, 64), (32, 1, 32)), ((64, 64, 64), (32, 32, 32))):
            _, launch = multigrid.plan_sweep(shape, coarse, (1.0, 1.0, 1.0), dtype, LARGE)
            for mode, aligned in ((0, False), (0, True), (1, True), (3, False), (3, True)):
                yield launch((1, 1, 1), 1.0, aligned, 0, mode)


FOUND = (of_products, of_convolutions, of_kmeans, of_cg, of_poisson)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("found", FOUND, ids=lambda found: found.__name__)
def test_compiles_without_spills(found, arch):
    """In turn, since there are many."""
    launches = [*{(one.source, one.defines): one for one in found()}.values()]
    assert spilling(launches[arch == "sm_90" :: 2], arch) == []


def test_what_is_hoppers_alone_compiles_without_spills():
    launches = [*tensor(256, 256, 512).launches[:3]]
    for d, alignment in ((128, 16), (784, 16), (129, 4)):
        plan = by_pieces(d=d, alignment=alignment)
        assert [one.kernel for one in plan.prepare] == ["cut_rows"]
        launches += launches_of(plan)
    assert spilling(launches, "sm_90a") == []


def test_spills_are_seen():
    launch = next(launch for launch in of_products() if launch.source == "matmul.cu")
    crowded = tuple((name, 16 if name == "RESIDENT" else value) for name, value in launch.defines)
    assert spilling([launch._replace(defines=crowded)], "sm_90")
