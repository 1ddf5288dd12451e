"""White's execution metrics and launch parameters: his printed equations and numbers (2013)."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import pytest
from test_ladder_kernels import HOPPER

from hetero.kernels.ladder import LADDERS
from hetero.kernels.procedure import CARDS, Metrics, of_limits

T10 = CARDS["Tesla T10"]
WIDTHS = (8, 16, 32, 64, 128, 256, 512)
BLOCKS = [(x, y) for x in WIDTHS for y in (1, 2, 4, 8, 16, 32, 64) if 16 <= x * y <= 512]
GRIDS = [(x, y) for x in (1, 7, 64, 500) for y in (1, 16)]


@pytest.mark.parametrize(("registers", "shared"), [(10, 0), (15, 4224), (32, 512), (60, 16384)])
def test_3_7_to_3_13(registers, shared):
    for (gx, gy), (x, y) in itertools.product(GRIDS, BLOCKS):
        of_shared = 16384 // shared if shared else 99
        per_sm = min(16384 // (registers * x * y), of_shared, 8, 1024 // (x * y))
        active = min(30 * per_sm, gx * gy)
        found = Metrics(T10, registers, shared, (gx, gy), (x, y))
        assert found.resident_blocks == per_sm
        assert found.active_blocks == active
        assert found.active_threads == active * x * y
        assert found.occupancy == per_sm * x * y / 1024
        assert found.partitions() == min(min(active, gx) * x / 64, 8)
        if active:
            assert found.fragmented_blocks == gx * gy % active


def test_4_24():
    for n in range(512, 16385, 32):
        lower = max(8192 / n, 4)
        y = min(p for p in (4, 8, 16) if p >= lower)  # dBlk.y is a power of two
        assert LADDERS["matvec"].chosen("tuned", "float32", T10, (n, n)) == (32, y, 1)


def test_4_41():
    for n in range(512, 16385, 512):
        upper = min(16, n / (64 * min(n / 512, 8)))
        y = max(p for p in (1, 2, 4, 8, 16) if p <= upper)  # rounded down (footnote 4)
        assert LADDERS["matmul"].chosen("tuned", "float32", T10, (n, n, n)) == (8, y, 16)


def test_5_19():
    for fs in (3, 63, 513, 9, 17, 64, 65, 129, 300, 1001):
        x = min(max(16, 2 ** math.ceil(math.log2(fs))), 512)
        for n in (512, 1024, 2048, 4096, 8192, 16384, *range(1536, 16384, 2560)):
            found = LADDERS["convolution"].chosen("tuned", "float32", T10, (n, n, fs, fs))
            assert found == (x, max(64 // x, 1), 1)


def test_cards_of_devices():
    assert HOPPER[1:8] == (132, 32, 2048, 65536, 233472, 1024, 49152)
    assert (HOPPER.saturating, HOPPER.sector, HOPPER.at_once) == (132 * 512, 32, 132)
    device = SimpleNamespace(name="a CPU", multiprocessors=4, block_limit=8192, shared_limit=32768)
    card = of_limits(device)
    assert (card.warp, card.blocks, card.at_once) == (8, 1, 1)
    assert LADDERS["matmul"].chosen("shared", "float64", card, ()) == (32, 32, 1)
