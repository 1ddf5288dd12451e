"""The rungs of matvec, convolve2d and Jacobi's method around their thresholds, with no GPU.

They are run on an OpenCL device, compiled for NVIDIA's GPUs and simulated by Oclgrind. As a script
this file is what Oclgrind simulates: ``good`` or ``race``.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import runtimes
from compiled import compile_cuda
from scipy import signal
from test_matmul_rungs import TODAY

import hetero
from hetero import registry
from hetero.devices.opencl import OpenCLDevice
from hetero.errors import MethodNotAvailable
from hetero.kernels.common.rungs import CONSTANT_BYTES
from hetero.kernels.convolution import rungs as convolution
from hetero.kernels.jacobi import plan as plan_jacobi
from hetero.kernels.jacobi import rungs as jacobi
from hetero.kernels.matvec import rungs as matvec
from hetero.kernels.procedure import derive
from hetero.kernels.procedure.derive import Shape
from hetero.ops import rungs
from hetero.ops.convolve2d import direct_device
from hetero.ops.convolve2d.window import BOUNDARIES, MODES, window_of
from hetero.ops.linear_systems.types import Stencil
from hetero.ops.poisson import jacobi_device
from hetero.ops.poisson.methods import sweeper
from hetero.registry import Arguments

DTYPES = ("float32", "float64")
FAMILIES = (matvec, convolution, jacobi)
SIDE = 32  # of a block, along rows


@pytest.fixture(scope="module")
def place():
    return runtimes.opencl_device().name


def draw(shape, dtype, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(dtype)


def near(result, expected, magnitude, terms):
    """Within what sums of so many products may lose in whatever order."""
    bound = (np.sqrt(terms) + 4) * 2 * np.finfo(result.dtype).eps * magnitude
    np.testing.assert_array_less(abs(result - expected), bound + np.finfo(result.dtype).tiny)


# -- Products --------------------------------------------------------------------------------------


def multiply(A, x, **where):
    result = hetero.matvec(A, x, **where)
    wide, vector = A.astype(float), x.astype(float)
    near(result, np.matvec(wide, vector), np.matvec(abs(wide), abs(vector)), max(1, A.shape[-1]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rung", matvec.RUNGS)
def test_products_around_a_square(place, rung, dtype):
    for m, k in itertools.product((1, SIDE - 1, SIDE, SIDE + 1), (1, SIDE - 1, SIDE, SIDE + 1)):
        multiply(draw((m, k), dtype), draw(k, dtype, 1), device=place, method=rung)
    multiply(draw((129, 65), dtype), draw(65, dtype, 1), device=place, method=rung)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rung", matvec.RUNGS)
def test_products_with_long_and_with_many_vectors(place, rung, dtype):
    """What constant memory holds, one more, one less; several vectors at once, or one in pieces."""
    held = CONSTANT_BYTES // np.dtype(dtype).itemsize
    where = {"device": place, "method": rung}
    for k in (held - 1, held, held + 1, 2 * held + 5):
        multiply(draw((3, k), dtype), draw(k, dtype, 1), **where)
    for batch, k in ((3, held // 2), (3, held // 2 + 1), (3, held + 1), (held // 33 + 1, 33)):
        multiply(draw((batch, 2, k), dtype), draw((batch, k), dtype, 1), **where)
        multiply(draw((2, k), dtype), draw((batch, k), dtype, 1), **where)


@pytest.mark.parametrize("kind", ["opencl", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_calls_of_several_threads_do_not_meet_in_constant_memory(kind):
    """A call's vector is there when its kernel runs, whatever other threads bring meanwhile."""
    where = "cuda:0" if kind == "cuda" else runtimes.opencl_device().name
    A = draw((64, 3000), "float32")

    def calls(seed):
        for at in range(20):
            rung = ("constant", "split", "tuned")[at % 3]
            multiply(A, draw(3000, "float32", 1 + 100 * seed + at), device=where, method=rung)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(calls, range(4)))  # which raises what they raised


@pytest.mark.parametrize("rung", matvec.RUNGS)
def test_products_of_any_strides(place, rung):
    A, x = draw((33, 70), "float32"), draw(140, "float32", 1)
    for matrix, vector in (
        (np.asfortranarray(A), x[:70]),
        (A[::2, ::2], x[:35]),
        (A, np.broadcast_to(x[:1], 70)),
        (A, x[::2]),
        (draw((4, 33, 70), "float32"), draw((70, 4), "float32").T),
    ):
        multiply(matrix, vector, device=place, method=rung)
    for m, k in ((0, 3), (3, 0)):
        multiply(np.ones((m, k)), np.ones(k), device=place, method=rung)


def test_what_is_not_finite_stays_where_it_is(place):
    """Squares reach beyond the matrix, and nothing there is multiplied."""
    A, x = np.ones((40, 40)), np.ones(40)
    A[39, 39], A[3, 4] = np.inf, np.nan
    for rung in matvec.RUNGS:
        result = hetero.matvec(A, x, device=place, method=rung)
        assert np.isinf(result[39])
        assert np.isnan(result[3])
        assert np.isfinite(result).sum() == 38
    image, filter = np.ones((40, 40)), np.ones((3, 3))
    image[0, 0] = np.inf
    for rung in convolution.RUNGS:
        result = hetero.convolve2d(image, filter, mode="full", device=place, method=rung)
        assert np.isinf(result[:3, :3]).all()
        assert np.isfinite(result).sum() == result.size - 9


@pytest.mark.parametrize("dtype", DTYPES)
def test_shapes_are_those_that_can_be_launched(dtype):
    small = TODAY._replace(block_threads=256, block_shared=16384)
    for family, rung in ((f, rung) for f in FAMILIES for rung in f.RUNGS):
        for card in (TODAY, small):
            there = family.RUNGS.shapes(rung, dtype, card)
            assert len(set(there)) == len(there) > 0
            for shape in there:
                threads = shape.x * shape.y
                assert rung == "sequential" or card.warp <= threads <= card.block_threads
    sizes = {"m": 5, "k": 5, "batch": 1, "dtype": dtype, "a_strides": (0, 5, 1)}
    sizes |= {"x_strides": (0, 1), "y_strides": (0, 1)}
    with pytest.raises(ValueError, match=r"shape must be one of .*, 32x8,.*, got 33x8"):
        matvec.plan_rung("padded", **sizes, card=TODAY, shape=Shape(33, 8))
    with pytest.raises(ValueError, match=r"shape must be one of .*, got 1024x32"):
        jacobi.sweep_rung("shared", whole((9, 9), dtype), card=TODAY, shape=Shape(1024, 32))


def test_a_tile_with_the_points_around_it_fits_in_shared_memory():
    room = (512 + 2) * (2 + 2) * 8
    for nbytes in (room - 1, room):
        card = TODAY._replace(block_shared=nbytes)
        assert (Shape(512, 2) in jacobi.RUNGS.shapes("shared", "float64", card)) == (nbytes == room)
        assert Shape(512, 2) in jacobi.RUNGS.shapes("naive", "float64", card)
    room = (2 * 8 * 128 + 128) * 4  # of an image's rows, twice those of a block, and of the filter
    for nbytes in (room - 1, room):
        card = TODAY._replace(block_shared=nbytes)
        assert (Shape(8, 128) in convolution.RUNGS.shapes("shared", "float32", card)) == (
            nbytes == room
        )
        assert Shape(8, 128) in convolution.RUNGS.shapes("row", "float32", card)


@pytest.mark.parametrize("dtype", DTYPES)
def test_tuned_is_launched_with_what_is_derived(dtype):
    card = TODAY._replace(block_shared=48 << 10)
    for m, k in ((100, 100), (1000, 4096), (16384, 16384)):
        assert matvec.RUNGS.chosen("tuned", dtype, (m, k), card) == derive.matvec(card, dtype, m, k)
    for n, taps in ((512, 3), (4096, 31), (4096, 63)):
        derived = derive.convolve2d(card, dtype, n, n, (taps, taps))
        assert convolution.RUNGS.chosen("tuned", dtype, (n, n, taps, taps), card) == derived
    assert matvec.RUNGS.chosen("padded", dtype, (), card) == Shape(32, 8)
    assert convolution.RUNGS.chosen("padded", dtype, (), card) == Shape(32, 16)
    small = card._replace(block_threads=128)
    assert matvec.RUNGS.chosen("padded", dtype, (), small) == Shape(32, 4)
    assert convolution.RUNGS.chosen("row", dtype, (), small) == Shape(32, 4)
    assert jacobi.RUNGS.chosen("naive", dtype, (), small) == Shape(32, 4)


@pytest.mark.parametrize(
    ("k", "x_strides", "packed"),
    [
        *((5, strides, False) for strides in ((5, 1), (0, 1), (7, 1))),
        *((5, strides, True) for strides in ((5, 2), (0, -1))),
        (1, (0, 9), False),
    ],
)
def test_only_a_vector_with_gaps_is_packed(k, x_strides, packed):
    sizes = {"m": 5, "k": k, "dtype": "float32", "card": TODAY}
    sizes |= {"a_strides": (0, k, 1), "x_strides": x_strides, "y_strides": (5, 1)}
    plan = matvec.plan_rung("padded", batch=1, **sizes)
    assert ((plan.pack is not None), plan.packed) == (packed, k * packed)
    plan = matvec.plan_rung("padded", batch=2, **sizes)
    assert (plan.pack is None) == (x_strides[0] == k and not packed)


def launches_of(plan):
    """Those of a plan, with constant memory or without."""
    return getattr(plan, "launches", None) or [piece.launch for piece in plan.pieces]


def test_rungs_share_a_binary():
    """A convolution's: of a dtype one for all with their own shapes but `unrolled` and `tuned`."""
    sizes = {"batch": 1, "dtype": "float32", "card": TODAY}
    sizes |= {"image_strides": (0, 99, 1), "out_strides": (0, 99, 1)}
    sizes |= window_of((99, 99), (3, 3), "same").extents
    plans = {rung: convolution.plan_rung(rung, **sizes) for rung in convolution.RUNGS}
    found = {launch for plan in plans.values() for launch in launches_of(plan)}
    found = {launch for launch in found if launch.source == "convolve_rungs.cu"}
    assert len({(launch.source, launch.defines) for launch in found}) == 1


def test_other_shapes_give_the_same(place, monkeypatch):
    """What a sweep launches, one shape of each kernel with another tile."""
    A, x, filter = draw((40, 70), "float32"), draw(70, "float32", 1), draw((3, 21), "float32", 1)
    options = {"rtol": 0.0, "maxiter": 5, "device": place}
    calls = {
        matvec: lambda rung: hetero.matvec(A, x, device=place, method=rung),
        convolution: lambda rung: hetero.convolve2d(A, filter, device=place, method=rung),
        jacobi: lambda rung: hetero.solve_poisson(A, **options, method=rung),
    }
    for family, rung in (
        *((matvec, "split"), (matvec, "tuned")),
        *((convolution, "shared"), (convolution, "unrolled"), (jacobi, "shared")),
    ):
        expected = calls[family](rung)
        card, row = hetero.devices.get(place).card(), family.RUNGS[rung]
        assert Shape(16, 4) in family.RUNGS.shapes(rung, "float32", card)
        with monkeypatch.context() as patch:
            patch.setitem(family.RUNGS, rung, row._replace(shape=Shape(16, 4), reckon=None))
            clear_plans()
            result = calls[family](rung)
        clear_plans()
        np.testing.assert_allclose(result, expected, rtol=2e-4, atol=1e-5)


def clear_plans():
    matvec.plan_rung.cache_clear()
    direct_device._remembered.cache_clear()


def test_a_rung_is_launched_with_the_shape_that_is_asked_for(place):
    A, x, y = draw((40, 70), "float32"), draw(70, "float32", 1), np.empty(40, np.float32)
    device, problem = hetero.devices.get(place), registry.operation("matvec").problem(A, x)
    with device.active():
        (a, *kept), (b, *more), (c, *rest) = (_uploaded(device, array) for array in (A, x, y))
        for row in registry.rungs("matvec", "opencl"):
            shaping = row.shaping(device, problem)
            assert shaping.chosen in shaping.shapes
            if row.method in ("naive", "tuned"):  # as the others
                shaping.run(tuple(shaping.shapes[-1]), Arguments((a, b), c))
                device.download(c, y)
                near(y, A @ x, abs(A) @ abs(x), 70)
        del kept, more, rest
    for name, operands in (("convolve2d", (A, A[:3, :3])), ("poisson", (A,))):
        problem = registry.operation(name).problem(*operands)
        for row in registry.rungs(name, "opencl"):
            shaping = row.shaping(device, problem)
            assert shaping.chosen in shaping.shapes


# -- Convolution -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rung", convolution.RUNGS)
def test_convolutions_around_a_block(place, rung, dtype):
    """Images and filters of a block's size, one more, one less."""
    pairs = itertools.product(
        ((1, 1), (15, 31), (16, 32), (17, 33)), ((1, 1), (15, 31), (16, 32), (17, 33))
    )
    for at, (shape, taps) in enumerate(pairs):
        image, filter = draw(shape, dtype), draw(taps, dtype, 1)
        options = {"mode": MODES[at % 2], "boundary": BOUNDARIES[at % 3]}
        convolve(image, filter, rung, place, **options, fillvalue=at % 2)
    image = draw((40, 65), dtype)
    convolve(image, draw((4, 64), dtype), rung, place, mode="valid")
    convolve(image.T, draw((5, 3), dtype), rung, place, mode="same", boundary="symm")
    convolve(image[::2, ::3], draw((3, 5), dtype), rung, place, mode="full")


def convolve(image, filter, rung, place, **options):
    result = hetero.convolve2d(image, filter, **options, device=place, method=rung)
    wide, taps = image.astype(float), filter.astype(float)
    expected = signal.convolve2d(wide, taps, **options)
    largest = signal.convolve2d(abs(wide), abs(taps), **options)
    near(result, expected, largest, filter.size)


@pytest.mark.parametrize("rung", convolution.RUNGS)
def test_stacks_and_complex_images(place, rung):
    stack, filter = draw((3, 20, 33), "float32"), draw((3, 4), "float32")
    options = {"mode": "same", "device": place, "method": rung}
    result = hetero.convolve2d(stack, filter, **options)
    for one, image in zip(result, stack, strict=True):
        np.testing.assert_allclose(one, signal.convolve2d(image, filter, "same"), atol=1e-5)
    result = hetero.convolve2d(stack[0] + 1j * stack[1], filter, **options)
    expected = signal.convolve2d(stack[0] + 1j * stack[1], filter, "same")
    np.testing.assert_allclose(result, expected, atol=1e-5)


# -- Jacobi ----------------------------------------------------------------------------------------

GRIDS = ((1, 1), (7, 31), (8, 32), (9, 33), (40, 17), (1, 1, 1), (3, 8, 32), (5, 9, 33))


def whole(shape, dtype):
    return plan_jacobi.GridSlab.of(shape, (1.0,) * len(shape), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", GRIDS, ids=str)
def test_sweeps_are_the_same_bit_for_bit(place, shape, dtype):
    f, start = draw(shape, dtype), draw(shape, dtype, 1)
    device, stencil, found = hetero.devices.get(place), Stencil(shape, (0.5, 1.0, 2.0)), {}
    stencil = stencil._replace(spacing=stencil.spacing[: len(shape)])
    for rung in (None, *jacobi.RUNGS) if len(shape) == 2 else jacobi.RUNGS:
        found[rung], how = start.copy(), rung and sweeper(rung)
        jacobi_device.solve([device], stencil, f, found[rung], sweeps=7, sweeper=how)
    best = found.pop(next(iter(found)))
    assert not np.array_equal(best, start)
    for rung, result in found.items():
        assert np.array_equal(result, best), rung


@pytest.mark.parametrize("rung", jacobi.RUNGS)
def test_a_number_of_sweeps_is_made(place, rung):
    f = draw((20, 20), "float64")
    options = {"rtol": 0, "maxiter": 11, "device": place, "return_info": True}
    u, info = hetero.solve_poisson(f, **options, method=rung)
    expected, _ = hetero.solve_poisson(f, **options, method="jacobi")
    assert (info["iterations"], info["method"]) == (11, rung)
    assert np.array_equal(u, expected)


def test_one_thread_says_what_it_takes_no_more(place):
    f = np.zeros((3000, 3000), np.float32)
    with pytest.raises(MethodNotAvailable, match="one thread makes up to 536870912 points"):
        hetero.plan("poisson", f, rtol=0.0, maxiter=100, device=place, method="sequential")
    plan = hetero.plan("poisson", f, rtol=0.0, maxiter=2, device=place, method="sequential")
    assert plan.chosen.method == "sequential"


# -- NVIDIA's compiler -----------------------------------------------------------------------------


def every_launch():
    """One launch for each binary: the rungs' own blocks, and those of `tuned` on a large GPU."""
    found = []
    for dtype in DTYPES:
        sizes = {"batch": 1, "dtype": dtype, "card": TODAY}
        strides = {"a_strides": (0, 99, 1), "x_strides": (0, 2), "y_strides": (0, 1)}
        for rung in (*matvec.RUNGS, "tuned"):
            shape = Shape(64, 16) if rung == "tuned" else None
            planned = matvec.plan_rung(rung, m=99, k=99, **sizes, **strides, shape=shape)
            found += [*launches_of(planned), *getattr(planned, "pack", ((),))[0]]
        sizes |= {"image_strides": (0, 99, 1), "out_strides": (0, 99, 1)}
        sizes |= window_of((99, 99), (3, 63), "same").extents
        for rung in convolution.RUNGS:
            shape = Shape(64, 1) if rung == "tuned" else None
            found += launches_of(convolution.plan_rung(rung, **sizes, shape=shape))
        for grid in (whole(shape, dtype) for shape in ((9, 9), (9, 9, 9))):
            found.append(jacobi.sweep_rung("naive", grid, card=TODAY))
    return tuple({(launch.source, launch.defines): launch for launch in found}.values())


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_compiles_without_spills(arch):
    launches = every_launch()
    assert {launch.source for launch in launches} == {
        *("matvec_rungs.cu", "matvec_tuned.cu", "matvec_pack.cu"),
        *("convolve_rungs.cu", "convolve_tuned.cu", "jacobi_rungs.cu"),
    }
    half = len(launches) // 2  # those of a dtype: float32 on older cards, float64 on newer ones
    launches = launches[:half] if arch == "sm_80" else launches[half:]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        spilled = pool.map(lambda launch: compile_cuda(launch, arch), launches)
        bad = [launch for launch, size in zip(launches, spilled, strict=True) if size]
    assert not bad, f"{len(bad)} variants spill: {bad[:4]}"


# -- Oclgrind --------------------------------------------------------------------------------------


def simulate(case):
    """Run the smallest problems that reach every kernel, whole or without barriers."""
    from hetero.devices import opencl

    device = OpenCLDevice(0, runtimes.simulator())
    text_of = opencl.kernel_text
    if case == "race":
        opencl.kernel_text = lambda *names: text_of(*names).replace(
            "barrier(CLK_LOCAL_MEM_FENCE)", ""
        )
        with contextlib.suppress(AssertionError):  # without barriers, results may be wrong too
            _simulate_product(device, "shared")
        return
    for rung in matvec.RUNGS:
        _simulate_product(device, rung)
    for rung in convolution.RUNGS:
        _simulate_convolution(device, rung)
    for rung, shape in itertools.product(jacobi.RUNGS, ((9, 5), (3, 9, 5))):
        f, u = draw(shape, "float32"), draw(shape, "float32")
        stencil = Stencil(shape, (1.0,) * len(shape))
        jacobi_device.solve([device], stencil, f, u, sweeps=1, sweeper=sweeper(rung))


def _uploaded(device, array):
    buffer, owner = device.allocate(array.nbytes)
    device.upload(np.ascontiguousarray(array), buffer)
    return buffer, owner


def _simulate_product(device, rung):
    A, x, y = draw((9, 37), "float32"), draw((37, 2), "float32"), np.empty(9, np.float32)
    (a, *kept), (b, *more), (c, *rest) = (_uploaded(device, array) for array in (A, x, y))
    card = device.card()._replace(block_threads=64)
    planned = matvec.plan_rung(
        rung,
        m=9,
        k=37,
        batch=1,
        dtype="float32",
        a_strides=(0, 37, 1),
        x_strides=(0, 2),
        y_strides=(0, 1),
        card=card,
        shape=min(matvec.RUNGS.shapes(rung, "float32", card)),
    )
    rungs.run_plan(device, planned, {"A": a, "x": b, "y": c}, 4)
    device.download(c, y)
    near(y, A @ x[:, 0], abs(A) @ abs(x[:, 0]), 37)
    del kept, more, rest


def _simulate_convolution(device, rung):
    window = window_of((5, 9), (3, 11), "same", "wrap")
    image, taps, out = draw((5, 9), "float32"), draw((3, 11), "float32"), np.empty((5, 9), "f")
    (a, *kept), (b, *more), (c, *rest) = (_uploaded(device, one) for one in (image, taps, out))
    planned = convolution.plan_rung(
        rung,
        batch=1,
        dtype="float32",
        image_strides=(45, 9, 1),
        out_strides=(45, 9, 1),
        **window.extents,
        card=device.card(),
        shape=Shape(16, 4),
    )
    buffers = {"image": a, "taps": b, "x": b, "out": c, "fillvalue": 0.0}
    rungs.run_plan(device, planned, buffers, 4)
    device.download(c, out)
    expected = signal.convolve2d(image, taps[::-1, ::-1], "same", "wrap")
    near(out, expected, np.full_like(expected, 33), 33)
    del kept, more, rest


def test_no_races_nor_bounds():
    assert runtimes.simulated(__file__, "good") == ""


def test_a_race_is_seen():
    report = runtimes.simulated(__file__, "race")
    assert "data race" in report
    assert "Kernel: matvec_shared" in report


if __name__ == "__main__":
    simulate(sys.argv[1])
