"""What `hetero bench`, `verify` and `demo` ask of the matrix product."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hetero.ops.matmul import OPERATION
from hetero.ops.products.benchmarks import (
    DEMONSTRATED,
    LONG,
    OPTIONS,
    SQUARE,
    Shapes,
    product_benchmarks,
    product_columns,
    random_trial,
    remembered,
    trial,
)
from hetero.runtime.benchmark import Benchmark, BenchTable, Trial

__all__ = ["OPTIONS", "VERIFIED", "benchmarks", "columns", "draw", "remembered", "trials"]

VERIFIED = True
SHAPES: Sequence[tuple[int, ...]] = [
    *((n, n, n) for n in (256, *SQUARE)),
    *((8192, 64, 8192), (64, 8192, 8192), (8192, 8192, 64), (64, 64, 65536)),
    *((1000, 1000, 1000), (3001, 3001, 3001), (32, 4096, 4096), (4096, 32, 4096)),
]


def _operands(dims: tuple[int, ...]) -> Shapes:
    m, n, k = dims
    return (m, k), (k, n)


def draw(random: random.Random, on: str, largest: int) -> Trial:
    """A random product, no extent above half of ``largest``, since the work grows with the cube."""
    return random_trial(random, on, largest // 2, lambda k, size: (k, size()))


def benchmarks(dtype: str, device: str, order: str) -> Iterator[Benchmark]:
    """Square and long matrices, A by rows or by columns."""
    return product_benchmarks(OPERATION, SHAPES, _operands, dtype, device, order)


def columns(rows: Sequence[Mapping[str, Any]]) -> BenchTable | None:
    """Own kernels beside the libraries'; arithmetic is what limits them."""
    return product_columns(rows, "m x n x k", "TFLOP/s", 1e-12, "peak")


def trials(largest: int) -> Iterator[tuple[str, Trial]]:
    """Squares, then products of long matrices."""
    squares = [(n, n, n) for n in DEMONSTRATED if n <= largest]
    for dims in (*squares, *((m, m, k) for m, k in LONG[1:])):
        yield trial(OPERATION, _operands(dims))
