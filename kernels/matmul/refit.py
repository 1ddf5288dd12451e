"""A card's figures for matrix products: what is timed, and whether a `fit` to it is taken."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..common.launch import ELEMENT_BYTES, LaunchPlan
from ..common.refit import Clock, Limits
from ..common.tuning import Table, parse
from . import tiles
from .fit import Sample, fit
from .plan import plan_matmul
from .tiles import Product

__all__ = ["Sample", "candidates", "cases", "fit", "refit"]

_SQUARES = (
    64, 96, 128, 192, 256, 320, 384, 512, 640, 768, 1000, 1024, 1536, 2048, 3000, 4096, 8192
)  # fmt: skip
_SHAPES = (
    (8192, 64, 8192), (64, 8192, 8192), (8192, 8192, 64), (64, 64, 65536), (32, 4096, 4096),
    (4096, 32, 4096), (16, 8192, 8192), (128, 4096, 4096), (4096, 128, 4096), (256, 256, 16384),
    (512, 512, 8192), (100, 100, 100_000), (1024, 1024, 128), (2048, 2048, 256), (4096, 4096, 32),
    (256, 8192, 1024), (8192, 128, 512), (2048, 512, 2048), (700, 5000, 300), (1000, 300, 4000),
    (64, 2048, 2048), (2048, 64, 2048), (192, 3072, 1024), (3072, 3072, 128),
)  # fmt: skip
_LAYOUTS = ((True, False), (False, False))  # A by rows, and by columns; B by rows
_WORTH_TIMING = 1.6  # times the best predicted time: tiles far behind it need no exact figures
_LONG = 1e12  # flops, from which on only those near the best are timed
_WORTH_LONG = 1.25
_RATE_K = 2048  # of the products that show the rates of full multiprocessors
_SHORT_K = 64  # and of those that show a wave's fixed cost
_LATE = 1.1  # times the prediction: a longer time is measured again
_TIMED_AGAIN = 2
_WORTHWHILE = 0.01  # of the time that the tiles chosen take; for less no figure is changed
_WRONG = 0.1  # of the times that a table predicts, from which on it is not this card's


def refit(table: Table, limits: Limits, clock: Clock) -> dict[str, Any]:
    """The values of this family's figures on a device, from the nearest table's.

    What takes longer than the figures can explain is timed again: whatever disturbs a device adds
    to its times. A dtype's figures stay if no better tiles are chosen by those that were fitted,
    and the times predicted were about right.
    """
    best = table
    for dtype in ELEMENT_BYTES:
        samples = list(cases(dtype, limits, table))
        seconds = [clock(*launches(sample)) for sample in samples]
        for _ in range(_TIMED_AGAIN):
            fitted = _fitted(best, dtype, limits, samples, seconds)
            for i, sample in enumerate(samples):
                if seconds[i] > _LATE * tiles.seconds(*sample, fitted)[1]:
                    seconds[i] = min(seconds[i], clock(*launches(sample)))
        fitted = _fitted(best, dtype, limits, samples, seconds)
        if _is_better(fitted, best, samples, seconds):
            best = fitted
    return {name: best[name] for name in table.data["figures"] if name.startswith("matmul.")}


def candidates(table: Table, limits: Limits) -> Iterator[LaunchPlan]:
    """All launches that may be timed."""
    for dtype in ELEMENT_BYTES:
        for sample in cases(dtype, limits, table):
            yield launches(sample)[0]


def _fitted(
    table: Table, dtype: str, limits: Limits, samples: Sequence[Sample], seconds: Sequence[float]
) -> Table:
    """The table with the figures of `fit`."""
    values = fit(table, dtype, limits, samples, seconds)
    return parse(
        table.replaced({name: {**table[name], dtype: v} for name, v in values.items()}), table.name
    )


def _is_better(
    fitted: Table, table: Table, samples: Sequence[Sample], seconds: Sequence[float]
) -> bool:
    """Whether the fitted table chooses better tiles, or the other one's predictions are far off."""
    timed: dict[Product, list[tuple[Sample, float]]] = {}
    for sample, each in zip(samples, seconds, strict=True):
        timed.setdefault(sample.product, []).append((sample, each))

    def chosen(by: Table, tried: list[tuple[Sample, float]]) -> float:
        return min(tried, key=lambda one: tiles.seconds(*one[0], by)[1])[1]

    gains = np.array([np.log(chosen(table, t) / chosen(fitted, t)) for t in timed.values()])
    wrong = [
        abs(np.log(tiles.seconds(*sample, table)[1] / each))
        for sample, each in zip(samples, seconds, strict=True)
    ]
    error = gains.std() / np.sqrt(len(gains))
    return bool(gains.mean() > max(_WORTHWHILE, 3.0 * error) or np.median(wrong) > _WRONG)


def cases(dtype: str, limits: Limits, table: Table) -> Iterator[Sample]:
    """What is timed: the best tiles of many shapes, and each tile on whole waves of blocks."""
    shapes = (*((n, n, n) for n in _SQUARES), *_SHAPES)
    for (m, n, k), layout in itertools.product(shapes, _LAYOUTS):
        product = Product(m, n, k, 1, dtype, layout, *limits)
        tried = {
            (tile, split_k): seconds
            for tile, wanted in tiles.candidates(product)
            for split_k, seconds in [tiles.seconds(product, tile, wanted, table)]
        }
        worth = _WORTH_LONG if 2.0 * m * n * k > _LONG else _WORTH_TIMING
        least = min(tried.values())
        for (tile, split_k), seconds in tried.items():
            if seconds <= worth * least:
                yield Sample(product, tile, split_k)
    for tile in tiles.tiles(dtype, limits.capability):
        blank = Product(1, 1, 1, 1, dtype, (True, False), *limits)
        if not tiles.fits(blank, tile):
            continue
        for blocks in range(1, tiles.resident(blank, tile) + 1):
            for k in (_RATE_K, _SHORT_K):
                down, across = _factors(blocks * limits.multiprocessors)
                shape = {"m": down * tile.m, "n": across * tile.n, "k": k}
                yield Sample(blank._replace(**shape), tile, 1)


def _factors(number: int) -> tuple[int, int]:
    """Two factors of a number, as near each other as can be."""
    low = next(d for d in range(int(number**0.5), 0, -1) if number % d == 0)
    return low, number // low


def launches(sample: Sample) -> tuple[LaunchPlan, dict[str, int]]:
    """The launches of a sample, and the bytes of their operands."""
    p = sample.product
    launch_plan = plan_matmul(
        m=p.m, n=p.n, k=p.k, batch=1, dtype=p.dtype,
        a_strides=(0, p.k, 1) if p.layout[0] else (0, 1, p.m), b_strides=(0, p.n, 1),
        c_strides=(0, p.n, 1), alignment=16,
        multiprocessors=p.multiprocessors, block_limit=p.block_limit,
        shared_limit=p.shared_limit, capability=p.capability,
        candidate=(sample.tile, sample.split_k),
    )  # fmt: skip
    element = ELEMENT_BYTES[p.dtype]
    extents = {"A": p.m * p.k, "B": p.k * p.n, "C": p.m * p.n}
    return launch_plan, {name: size * element for name, size in extents.items()}
