"""What `hetero bench`, `verify` and `demo` ask of the matrix product."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.arrays import spec
from hetero.devices.kinds import traits
from hetero.ops.benchmark import (
    Benchmark,
    BenchTable,
    Comparison,
    Trial,
    by_candidates,
    cuda_device,
    from_host_by_cupy,
)
from hetero.ops.matmul import OPERATION
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
    "moved",
    "pictured",
    "remembered",
    "trials",
]

VERIFIED = True
SHAPES: Sequence[tuple[int, ...]] = [
    *((n, n, n) for n in (256, *SQUARE)),
    *((8192, 64, 8192), (64, 8192, 8192), (8192, 8192, 64), (64, 64, 65536)),
    *((1000, 1000, 1000), (3001, 3001, 3001), (32, 4096, 4096), (4096, 32, 4096)),
]


MOVED, MOVED_BESIDE_CPU = (4096, 8192, 16384), (256, 1024)
_LONGEST = 1.0  # predicted seconds

LINES = (Line("n x n by n x n", Axis("n", 16, 8192), lambda n: (n, n, n)),)
PLANES = (
    Plane(
        "m x 1024 by 1024 x n",
        Axis("n", 16, 16384),
        Axis("m", 16, 16384),
        lambda n, m: (m, n, 1024),
    ),
    Plane("n x k by k x n", Axis("n", 16, 8192), Axis("k", 16, 8192), lambda n, k: (n, n, k)),
)


def _operands(dims: tuple[int, ...]) -> Shapes:
    m, n, k = dims
    return (m, k), (k, n)


def draw(random: random.Random, on: str, largest: int) -> Trial:
    """A random product, no extent above half of ``largest``, since the work grows with the cube."""
    return random_trial(random, on, largest // 2, lambda k, size: (k, size()))


def benchmarks(dtype: str, device: str, order: str) -> Iterator[Benchmark]:
    """Square and long matrices, A by rows or by columns."""
    return product_benchmarks(OPERATION, SHAPES, _operands, dtype, device, order)


def pictured(kind: str) -> Trial:
    """A product of squares, small ones where a CPU is the device."""
    n = 8192 if traits(kind).own_clock else 1024
    return Trial((spec((n, n), "float32"), spec((n, n), "float32")))


def moved(dtype: str) -> Iterator[Benchmark]:
    """Squares from the host to the host."""
    for n in MOVED if cuda_device() else MOVED_BESIDE_CPU:
        case = f"{n}x{n}x{n}, host to host, {dtype}"
        yield Benchmark(case, partial(_moved, n, dtype), budget=0.6, most=5)


def _moved(n: int, dtype: str) -> Comparison:
    rng = np.random.default_rng(0)
    operands = rng.random((n, n), np.float32).astype(dtype), rng.random((n, n)).astype(dtype)
    peers = from_host_by_cupy(lambda cupy, A, B: cupy.matmul(A, B), *operands)
    comparison = by_candidates(OPERATION, operands, {}, longest=_LONGEST)
    return comparison._replace(peers=peers)


def columns(rows: Sequence[Mapping[str, Any]]) -> BenchTable | None:
    """Own kernels compared with the libraries'; arithmetic limits them."""
    return product_columns(rows, "m x n x k", "TFLOP/s", 1e-12, "peak")


def trials(largest: int) -> Iterator[tuple[str, Trial]]:
    """Squares, then products of long matrices."""
    squares = [(n, n, n) for n in DEMONSTRATED if n <= largest]
    for dims in (*squares, *((m, m, k) for m, k in LONG[1:])):
        yield trial(OPERATION, _operands(dims))
