"""Golden plans: the predicted seconds of every method of some 10,000 problems.

`problems` draws them, `plans.json.gz` keeps the seconds that version 0.1's planner gave each method
on the shipped profiles. `test_golden_plans.py` judges today's choices by those seconds.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

import hetero

FILE = Path(__file__).with_name("plans.json.gz")
PROFILES = ("tesla-t10", "h100", "h200", "h100x2", "h200x2")
PLACES = ("host", "cuda:0")
DTYPES = ("float32", "float64")


def powers(first: int, last: int, step: int = 1) -> list[int]:
    """Powers of two."""
    return [2**i for i in range(first, last + 1, step)]


def gaussian(taps: int, dtype: str) -> np.ndarray:
    """A filter of rank 1."""
    line = np.exp(-(np.linspace(-2, 2, taps) ** 2))
    return np.outer(line, line).astype(dtype)


def five_point(n: int, dtype: str) -> scipy.sparse.csr_array:
    """The matrix of an n x n grid, as CSR."""
    ones = np.ones(n * n)
    offsets = [-n, -1, 0, 1, n]
    diagonals = [-ones, -ones, 4.0 * ones, -ones, -ones]
    return scipy.sparse.diags_array(diagonals, offsets=offsets, shape=(n * n, n * n)).tocsr(
    ).astype(dtype)  # fmt: skip


def problems() -> Iterator[tuple[str, str, tuple[Any, ...], dict[str, Any]]]:
    """(key, operation, operands, options) of each problem, apart from the profile."""
    spec = hetero.spec
    for dtype in DTYPES:
        for on in PLACES:

            def given(*shape: int, order: str = "C", dtype: str = dtype, on: str = on) -> Any:
                return spec(shape, dtype, on=on, order=order)

            at = f"{dtype} {on}"
            squares = [(n, n, n) for n in (100, 300, 500, 700, 1000, 1500, 3000, 5000, 10000)]
            for m in powers(4, 14, 2):
                squares += [(m, n, k) for n in powers(4, 14, 2) for k in powers(4, 14, 2)]
            for m, n, k in squares:
                yield f"matmul {m} {n} {k} {at}", "matmul", (given(m, k), given(k, n)), {}
            for n in (300, 1000, 3000):
                for orders in ("CF", "FC", "FF"):
                    a, b = (given(n, n, order=order) for order in orders)
                    yield f"matmul {orders} {n} {at}", "matmul", (a, b), {}
            for batch, n in ((8, 64), (8, 512), (64, 128)):
                yield f"matmul {batch} x {n} {at}", "matmul", (given(batch, n, n),) * 2, {}
            for m in powers(4, 14, 2):
                for k in powers(4, 14):
                    yield f"matvec {m} {k} {at}", "matvec", (given(m, k), given(k)), {}
            for n in (1000, 8000):
                yield f"matvec F {n} {at}", "matvec", (given(n, n, order="F"), given(n)), {}
            taps = (1, 2, 3, 5, 7, 9, 15, 21, 31, 63, 101, 201)
            for h in powers(5, 13):
                for f in (f for f in taps if f <= h):
                    image = given(h, h)
                    yield f"convolve2d {h} {f} {at}", "convolve2d", (image, given(f, f)), {}
                    rank = (image, gaussian(f, dtype))
                    yield f"convolve2d rank-1 {h} {f} {at}", "convolve2d", rank, {"mode": "same"}
            for h in (64, 512, 2048):
                for f in (3, 9, 31):
                    stack = given(8, h, h), given(f, f)
                    yield f"convolve2d 8 x {h} {f} {at}", "convolve2d", stack, {"mode": "valid"}
                    pair = "complex64" if dtype == "float32" else "complex128"
                    image, filter = given(h, h, dtype=pair), given(f, f, dtype=pair)
                    yield f"convolve2d complex {h} {f} {at}", "convolve2d", (image, filter), {}
                    wrapped = {"mode": "same", "boundary": "wrap"}
                    image = given(h, h), given(f, f)
                    yield f"convolve2d wrap {h} {f} {at}", "convolve2d", image, wrapped
            sides = (7, 15, 31, 63, 100, 127, 255, 300, 511, 700, 1023, 1024, 2047, 3000, 4095)
            grids = [(n, n) for n in sides]
            grids += [(n, n, n) for n in (7, 15, 31, 63, 100, 127, 255)]
            for grid in grids:
                rtol = {"rtol": 1e-3 if sum(grid) % 2 else 1e-6}
                yield f"poisson {grid} {at}", "poisson", (given(*grid),), rtol
            for n in (500, 5000, 50000, 1000000):
                for d in (2, 8, 32, 128):
                    for k in (k for k in (3, 16, 64, 256, 1024) if k < n):
                        more = {"max_iter": 10} if d in (2, 32) else {}
                        yield f"kmeans {n} {d} {k} {at}", "kmeans", (given(n, d), k), more
            for steps in (None, 10, 300):
                more = {} if steps is None else {"maxiter": steps}
                for n in (100, 300, 1000, 2000, 4000, 8000, 16000):
                    yield f"cg dense {n} {steps} {at}", "cg", (given(n, n), given(n)), more
                for grid in [(n, n) for n in (31, 63, 127, 255, 511, 1023, 2047, 4095)] + [
                    (n, n, n) for n in (15, 31, 63, 127, 255)
                ]:
                    A, b = hetero.Poisson(grid, dtype=dtype), given(int(np.prod(grid)))
                    yield f"cg grid {grid} {steps} {at}", "cg", (A, b), more
                    if steps is None and min(grid) > 30:
                        key = f"cg multigrid {grid} {at}"
                        yield key, "cg", (A, b), {"M": "multigrid"}
    for dtype in DTYPES:
        for n in (30, 100, 300, 1000):
            A = five_point(n, dtype)
            for on in PLACES:
                b = spec(n * n, dtype, on=on)
                for steps in (None, 10, 300):
                    more = {} if steps is None else {"maxiter": steps}
                    yield f"cg csr {n} {steps} {dtype} {on}", "cg", (A, b), more


def priced(plan: Any) -> dict[str, float]:
    """ "method on device" -> predicted seconds; the least where two candidates are named so."""
    found: dict[str, float] = {}
    for c in plan.candidates:
        if c.reason is None and c.seconds is not None:
            name = f"{c.method} on {c.device}"
            found[name] = min(c.seconds, found.get(name, c.seconds))
    return found


def whole(plan: Any) -> Any:
    """The plan itself, or the first of the parts that it is done in."""
    return whole(plan.parts[0]) if plan.parts else plan


def main() -> None:
    """Write the file anew, by the planner of the hetero that is installed."""
    kept: dict[str, dict[str, list[Any]]] = {}
    for profile in PROFILES:
        kept[profile] = {}
        for key, operation, operands, options in problems():
            try:
                plan = whole(hetero.plan(operation, *operands, profile=profile, **options))
            except (TypeError, ValueError, hetero.errors.HeteroError) as error:
                print(profile, key, repr(error)[:120], file=sys.stderr)
                continue
            seconds = {name: float(f"{value:.5g}") for name, value in priced(plan).items()}
            if seconds:
                chosen = f"{plan.chosen.method} on {plan.chosen.device}"
                kept[profile][key] = [chosen, seconds]
        print(profile, len(kept[profile]), file=sys.stderr)
    text = json.dumps(kept, separators=(",", ":")).encode()
    FILE.write_bytes(gzip.compress(text, mtime=0))


if __name__ == "__main__":
    main()
