"""What `hetero bench`, `verify` and `demo` ask of the matrix product."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import partial

from hetero.ops.benchmark import (
    Axis,
    Benchmark,
    Line,
    Named,
    Plane,
    Trial,
    cuda_device,
    moved_call,
)
from hetero.ops.matmul import OPERATION
from hetero.ops.products import benchmarks as products

VERIFIED = True
OPTIONS, remembered = products.OPTIONS, products.remembered
SHAPES: Sequence[tuple[int, ...]] = [
    *((n, n, n) for n in (256, *products.SQUARE)),
    *((8192, 64, 8192), (64, 8192, 8192), (8192, 8192, 64), (64, 64, 65536)),
    *((1000, 1000, 1000), (3001, 3001, 3001), (32, 4096, 4096), (4096, 32, 4096)),
]
# Of the reports of docs/seeds.md; "dtu": sizes that its text names.
CASES = {
    "blog": Named("float32", ((2000, 600, 2000),)),
    "cmu": Named("float32", tuple((n, n, n) for n in (5, 8, 10, 32, 33, 1000))),
    "dtu": Named("float64", tuple((n, n, n) for n in (100, 250, 1024, 2000, 4096))),
    "strasbourg": Named("float64", ((4096, 4096, 4096),)),
}
MOVED, MOVED_BESIDE_CPU = (4096, 8192, 16384), (256, 1024)
_LONGEST = 1.0  # predicted seconds

LINES = (Line("n x n by n x n", Axis("n", 16, 8192), lambda n: (n, n, n)),)
_WIDE = Axis("n", 16, 16384), Axis("m", 16, 16384)
_DEEP = Axis("n", 16, 8192), Axis("k", 16, 8192)
PLANES = (
    Plane("m x 1024 by 1024 x n", *_WIDE, lambda n, m: (m, n, 1024)),
    Plane("n x k by k x n", *_DEEP, lambda n, k: (n, n, k)),
)

columns = partial(products.columns, dims="m x n x k", by_bytes=False)  # beside the libraries


def _operands(dims: tuple[int, ...]) -> products.Shapes:
    m, n, k = dims
    return (m, k), (k, n)


def draw(random: random.Random, on: str, largest: int) -> Trial:
    """A random product, no extent above half of ``largest``, since the work grows with the cube."""
    return products.random_trial(random, on, largest // 2, lambda k, size: (k, size()))


def benchmarks(
    dtype: str, device: str, order: str, sizes: Sequence[tuple[int, ...]] | None = None
) -> Iterator[Benchmark]:
    """Square and long matrices, A by rows or by columns."""
    return products.benchmarks(OPERATION, SHAPES, _operands, dtype, device, order, sizes)


def moved(dtype: str) -> Iterator[Benchmark]:
    """Squares from the host to the host."""
    for n in MOVED if cuda_device() else MOVED_BESIDE_CPU:
        given = OPERATION, _operands((n, n, n)), dtype
        make = partial(products.from_host, *given, numpy=False, longest=_LONGEST)
        yield moved_call(f"{n}x{n}x{n}, host to host, {dtype}", make)


def demonstrated(largest: int) -> Iterator[Benchmark]:
    """Squares."""
    return products.demonstrated(OPERATION, [(largest, largest, largest)], _operands)
