"""What `hetero bench`, `verify` and `demo` ask of the matrix-vector product."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hetero.ops.benchmark import Benchmark, BenchTable, Trial
from hetero.ops.matvec import OPERATION
from hetero.ops.over_sizes import Axis, Line, Plane
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

__all__ = [
    "LINES",
    "OPTIONS",
    "PLANES",
    "VERIFIED",
    "benchmarks",
    "columns",
    "draw",
    "remembered",
    "trials",
]

VERIFIED = True
CLIMBED = {"cuda": (1024, 4096, 16384), "opencl": (64, 256, 1024)}
SHAPES: Sequence[tuple[int, ...]] = [
    *((n, n) for n in SQUARE),
    *((1000, 1000), (3001, 3001), (6007, 6007), (12011, 12011)),
    *((64, 1_000_000), (1_000_000, 64), (16, 262144), (262144, 16)),
]

LINES = (Line("A of n x n", Axis("n", 16, 16384), lambda n: (n, n)),)
PLANES = (Plane("A of m x k", Axis("k", 16, 32768), Axis("m", 16, 32768), lambda k, m: (m, k)),)


def _operands(dims: tuple[int, ...]) -> Shapes:
    return dims, dims[1:]


def draw(random: random.Random, on: str, largest: int) -> Trial:
    """A random product, no extent above ``largest``."""
    return random_trial(random, on, largest, lambda k, size: (k,))


def benchmarks(dtype: str, device: str, order: str) -> Iterator[Benchmark]:
    """Square and long matrices, by rows or by columns."""
    return product_benchmarks(OPERATION, SHAPES, _operands, dtype, device, order)


def columns(rows: Sequence[Mapping[str, Any]]) -> BenchTable | None:
    """Own kernels compared with the libraries'; reading the matrix limits them."""
    return product_columns(rows, "m x k", "GB/s", 1e-9, "copy bandwidth")


def trials(largest: int) -> Iterator[tuple[str, Trial]]:
    """Squares, then long matrices."""
    squares = [(n, n) for n in DEMONSTRATED if n <= largest]
    for dims in (*squares, *LONG):
        yield trial(OPERATION, _operands(dims))
