"""The ladders' kernels: right at sizes with remainders, compiled for a GPU, in legal blocks.

As a script this file is what Oclgrind simulates.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import runtimes
from compiled import spilling

from hetero.errors import MethodNotAvailable
from hetero.kernels.cpu.ladder import LADDERS
from hetero.kernels.ladder import HELD_BYTES, SHARED_BYTES
from hetero.kernels.procedure import CARDS, of_attributes
from hetero.ladder.families import FAMILIES, OnCpu, OnDevice

DTYPES = ("float32", "float64")


def rung_of(function, name):
    return FAMILIES[function].ladder.rungs[name]


EVERY = [(function, name) for function, of in FAMILIES.items() for name in of.ladder.rungs]
RUNGS = [(function, name) for function, name in EVERY if not rung_of(function, name).capability]
# One that no block divides, with more than one block; one that is less than any block.
SIZES = {
    "matmul": ((67, 259, 45), (3, 5, 2)),
    "matvec": ((259, 77), (3, 2)),
    "convolve2d": ((45, 71, 19, 35), (3, 2, 4, 5)),
    "solve_poisson": ((37, 71), (2, 3)),
    "kmeans": ((1100, 5, 7), (3, 2, 2)),
}
# What a driver says of a card of today.
ATTRIBUTES = {
    "MAX_THREADS_PER_MULTIPROCESSOR": 2048,
    "WARP_SIZE": 32,
    "MAX_BLOCKS_PER_MULTIPROCESSOR": 32,
    "MAX_REGISTERS_PER_MULTIPROCESSOR": 65536,
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 233472,
    "MAX_SHARED_MEMORY_PER_BLOCK": 49152,
    "RESERVED_SHARED_MEMORY_PER_BLOCK": 1024,
}
H100 = SimpleNamespace(name="H100", multiprocessors=132, block_limit=1024)
HOPPER = of_attributes(H100, ATTRIBUTES.__getitem__)


@pytest.fixture
def device():
    own = runtimes.opencl_device()
    with own.active():
        yield own


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("function", "name"), RUNGS)
def test_values(device, function, name, dtype):
    """As NumPy's and SciPy's, with its own block and the widest; `check` sees a wrong element."""
    for dims in SIZES[function]:
        ground = OnDevice(device, FAMILIES[function], dtype, dims)
        ground.check(name)
        blocks = ground.of.ladder.blocks(name, dtype, ground.card)
        OnDevice(device, ground.of, dtype, dims).check(name, max(blocks))
    ground.arrays[next(iter(ground.arrays))].flat[0] += 8  # which the device does not know of
    with pytest.raises(ValueError, match=f"^{name}'s .* is wrong by"):
        ground.check(name)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_compiles_without_spills(arch):
    launches = {}
    for number, ((function, name), dtype) in enumerate(itertools.product(RUNGS, DTYPES)):
        ladder, sizes = FAMILIES[function].ladder, SIZES[function][0]
        block = ladder.chosen(name, dtype, HOPPER, sizes)
        steps = ladder.steps(ladder, ladder.rungs[name], block, dtype, HOPPER, *sizes)
        if (number + number // 2) % 2 == (arch == "sm_90"):  # in turn, since there are many
            launches |= {(s.launch.source, s.launch.defines): s.launch for s in steps.launches}
    assert len(launches) > 30
    assert spilling(launches.values(), arch) == []


def test_rungs_on_tensor_cores_compile_without_spills():
    """From pieces, which are cut before; on other devices they are left out."""
    names = [name for function, name in EVERY if rung_of(function, name).capability]
    assert names == ["wgmma", "ahead", "groups"]
    ladder, sizes = FAMILIES["matmul"].ladder, (300, 259, 200)
    launches = []
    for name in names:
        rung = ladder.rungs[name]
        steps = ladder.steps(ladder, rung, rung.block, "float32", HOPPER, *sizes)
        *cuts, product = [step.launch for step in steps.launches]
        assert [launch.kernel for launch in cuts] == ["split", "split"]
        assert product.grid == 3 * 3
        launches.append(product)
    assert spilling(launches, "sm_90a") == []


def test_blocks_are_legal_on_any_card():
    """Whole warps that a block holds, whose tiles fit; and the rung's own is one of them."""
    small = HOPPER._replace(block_threads=256, block_shared=16384)
    cards = HOPPER, CARDS["Tesla T10"], small
    for card, (function, name), dtype in itertools.product(cards, RUNGS, DTYPES):
        ladder, item = FAMILIES[function].ladder, np.dtype(dtype).itemsize
        rung, blocks = ladder.rungs[name], ladder.blocks(name, dtype, card)
        assert ladder.chosen(name, dtype, card, SIZES[function][0]) in blocks
        for block in blocks if rung.tile is not None else ():
            assert card.warp <= block.x * block.y <= card.block_threads
            assert rung.shared(block, item) <= min(card.block_shared, SHARED_BYTES)
            assert block.each in (rung.each or (rung.block.each,))


def test_what_does_not_fit_is_left_out(device):
    held = HELD_BYTES // 8
    for dims, fits in (((2, held), True), ((2, held + 1), False)):
        ground = OnDevice(device, FAMILIES["matvec"], "float64", dims)
        assert ground.obstacle("naive") is None
        assert (ground.obstacle("padded") is None) == fits
    most = min(SHARED_BYTES, device.shared_limit)
    for rows, fits in ((most // (8 * 64), True), (most // (8 * 64) + 1, False)):
        ground = OnDevice(device, FAMILIES["solve_poisson"], "float64", (rows, 64))
        assert (ground.obstacle("persistent") is None) == fits
    assert f"do not fit in the {most} of shared memory" in ground.obstacle("persistent")
    ground.card = ground.card._replace(at_once=2)  # as where CUDA has no cooperative launch
    ground.dims = (20, 20)
    with pytest.raises(MethodNotAvailable, match="blocks do not wait"):
        ground.prepared("persistent")(0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("family", "number"), [(f, i) for f, loops in LADDERS.items() for i in range(len(loops))]
)
def test_loops_of_the_cpu(family, number, dtype):
    function, of = next(one for one in FAMILIES.items() if one[1].ladder.family == family)
    for dims in SIZES[function]:
        ground = OnCpu((), of, dtype, dims)
        name = [*ground.rungs][number]
        for _ in range(2):  # results are zeroed before
            ground.check(name)


def simulate():
    """Every kernel once."""
    from hetero.devices import opencl

    device = opencl.OpenCLDevice(0, runtimes.simulator())
    for function, of in FAMILIES.items():
        dims = tuple(min(size, 9 if function != "kmeans" else 140) for size in SIZES[function][0])
        for name, rung in of.ladder.rungs.items():
            if not rung.capability:
                OnDevice(device, of, "float32", dims).check(name)


def test_no_races_nor_bounds():
    assert runtimes.simulated(__file__) == ""


if __name__ == "__main__":
    simulate()
