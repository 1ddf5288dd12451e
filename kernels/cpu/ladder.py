"""The CPU's ladders: loops from the textbook's order to threads, one idea in each.

A loop is compiled when it is first called. Arrays are C-contiguous and of one dtype, float32 or
float64. Inner loops run over slices: with indices into the whole array Numba leaves them scalar,
because an index could be negative and count from the end.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from hetero.host.threads import ALONE, compiled, helper, no_overlap, part

from .poisson import jacobi_rows

DEPTH, WIDTH = 64, 512  # of a tile of B: 256 KiB in float64, a part of a core's own cache


class Loop(NamedTuple):
    """A step of a CPU's ladder; see `hetero.kernels.ladder.Rung`."""

    number: int
    name: str
    idea: str
    adds: str
    seed: str
    run: Callable[..., None]
    threads: bool = False  # whether several threads run it: a team, its first argument
    instead_of: str = ""
    repeats: int = 1


# -- C = A B: A of m x k, B of k x n; C holds zeros. 2 m n k flops. --------------------------------


@compiled
def matmul_sequential(A, B, C):
    """i-j-k: a row of A times a column of B; each element of B comes from another line."""
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            total = C[i, j]
            for p in range(A.shape[1]):
                total += A[i, p] * B[p, j]
            C[i, j] = total


@helper
def _add_rows(a, B, c, first):
    """c += a B for a row of C from column ``first`` on: three memory accesses for each product."""
    for p in range(a.size):
        one, line = a[p], B[p, first : first + c.size]
        for j in range(c.size):
            c[j] += one * line[j]


@compiled
def matmul_reordered(A, B, C):
    """i-k-j: a row of C is the sum of rows of B."""
    for i in range(A.shape[0]):
        _add_rows(A[i], B, C[i], 0)


@part
def _tiles(start, stop, A, B, C):
    """Tiles of B, each for all of these rows of A while it is in the cache."""
    no_overlap()
    for q in range(0, B.shape[0], DEPTH):
        for j in range(0, B.shape[1], WIDTH):
            for i in range(start, stop):
                _add_rows(A[i, q : q + DEPTH], B[q : q + DEPTH], C[i, j : j + WIDTH], j)


@compiled
def matmul_tiles(team, A, B, C):
    """A range of the rows of A and of C for each thread."""
    _tiles(team, A.shape[0], (A, B, C))


# -- out[i, j] = sum of taps[u, v] image[i + u - top, j + v - left]; out holds zeros. --------------


@compiled
def convolution_sequential(image, taps, out):
    """One result after another, the sum over its taps that meet the image: 2 flops for each."""
    (rows, columns), (high, wide) = image.shape, taps.shape
    for i in range(rows):
        for j in range(columns):
            top, left, total = i - high // 2, j - wide // 2, out[i, j]
            for u in range(max(0, -top), min(high, rows - top)):
                for v in range(max(0, -left), min(wide, columns - left)):
                    total += taps[u, v] * image[top + u, left + v]
            out[i, j] = total


@compiled
def jacobi_sweep(team, u, f, u_new):
    """A Jacobi sweep, 6 flops a point, by hetero's own loop: some rows for each thread."""
    (rows, columns), number = u.shape, u.dtype.type
    factors = number(0.25), number(0.0), number(0.25), number(0.25 / (rows + 1) ** 2)
    box = rows, 1, columns
    given = u.reshape(box), f.reshape(box), u_new.reshape(box)
    jacobi_rows(team, rows, given + factors)


# Family -> its loops, in their order.
# fmt: off
LADDERS = {
    "matmul": (
        Loop(1, "sequential", "i-j-k, a row of A times a column of B", "nothing: the definition",
             "the book, first program", matmul_sequential),
        Loop(2, "reordered", "i-k-j, a row of C is a sum of rows of B", "lines of B, and vectors",
             "Jensen, project 1 (mkn)", matmul_reordered),
        Loop(3, "blocked", "tiles of B, each for all rows of A", "B comes from the core's cache",
             "Jensen, project 1 (blocking)", partial(matmul_tiles, ALONE)),
        Loop(4, "parallel", "a range of rows for each thread", "as many times as cores",
             "the book, OpenMP", matmul_tiles, threads=True),
    ),
    "convolution": (
        Loop(1, "sequential", "one result after another", "nothing: the definition",
             "White, figures 3.12 to 3.14", convolution_sequential),
    ),
    "jacobi": (
        Loop(1, "sequential", "one point after another", "the method is right",
             "Jensen, figure 7", partial(jacobi_sweep, ALONE)),
        Loop(2, "parallel", "a range of rows for each thread", "up to the memory's bandwidth",
             "Jensen, figure 7 (OpenMP)", jacobi_sweep, threads=True),
    ),
}
# fmt: on
