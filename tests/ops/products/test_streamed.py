"""Products in tiles that move while others are computed: which tiles, right results, failures."""

from __future__ import annotations

import dataclasses
import gc
import itertools

import numpy as np
import pytest
from layouts import LAYOUTS

import hetero
from hetero import devices, profile
from hetero.devices.storage import rounded
from hetero.errors import DeviceError, DeviceMemoryError, MethodNotAvailable
from hetero.ops import matmul
from hetero.ops.products import streaming, tile_choice, tile_times, tiling
from hetero.ops.products.matrices import matrices_of
from hetero.ops.products.tile_choice import Lengths
from hetero.ops.products.tiling import Grid
from hetero.pricing import pricing
from hetero.registry import Arguments

SMALL = Lengths(least=2, most=5, least_bytes=1, batch_bytes=(2000, 500), most_tiles=64)


@pytest.fixture
def small(monkeypatch):
    """Tiles of some rows and columns."""
    monkeypatch.setattr(tile_choice, "LENGTHS", SMALL)
    monkeypatch.setattr(tile_choice, "_MULTIPLE", 4)


# -- Which tiles -----------------------------------------------------------------------------------


def grids():
    for batch, (a, b) in [((), ((), ())), ((2, 3), ((True, True), (False, True)))]:
        for shape in [(1, 1, 1), (12, 7, 3), (5, 40, 2), (33, 33, 9)]:
            for lengths in [(1, 4, 4), (2, 7, 3), (1, 40, 1)]:
                yield Grid(batch, shape, lengths, a, b, 4)


def test_panels_are_halved_until_they_fit():
    """To whole multiples of 128, and to less than 256 only where nothing else fits."""
    h100 = profile.shipped("h100")
    asked = matmul.problem(
        *[hetero.spec(shape, "float32") for shape in ((1000, 10**4), (10**4, 999))]
    )
    seen = set()
    for room in (1e9, 1e8, 6e7, 4e7, 3e7, 2e7, 1e7, 5e6, 3e6):
        made = tile_choice.choose(asked, "cuda:0", h100.machine()["cuda:0"], h100, room).tiling
        assert made.nbytes <= room
        seen |= set(made.grid.lengths[1:])
    assert {512, 256, 125} < seen <= {1000, 999, 512, 256, 125, 63, 32, 16, 8, 4, 2, 1}


def test_matrices_that_lie_by_columns():
    A, B = np.ones((5, 7)), np.ones((7, 4))
    F = np.asfortranarray
    for operands, expected in (
        ((A, B), (False, False)),
        ((F(A), B), (True, False)),
        ((A, F(B)), (False, True)),
        ((A[:, ::-1], F(B)[::-1]), (False, True)),
        ((F(A)[:1], B), (False, False)),
    ):
        found = matrices_of(matmul.problem(*operands))
        assert found.by_columns == (*expected, False)
        assert found.shape == (len(operands[0]), 4, 7)


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


def test_copies_both_ways_take_less_together_than_one_after_the_other():
    (made,) = tiling.fitted(Grid((), (800, 800, 8), (1, 100, 100), (), (), 4), 1e12)
    up, down = 16 * 1.0, 64 * 0.25

    def whole(shared):
        rates = tile_times.Rates(
            *[lambda nbytes: 1.0] * 2, lambda nbytes: 0.25, 1e-9, 0.0, 0.0, True
        )
        return tile_times.predicted(made, rates._replace(shared=shared)).whole

    assert max(up, down) < whole(False) < whole(True)
    assert 0.85 * (up + down) < whole(True) < 0.97 * (up + down)


# -- Results ---------------------------------------------------------------------------------------


SHAPES = [
    ((4, 8), (8, 4)),
    ((3, 8), (8, 5)),
    ((5, 8), (8, 9)),
    ((33, 17), (17, 31)),
    ((3, 20, 8), (3, 8, 20)),
    ((7, 3, 4), (7, 4, 3)),
    ((7, 3, 4), (4, 3)),
    ((20, 8), (5, 8, 20)),
    ((2, 3, 9, 8), (2, 3, 8, 7)),
]


def integers(shape, seed=0, dtype=np.float32):
    """Numbers whose products and sums are exact."""
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(dtype)


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_products(opencl, small, shapes):
    dtype = "float64" if shapes == SHAPES[3] else "float32"
    A, B = (integers(shape, number, dtype) for number, shape in enumerate(shapes))
    result = hetero.matmul(A, B, device=opencl, method="streamed")
    expected = np.matmul(A, B)
    assert type(result) is type(expected)
    assert not devices.troubles()
    np.testing.assert_array_equal(result, expected)
    plan = hetero.plan("matmul", A, B, device=opencl, method="streamed")
    tiles = int(plan.chosen.made_of.split()[0])
    assert tiles > 1 or max(result.shape[-2:], default=0) <= 5


@pytest.mark.parametrize("second", ["C", "F", "strided", "reversed"])
@pytest.mark.parametrize("first", ["F", "padded", "reversed"])
def test_operands_of_all_strides(opencl, small, first, second):
    A, B = integers((13, 8), 1), integers((8, 11), 2)
    A, B = LAYOUTS[first](A), LAYOUTS.get(second, np.copy)(B)
    result = hetero.matmul(A, B, device=opencl, method="streamed")
    np.testing.assert_array_equal(result, A @ B)


def test_a_result_that_is_given(opencl, small):
    A, B = integers((13, 8), 1), integers((8, 11), 2)
    whole = np.full((26, 22), 5, np.float32)
    for out in (
        np.empty((13, 11), np.float32),
        np.empty((11, 13), np.float32).T,
        whole[1::2, ::-2],
    ):
        assert hetero.matmul(A, B, out, device=opencl, method="streamed") is out
        np.testing.assert_array_equal(out, A @ B)
    assert (whole[::2] == 5).all(), "wrote beside its result"
    square = integers((9, 9), 3)
    expected = square @ square
    for overlapping in (square, square.T):
        operand = square.copy()
        out = operand if overlapping is square else operand.T
        hetero.matmul(operand, operand.copy(), out, device=opencl, method="streamed")
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("share", [1.0, 0.5, 0.2])
def test_bits_repeat_and_do_not_depend_on_the_room(opencl, monkeypatch, share):
    """What is held on the device decides how much is moved, not what is computed."""
    monkeypatch.setattr(tile_choice, "LENGTHS", SMALL._replace(least=16, most=32))
    monkeypatch.setattr(tile_choice, "_MULTIPLE", 16)
    rng = np.random.default_rng(4)
    A, B = rng.random((70, 90), np.float32), rng.random((90, 80), np.float32)
    grid = Grid((), (70, 80, 90), (1, 16, 16), (), (), 4)
    problem = matmul.problem(A, B)
    results = []
    for room in (1e9, share * (A.nbytes + B.nbytes + 70 * 80 * 4)):
        made = tiling.fitted(grid, max(room, 40_000))[-1]
        result = np.empty((70, 80), np.float32)
        with devices.get(opencl).active():
            choice = tile_choice.Choice(made, 0.0, None, None)
            streaming.compute(devices.get(opencl), problem, Arguments((A, B), result), choice)
        results.append(result)
    np.testing.assert_array_equal(*results)
    np.testing.assert_allclose(results[0], A @ B, rtol=1e-5)


def test_one_tile_is_the_plain_product(opencl):
    rng = np.random.default_rng(4)
    A, B = rng.random((130, 99), np.float32), rng.random((99, 120), np.float32)
    results = [
        hetero.matmul(A, B, device=opencl, method=method) for method in ("tiled", "streamed")
    ]
    np.testing.assert_array_equal(*results)


def test_operands_on_disk(opencl, small, tmp_path):
    """Of a memmap, a subclass of ndarray, NumPy computes; its array goes through in tiles."""
    A = np.memmap(tmp_path / "A", np.float32, "w+", shape=(40, 30))
    A[:] = integers((40, 30), 1)
    B = integers((30, 20), 2)
    with hetero.use(device=opencl, method="streamed"):
        np.testing.assert_array_equal(hetero.matmul(A, B), A @ B)
        np.testing.assert_array_equal(hetero.matmul(np.asarray(A), B), A @ B)


# -- Failures --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", ["nothing", "limit"])
def test_every_allocation_may_fail(opencl, small, monkeypatch, warnings_of, kept):
    """The result is right whichever finds no room; operands and memory are as before."""
    A, B = integers((13, 8), 1), integers((8, 11), 2)
    before = A.copy(), B.copy()
    device = devices.get(opencl)
    allocate, made = type(device).allocate, []

    def count(self, nbytes):
        made.append(nbytes)
        if len(made) == fails:
            raise DeviceMemoryError("planted")
        return allocate(self, nbytes)

    monkeypatch.setattr(type(device), "allocate", count)
    limit = None if kept == "nothing" else 3000
    fails, number = 0, 1
    while fails <= number:
        made.clear()
        fails += 1
        with hetero.use(device=opencl, method="streamed", memory_limit=limit):
            result = hetero.matmul(A, B)
        number = max(number, len(made))
        np.testing.assert_array_equal(result, A @ B)
    assert number > 4
    np.testing.assert_array_equal(A, before[0])
    np.testing.assert_array_equal(B, before[1])
    assert devices.disabled(opencl) is None
    gc.collect()
    assert not sum(device.memory_held().values())


@pytest.mark.parametrize("call", ["begin_upload", "begin_download", "launch"])
@pytest.mark.parametrize("number", [1, 3, 7])
def test_a_device_that_fails_in_the_middle(opencl, small, monkeypatch, warnings_of, call, number):
    A, B = integers((13, 8), 1), integers((8, 11), 2)
    device, calls = type(devices.get(opencl)), []
    plain = getattr(device, call)

    def fails(*arguments, **options):
        calls.append(call)
        if len(calls) == number:
            raise DeviceError("planted")
        return plain(*arguments, **options)

    monkeypatch.setattr(device, call, fails)
    result = hetero.matmul(A, B, device=opencl, method="streamed")
    np.testing.assert_array_equal(result, A @ B)
    assert len(calls) == number
    (text,) = warnings_of()
    assert "the CPU computes this call" in text


def test_an_interrupt_in_the_middle(opencl, small, monkeypatch):
    A, B = integers((13, 8), 1), integers((8, 11), 2)
    device, calls = type(devices.get(opencl)), []
    plain = device.begin_download

    def interrupted(*arguments, **options):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return plain(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(device, "begin_download", interrupted)
        with pytest.raises(KeyboardInterrupt):
            hetero.matmul(A, B, device=opencl, method="streamed")
    assert devices.disabled(opencl) is None
    np.testing.assert_array_equal(hetero.matmul(A, B, device=opencl, method="streamed"), A @ B)


# -- Prices ----------------------------------------------------------------------------------------


def constants(links=("pageable",)):
    """A device of 1 TFLOP/s behind a bus of 10 GB/s each way."""
    one = {"below": None, "bytes_per_second": 1e10, "seconds_per_byte": 0.0, "seconds": 1e-5}
    way = {name: {"form": "segments", "constants": [one]} for name in links}
    rates = {"overhead": 1e-5, "flops_per_second": 1e12, "bytes_per_second": 1e12}
    data = {
        "name": "made up",
        "devices": {},
        "links": {"cuda:*": {"upload": way, "download": way}},
        "host": {"pack": way["pageable"], "dispatch": {}},
        "models": {
            f"cuda:*|{operation}|tiled|float32|*": {"form": "roofline", "constants": rates}
            for operation in ("matmul", "matvec")
        },
    }
    return profile.Profile(data)


GPU = {
    "kind": "cuda",
    "name": "made up",
    "multiprocessors": 132,
    "block_limit": 1024,
    "memory_bytes": 80 << 30,
    "library": None,
}


def priced(n, links=("pageable",), **changes):
    problem = matmul.problem(*[hetero.spec((n, n), "float32")] * 2)
    return pricing.price(problem, constants(links), {"cuda:0": {**GPU, **changes}}, "cuda:0")


@pytest.mark.parametrize("n", [2048, 4096, 8192, 16384])
@pytest.mark.parametrize("pinned", [False, True])
def test_where_copies_go_on_beside_the_larger_of_both_is_paid(n, pinned):
    """Copies of both directions are one after the other where the same threads do them."""
    found = matmul.problem(*[hetero.spec((n, n), "float32")] * 2)
    found = dataclasses.replace(
        found,
        inputs=tuple(o._replace(pinned=pinned) for o in found.inputs),
        output=found.output._replace(pinned=pinned),
    )
    links = constants(("pageable", "staged", "pinned"))
    plan = pricing.price(found, links, {"cuda:0": GPU}, "cuda:0")
    assert plan.chosen.method == "streamed"
    moved, computed = 4 * n * n / 1e10, 2 * n**3 / 1e12
    bus = (2 if pinned else 3) * moved
    assert max(bus, computed) < plan.seconds
    assert plan.seconds < 1.3 * max(bus, computed) + 0.3 * moved
    assert plan.seconds == pytest.approx(sum(plan.chosen.terms.values()))
    assert "by tiled" in plan.chosen.made_of
    assert plan.chosen.made_of in str(plan)


@pytest.mark.parametrize("n", [2048, 8192])
def test_where_copies_hold_up_the_host_the_plain_way_is_taken(n):
    plan = priced(n)
    assert plan.chosen.method == "tiled"
    (streamed,) = (c for c in plan.candidates if c.method == "streamed")
    assert plan.seconds < streamed.seconds


def test_larger_than_the_device():
    whole = priced(16384, ("pageable", "staged"))
    part = priced(16384, ("pageable", "staged"), memory_bytes=1 << 30)
    reasons = {c.method: c.reason for c in part.candidates}
    assert reasons["tiled"] == "needs 3.0 GiB, the device has 1.0 GiB"
    assert part.chosen.method == "streamed"
    assert whole.seconds < part.seconds < 1.2 * whole.seconds


def test_what_moves_little_is_not_cut():
    reasons = {c.method: c.reason for c in priced(500, ("pageable", "staged")).candidates}
    assert reasons["streamed"] == "is for calls that move 16 MiB or more"
    problem = matmul.problem(*[hetero.spec((500, 500), "float32")] * 2)
    there = pricing.price(problem, constants(), {"cuda:0": GPU}, "cuda:0", "streamed")
    assert there.chosen.method == "streamed"


def test_operands_on_a_device_are_not_brought_back():
    problem = matmul.problem(*[hetero.spec((5000, 5000), "float32", on="cuda:0")] * 2)
    plan = pricing.price(problem, constants(), {"cuda:0": GPU}, "cuda:0")
    reasons = {c.method: c.reason for c in plan.candidates}
    assert reasons["streamed"] == "not all operands are on the host"


def test_named_alone_it_says_what_else_to_name(opencl):
    """Another name of this machine's CPU is taken by name only."""
    with pytest.raises(MethodNotAvailable, match="name it with device= to use it"):
        hetero.plan("matmul", np.ones((64, 64)), np.ones((64, 64)), method="streamed")
