"""What `hetero bench`, `verify` and `demo` ask of the matrix-vector product."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import partial

from hetero.ops.benchmark import Axis, Benchmark, Line, Plane, Trial
from hetero.ops.matvec import OPERATION
from hetero.ops.products import benchmarks as products

VERIFIED = True
OPTIONS, remembered = products.OPTIONS, products.remembered
SHAPES: Sequence[tuple[int, ...]] = [
    *((n, n) for n in products.SQUARE),
    *((1000, 1000), (3001, 3001), (6007, 6007), (12011, 12011)),
    *((64, 1_000_000), (1_000_000, 64), (16, 262144), (262144, 16)),
]

LINES = (Line("A of n x n", Axis("n", 16, 16384), lambda n: (n, n)),)
PLANES = (Plane("A of m x k", Axis("k", 16, 32768), Axis("m", 16, 32768), lambda k, m: (m, k)),)

columns = partial(products.columns, dims="m x k", by_bytes=True)  # beside the libraries


def _operands(dims: tuple[int, ...]) -> products.Shapes:
    return dims, dims[1:]


def draw(random: random.Random, on: str, largest: int) -> Trial:
    """A random product, no extent above ``largest``."""
    return products.random_trial(random, on, largest, lambda k, size: (k,))


def benchmarks(dtype: str, device: str, order: str) -> Iterator[Benchmark]:
    """Square and long matrices, by rows or by columns."""
    return products.benchmarks(OPERATION, SHAPES, _operands, dtype, device, order)


def demonstrated(largest: int) -> Iterator[Benchmark]:
    """A small square, for what a call costs, and a large one."""
    return products.demonstrated(OPERATION, [(64, 64), (largest, largest)], _operands)
