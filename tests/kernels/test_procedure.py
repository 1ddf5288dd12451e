"""White's execution metrics and launch parameters (2013), against his printed equations."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from hetero.kernels.procedure import card as cards
from hetero.kernels.procedure import derive, metrics, reckon
from hetero.kernels.procedure.card import of_attributes, of_limits
from hetero.kernels.procedure.reads import wavefronts

T10 = cards.T10


def test_a_description_gives_its_card():
    assert cards.card(T10._asdict()) == T10


def test_fields_that_are_missing_are_named():
    lacking = {k: v for k, v in T10._asdict().items() if k not in ("registers", "blocks", "cache")}
    with pytest.raises(ValueError, match=r"lacks blocks, registers$"):
        cards.card(lacking)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"colour": "red"}, "got colour"),
        ({"threads": 0, "clock": -1.0}, "got threads 0, clock -1.0"),
        ({"transactions": (64, 32)}, r"got transactions \(64, 32\)"),
        ({"transactions": 32}, "got transactions 32"),
        ({"cache": -1, "shared_reserved": None}, "got cache -1, shared_reserved None"),
        ({"register_unit": 0, "shared_unit": 0}, "got register_unit 0, shared_unit 0"),
        ({"partition_bytes": 0}, "got partition_bytes 0"),
    ],
)
def test_fields_that_are_wrong_are_named(changed, message):
    with pytest.raises(ValueError, match=message):
        cards.card({**T10._asdict(), **changed})


@pytest.mark.parametrize(
    "changed", [{"block_shared": 8}, {"block_threads": 4}, {"transactions": (1 << 20,)}]
)
@pytest.mark.parametrize("kernel", ["matvec", "matmul", "convolve2d"])
def test_a_card_that_takes_no_block_is_named(kernel, changed):
    with pytest.raises(ValueError, match="Tesla T10 takes no block of the kernel: "):
        getattr(derive, f"shapes_{kernel}")(T10._replace(**changed), "float32")


def test_a_sector_may_be_smaller_than_an_element():
    shape = derive.matvec(T10._replace(transactions=(4,)), "float64", 100, 100)
    assert shape.x * shape.y >= T10.warp


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_shapes_are_legal_and_one_of_them_is_derived(dtype):
    item = {"float32": 4, "float64": 8}[dtype]
    for shapes, chosen in (
        (derive.shapes_matvec(T10, dtype), derive.matvec(T10, dtype, 1000, 700)),
        (derive.shapes_matmul(T10, dtype), derive.matmul(T10, dtype, 100, 300, 500)),
        (derive.shapes_convolve2d(T10, dtype), derive.convolve2d(T10, dtype, 100, 70, (3, 5))),
    ):
        assert chosen in shapes
        assert all(s.x * item >= 32 and s.x * s.y <= 512 for s in shapes)
        assert len(set(shapes)) == len(shapes)


H100 = cards.card(
    {
        **T10._asdict(),
        "name": "NVIDIA H100 80GB HBM3",
        "multiprocessors": 132,
        "blocks": 32,
        "threads": 2048,
        "registers": 65536,
        "shared": 233472,
        "block_threads": 1024,
        "block_shared": 49152,
        "group": 32,
        "transactions": (32,),
        "saturating": 67584,
        "bandwidth": 3.35e12,
        "clock": 1.98e9,
        "cache": 52428800,
        "partitions": 1,
        "partition_bytes": 0,
        "register_unit": 256,
        "shared_unit": 128,
        "shared_reserved": 1024,
    }
)


def test_registers_and_shared_memory_are_given_out_in_units():
    """A block of 96 threads, 33 registers and 100 bytes has 3 warps, 1280 of each, 128 + 1024."""
    launch = metrics.Launch(1000, 1, 96, 1)
    assert metrics.resident_blocks(H100, metrics.Resources(33, 100), launch) == 65536 // 3840
    assert metrics.resident_blocks(H100, metrics.Resources(8, 20000), launch) == 233472 // 21120
    assert metrics.partitions(H100, metrics.Resources(33, 100), launch) == 1


@pytest.mark.parametrize(
    ("itemsize", "x", "along_y", "expected"),
    [
        (4, 32, 33, 1),
        (4, 16, 32, 2),  # rows of 16 threads, 32 banks apart: the same ones
        (4, 16, 17, 2),  # the last thread of the second row meets the first one of the first
        (4, 16, 48, 1),
        (4, 8, 16, 2),
        (8, 32, 64, 2),  # 256 bytes take two
        (8, 16, 32, 2),
    ],
)
def test_wavefronts(itemsize, x, along_y, expected):
    assert wavefronts(itemsize, x, along_y) == expected


def test_a_filter_decides_the_width_of_a_block():
    """As wide as the filter, if a row of threads is a warp at least: White's equation 5.18."""
    for taps, x in ((3, 32), (31, 32), (63, 64), (127, 128), (513, (256, 512))):
        for dtype in ("float32", "float64"):
            shape = derive.convolve2d(H100, dtype, 2048, 2048, (taps, taps))
            assert shape.x in (x if isinstance(x, tuple) else (x,)), (taps, dtype, shape)
            assert shape.x * shape.y >= 64


def test_squares_are_large_and_shared_by_several_threads():
    for n in (512, 1024, 4096, 16384):
        x, y, _ = derive.matvec(H100, "float32", n, n)
        assert x == 64
        assert 2 <= y <= 16


def test_few_results_have_fewer_elements_a_thread():
    """Otherwise most multiprocessors would have no block."""
    small, large = (derive.matmul(H100, "float32", n, n, n) for n in (256, 4096))
    assert small.elements < large.elements == 16
    blocks = -(-256 // small.elements) * -(-256 // (small.x * small.y))
    assert blocks * small.x * small.y >= 132 * 64


DOCS = Path(__file__).parents[2] / "docs"
MEASURED = json.loads((DOCS / "procedure.json").read_text("utf-8"))


@pytest.mark.parametrize("sweep", MEASURED["blocks"], ids=lambda s: s["operation"])
def test_what_is_derived_is_near_the_best_that_was_measured(sweep):
    """Of the sweeps that docs/procedure.md shows, on the card that they were measured on."""
    *sizes, taps = sweep["problem"]
    if sweep["operation"] == "convolve2d":
        problem = (*sizes[:2], (sizes[2], taps))
    else:
        problem = tuple(sweep["problem"])
    shape = getattr(derive, sweep["operation"])(
        cards.card(MEASURED["card"]), sweep["dtype"], *problem
    )
    assert list(shape) == sweep["derived"]
    (time,) = (t for x, y, elements, t in sweep["times"] if (x, y, elements) == shape)
    assert time <= 1.05 * sweep["best"]


def test_the_pictures_are_of_what_was_measured():
    pictures = runpy.run_path(str(DOCS / "procedure.py"))["pictures"](MEASURED)
    assert pictures.keys() == {file.name for file in DOCS.glob("procedure-*.svg")}
    for name, picture in pictures.items():
        assert picture == (DOCS / name).read_text("utf-8")
        ElementTree.fromstring(picture)


ATTRIBUTES = {  # of an H100, as its driver tells them
    "MAX_THREADS_PER_MULTIPROCESSOR": 2048,
    "WARP_SIZE": 32,
    "MEMORY_CLOCK_RATE": 2619000,
    "GLOBAL_MEMORY_BUS_WIDTH": 5120,
    "MAX_BLOCKS_PER_MULTIPROCESSOR": 32,
    "MAX_REGISTERS_PER_MULTIPROCESSOR": 65536,
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 233472,
    "MAX_SHARED_MEMORY_PER_BLOCK": 49152,
    "CLOCK_RATE": 1980000,
    "L2_CACHE_SIZE": 52428800,
    "RESERVED_SHARED_MEMORY_PER_BLOCK": 1024,
}


DEVICE = SimpleNamespace(name=H100.name, multiprocessors=132, block_limit=1024, shared_limit=32768)


def test_a_cuda_device_describes_itself():
    found = of_attributes(DEVICE, ATTRIBUTES.__getitem__)
    assert found._replace(bandwidth=H100.bandwidth) == H100
    assert found.bandwidth == 2 * 2619e6 * 5120 / 8
    silent = {**ATTRIBUTES, "MEMORY_CLOCK_RATE": 0}
    assert of_attributes(DEVICE, silent.__getitem__).bandwidth == 3.3e12


def test_a_device_of_which_little_is_known_is_derived_for():
    found = of_limits(DEVICE)
    assert (found.blocks, found.block_threads, found.block_shared) == (1, 1024, 32768)
    for dtype in ("float32", "float64"):
        assert derive.matvec(found, dtype, 500, 300) in derive.shapes_matvec(found, dtype)
        assert derive.matmul(found, dtype, 50, 30, 70) in derive.shapes_matmul(found, dtype)


BLOCKS = json.loads((Path(__file__).parents[1] / "support" / "blocks_h200.json").read_text("utf-8"))


@pytest.mark.parametrize(
    ("operation", "dtype", "mean", "worst"),
    [
        ("matvec", "float32", 0.02, 0.10),
        ("matvec", "float64", 0.02, 0.10),
        ("matmul", "float32", 0.02, 0.10),
        ("convolve2d", "float32", 0.04, 0.12),
        ("convolve2d", "float64", 0.04, 0.12),
    ],
)
def test_derived_blocks_keep_their_distance_from_the_best(operation, dtype, mean, worst):
    """On an H200: [x, y, elements, microseconds] of the fastest legal shapes of each problem."""
    card, item, behind = cards.card(BLOCKS["card"]), {"float32": 4, "float64": 8}[dtype], []
    for name, type_, problem, times in BLOCKS["problems"]:
        if (name, type_) == (operation, dtype):
            sizes = problem if name != "convolve2d" else [*problem[:2], tuple(problem[2:])]
            shape = getattr(derive, operation)(card, dtype, *sizes)
            measured = {(x, y, elements): time for x, y, elements, time in times}
            assert shape in measured, f"{problem}: {shape} is not among the fastest"
            behind.append(measured[shape] / min(measured.values()) - 1)
            seconds = getattr(reckon, operation)(card, item, shape, *problem)
            assert 0.4 < seconds * 1e6 / measured[shape] < 1.3, (problem, shape)
    assert len(behind) >= 10
    assert sum(behind) / len(behind) <= mean
    assert max(behind) <= worst
