"""White's execution metrics and launch parameters: his printed equations and numbers (2013).

Each equation is written here as it is printed, and compared with what the functions give for the
T10.
"""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import pytest

from hetero.kernels.procedure import metrics, white
from hetero.kernels.procedure.card import CARDS, T10
from hetero.kernels.procedure.metrics import Launch, Resources
from hetero.kernels.procedure.reads import bytes_moved, reads

SIZES = (512, 1024, 2048, 4096, 8192, 16384)
WIDTHS = (8, 16, 32, 64, 128, 256, 512)
FILTERS = (3, 63, 513)
# Blocks of at least a half warp, as the equations assume.
BLOCKS = [(x, y) for x in WIDTHS for y in (1, 2, 4, 8, 16, 32, 64) if 16 <= x * y <= 512]
SQUARES = [(x, y) for x, y in BLOCKS if y <= x <= 64]
NEAR = {"rel": 1e-12}


def counted(work):
    """Transactions of 32 and of 64 bytes."""
    found = reads(T10, work.launch, work.reads)
    assert set(found) <= {32, 64}, "128B reads do not exist (footnote 3)"
    return found.get(32, 0), found.get(64, 0)


# Section 3.3

LAUNCHES = [Launch(gx, gy, x, y) for gx in (1, 7, 64, 500) for gy in (1, 16) for x, y in BLOCKS]
NEEDS = [Resources(10, 0), Resources(15, 4224), Resources(32, 512), Resources(60, 16384)]


@pytest.mark.parametrize("needs", NEEDS)
def test_3_1_and_3_7_to_3_11(needs):
    for launch in LAUNCHES:
        gx, gy, x, y = launch
        total = gx * gy * x * y
        per_sm = min(
            16384 // (needs.registers * x * y),
            16384 // needs.shared if needs.shared else 99,
            8,
            1024 // (x * y),
        )
        active = min(30 * per_sm, gx * gy)
        assert metrics.threads(launch) == total
        assert metrics.resident_blocks(T10, needs, launch) == per_sm
        assert metrics.active_blocks(T10, needs, launch) == active
        assert metrics.active_threads(T10, needs, launch) == active * x * y
        assert metrics.occupancy(T10, needs, launch) == per_sm * x * y / 1024
        if active:
            rest = gx * gy % active
            assert metrics.fragmented_blocks(T10, needs, launch) == rest
            assert metrics.fragmented_threads(T10, needs, launch) == rest * x * y
            assert metrics.waves(T10, needs, launch) == math.ceil(gx * gy / active)


def test_a_kernel_that_fits_nowhere_is_named():
    launch = Launch(4, 4, 512, 1)
    assert metrics.active_blocks(T10, Resources(40, 0), launch) == 0
    with pytest.raises(ValueError, match=r"512 threads with 40 registers .* Tesla T10$"):
        metrics.waves(T10, Resources(40, 0), launch)


@pytest.mark.parametrize("needs", NEEDS[:3])
def test_3_12_and_3_13(needs):
    for launch in LAUNCHES:
        active = metrics.active_blocks(T10, needs, launch)
        in_block = launch.x / 64
        beside = active if active < launch.grid_x else launch.grid_x
        assert metrics.partitions_of_block(T10, launch) == in_block
        assert metrics.partitions(T10, needs, launch) == min(beside * in_block, 8)


@pytest.mark.parametrize(
    ("registers", "shared", "size", "percent"),
    [
        (16, 0, 128, 67),  # k-means, find_nearest_cluster
        (16, 0, 256, 100),
        (9, 0, 1024, 67),  # compute_delta
        (9, 0, 512, 100),
        (22, 8192, 1024, 67),  # the product in blocks of 32 x 32
        # It prints 100 % for blocks of 16 x 16, and no registers. 22 cannot be: a warp gets
        # 22 x 32 in units of 64, and 46 warps have the registers for that, in blocks of 8 warps 40.
        (22, 2048, 256, 83),
        (21, 2048, 256, 83),
        (20, 2048, 256, 100),  # 640 registers, which 51 warps have
    ],
)
def test_occupancy_of_a_gtx_480(registers, shared, size, percent):
    """What a report of the course 18-645 (Spring 2014) read off NVIDIA's occupancy calculator."""
    card, needs = CARDS["GTX 480"], Resources(registers, shared)
    assert round(100 * metrics.occupancy(card, needs, Launch(100, 1, size, 1))) == percent


@pytest.mark.parametrize(
    ("name", "registers", "size", "blocks"),
    [
        ("GTX 480", 25, 416, 2),  # 32768 / 832 = 39 warps, of which 13 a block; 2 schedulers: 38
        ("Tesla K40c", 42, 224, 5),  # 65536 / 1536 = 42 warps, 7 a block; 4 schedulers: 40
        ("GTX 680", 42, 256, 5),
    ],
)
def test_each_scheduler_has_an_equal_part_of_the_registers(name, registers, size, blocks):
    launch = Launch(1000, 1, size, 1)
    assert metrics.resident_blocks(CARDS[name], Resources(registers, 0), launch) == blocks


def test_cards_by_name_are_those_of_the_page():
    page = (Path(__file__).parents[2] / "docs" / "procedure.md").read_text("utf-8")
    head, _, *rows = page.partition("## The devices")[2].partition("##")[0].strip().splitlines()
    columns = {name.strip(): at for at, name in enumerate(head.split("|"))}
    shown = {
        cells[1].strip(): cells for cells in (row.split("|") for row in rows) if len(cells) > 1
    }
    for name, card in CARDS.items():
        printed = {
            "multiprocessors": card.multiprocessors,
            "each holds: threads": card.threads,
            "blocks": card.blocks,
            "registers": card.registers,
            "shared memory, KiB": card.shared >> 10,
            "threads of a block": card.block_threads,
            "memory, GB/s": round(card.bandwidth / 1e9),
            "threads with combined accesses": card.group,
        }
        for what, value in printed.items():
            assert shown[what][columns[name]].strip() == str(value), (name, what)


@pytest.mark.parametrize("n", SIZES)
def test_3_2(n):
    for x in WIDTHS:
        expected = Fraction((x + 1) * n**2, x) if x <= 8 else Fraction(17 * n**2, 16)
        assert counted(white.matvec_global(n, x)) == (expected, 0)
    # "a 6.25% reduction": constant memory leaves n^2 (section 4.1.1)
    assert counted(white.matvec_constant(n, 16)) == (n**2, 0)


@pytest.mark.parametrize("n", SIZES)
def test_3_3_and_3_4(n):
    for x, y in BLOCKS:
        narrow = Fraction(n**3, x) + Fraction(n**3, 16)
        expected = (narrow, 0) if x <= 8 else (n**3 / 16, n**3 / 16)
        assert counted(white.matmul_global(n, x, y)) == expected


@pytest.mark.parametrize("fs", FILTERS)
@pytest.mark.parametrize("n", SIZES)
def test_3_5_3_6_and_5_1(n, fs):
    for x, y in BLOCKS:
        every = n**2 * fs**2 / 16
        narrow = every * (1 + 16 / x)
        work = white.convolution_global(n, fs, x, y)
        assert counted(work) == ((narrow, 0) if x <= 8 else (every, every))
        assert counted(work._replace(reads=work.reads[1:])) == (every, 0)  # 5.1: the filter


# Chapter 4


@pytest.mark.parametrize("n", SIZES)
def test_4_2_4_6_4_7_and_4_11(n):
    for x, y in SQUARES:
        for work in (white.matvec_shared(n, x, y), white.matvec_padded(n, x, y)):
            assert counted(work) == ((n**2 / x, 0) if x <= 8 else (0, n**2 / 16))
        assert white.matvec_shared(n, x, y).shared == x**2 * 4
        assert white.matvec_padded(n, x, y).shared == (x**2 + x) * 4
    # 4.6.1: with dBlk.x = 32 the transactions move 4 n^2 bytes
    work = white.matvec_padded(n, 32, 4)
    assert bytes_moved(reads(T10, work.launch, work.reads)) == 4 * n**2


@pytest.mark.parametrize("n", SIZES)
def test_4_3_to_4_5(n):
    for x, y in SQUARES:
        work = white.matmul_shared(n, x, y)
        assert work.shared == (x * y + x**2) * 4
        sides = 1 / x + 1 / y
        expected = (n**3 / x * sides, 0) if x <= 8 else (0, n**3 / 16 * sides)
        assert counted(work) == pytest.approx(expected, **NEAR)
        if x >= 16:  # "reduced by a factor of"
            fewer = sum(counted(white.matmul_global(n, x, y))) / sum(counted(work))
            assert fewer == pytest.approx(2 * x * y / (x + y), **NEAR)


@pytest.mark.parametrize("elements", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("n", SIZES)
def test_4_8_to_4_10(n, elements):
    for x, y in BLOCKS:
        if n % (x * y):
            continue
        work = white.matmul_column(n, x, y, elements)
        assert work.shared == elements * x * 4
        sides = 1 / (x * y) + 1 / elements
        expected = (n**3 / x * sides, 0) if x <= 8 else (0, n**3 / 16 * sides)
        assert counted(work) == pytest.approx(expected, **NEAR)
        if x >= 16:
            fewer = sum(counted(white.matmul_shared(n, x, y))) / sum(counted(work))
            printed = elements * (x + y) / (elements + x * y)
            assert fewer == pytest.approx(printed, **NEAR)


def test_4_24():
    for n in range(512, 16385, 32):
        lower = max(8192 / n, 4)
        y = min(p for p in (4, 8, 16) if p >= lower)  # dBlk.y is a power of two
        assert white.matvec_parameters(n) == Launch(n // 32, 1, 32, y)


def test_4_41():
    for n in range(512, 16385, 128):
        upper = min(16, n / (64 * min(n / 512, 8)))
        y = max(p for p in (1, 2, 4, 8, 16) if p <= upper)  # rounded down (footnote 4)
        assert white.matmul_parameters(n) == (Launch(n // (8 * y), n // 16, 8, y), 16)


def test_what_leads_to_4_41():
    for y in (8, 16, 32):  # 4.32
        launch = Launch(4096, 1024, 8, y)
        assert metrics.active_blocks(T10, Resources(32, 512), launch) == 1920 // y
    for n in SIZES:  # 4.34, 4.39
        for y in (8, 16):
            launch = white.matmul_column(n, 8, y, 16).launch
            if launch.grid_x <= 1920 // y:
                assert metrics.partitions(T10, Resources(32, 512), launch) == min(n / (64 * y), 8)
            left = Fraction(n**2, 128 * y) - n**2 // 245760 * Fraction(1920, y)
            assert metrics.fragmented_blocks(T10, Resources(32, 512), launch) == left


# Chapter 5


@pytest.mark.parametrize("fs", FILTERS)
@pytest.mark.parametrize("n", SIZES)
def test_5_2_to_5_6(n, fs):
    for x, y in BLOCKS:
        work = white.convolution_column(n, fs, x, y)
        assert work.shared == (2 * y * x + y) * 4
        steps = math.ceil(fs / y)
        image, taps = (counted(work._replace(reads=(one,))) for one in work.reads)
        if x <= 8:
            assert image == pytest.approx((2 * n**2 * fs / x * steps, 0), **NEAR)
            assert taps == pytest.approx((16 * n**2 * fs / x**2 * steps, 0), **NEAR)
        else:
            assert image == pytest.approx((0, 2 * n**2 * fs / 16 * steps), **NEAR)
            assert taps == pytest.approx((n**2 * fs / x * steps, 0), **NEAR)


@pytest.mark.parametrize("fs", FILTERS)
@pytest.mark.parametrize("n", SIZES)
def test_5_7_to_5_11(n, fs):
    for x, y in BLOCKS:
        work = white.convolution_row(n, fs, x, y)
        assert work.shared == (2 * x * y + x) * 4
        steps = math.ceil(fs / x)
        image, taps = (counted(work._replace(reads=(one,))) for one in work.reads)
        if x <= 8:
            assert image == pytest.approx((2 * n**2 * fs / x * steps, 0), **NEAR)
            assert taps == pytest.approx((n**2 * fs / (x * y) * steps, 0), **NEAR)
        else:
            assert image == pytest.approx((0, 2 * n**2 * fs / 16 * steps), **NEAR)
            assert taps == pytest.approx((0, n**2 * fs / (16 * y) * steps), **NEAR)


def test_rows_of_the_filter_take_a_sixteenth_of_the_accesses_and_an_eighth_of_the_bytes():
    """Section 5.1.2, with dBlk.x = dBlk.y = 16."""
    patterns = white.convolution_column, white.convolution_row
    column, row = (
        reads(T10, work.launch, work.reads[1:])
        for work in (make(1024, 63, 16, 16) for make in patterns)
    )
    assert sum(column.values()) == 16 * sum(row.values())
    assert bytes_moved(column) == 8 * bytes_moved(row)


def test_5_19():
    for fs in (*FILTERS, 9, 17, 64, 65, 129, 300, 1001):
        x = min(max(16, 2 ** math.ceil(math.log2(fs))), 512)
        y = max(64 // x, 1)
        for n in (*SIZES, *range(1536, 16384, 2560)):
            assert white.convolution_parameters(n, fs) == Launch(n // x, n // y, x, y)


PARAMETERS = {
    "matvec": white.matvec_parameters,
    "matmul": white.matmul_parameters,
    "convolve2d": lambda n, card: white.convolution_parameters(n, 3, card),
}


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("field", ["blocks", "threads", "registers", "shared", "block_threads"])
def test_a_card_that_holds_no_block_is_told_what_it_lacks(name, field):
    card = T10._replace(**{field: 0})
    with pytest.raises(ValueError, match=r"no block of the kernel fits on Tesla T10: .*\b0 "):
        PARAMETERS[name](1024, card)


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_size_below_1_is_refused(name):
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        PARAMETERS[name](0, T10)
    with pytest.raises(ValueError, match="taps must be at least 1, got -1"):
        white.convolution_parameters(8, -1)
