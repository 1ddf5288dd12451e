"""Conjugate gradients with one sum an iteration, which is made while A is multiplied.

After P. Ghysels and W. Vanroose, "Hiding global synchronization latency in the preconditioned
Conjugate Gradient algorithm", Parallel Computing 40 (2014), 224-238: algorithm 4. Its recurrences
for r, u = M r and w = A u round more than those of Hestenes and Stiefel; every `_RENEWED`
iterations they are computed anew, as in S. Cools and others, "Analyzing the effect of local
rounding error propagation on the maximal attainable accuracy of the pipelined conjugate gradient
method", SIAM J. Matrix Anal. Appl. 39 (2018), 426-450.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hetero.ops.linear_systems import types

_RENEWED = 50  # iterations


def loop(b: Any) -> Callable[[tuple[Any, ...], int], tuple[str, int]]:
    """The iterations for `cg_cpu.iterate`, of a right-hand side.

    Of n unknowns an iteration takes one product, one preconditioner, and 16 n flops for vectors (22
    n with a preconditioner) in place of 10 n (12 n).
    """

    def run(on: tuple[Any, ...], limit: int) -> tuple[str, int]:
        product, vectors, preconditioner, callback, bound, x, r, _ = on
        times, add = product.times, vectors.scale_and_add

        def apply(v: Any, z: Any) -> None:
            if callable(preconditioner):
                preconditioner(v, z)
            else:
                np.multiply(preconditioner, v, out=z)

        alone = preconditioner is None  # then u is r, m is w and q is s
        u = r if alone else r.copy()
        w, n, p, s, z = (r.copy() for _ in range(5))
        m, q = (w, s) if alone else (r.copy(), r.copy())
        if not alone:
            apply(r, u)
        times(u, w)
        gamma_before = alpha = 1.0
        bad = 0.0
        for k in range(limit):
            # (1) gamma = r.u, delta = w.u, r.r; meanwhile m = M w, n = A m
            begun = vectors.begin((r, u), (w, u), (r, r), also=bad)
            if not alone:
                apply(w, m)
            times(m, n)
            gamma, delta, square = vectors.end(begun)
            if not math.isfinite(gamma + delta + square):
                return types.NOT_FINITE, k
            if k and math.sqrt(square) <= bound:
                return types.CONVERGED, k
            # (2) alpha = gamma / (delta - beta gamma / alpha)
            beta = gamma / gamma_before if k else 0.0
            curvature = delta - beta * gamma / alpha
            if curvature <= 0.0 or gamma <= 0.0:
                return types.INDEFINITE, k
            alpha, gamma_before = gamma / curvature, gamma
            # (3) z = A q, q = M s, s = A p and p, each of its own recurrence
            add(z, beta, n)
            if not alone:
                add(q, beta, m)
            add(s, beta, w)
            add(p, beta, u)
            # (4) x += alpha p, r -= alpha s, u -= alpha q, w -= alpha z
            bad = 0.0 * vectors.own_step(x, r, p, s, alpha)  # NaN where it is not finite
            if not alone:
                vectors.subtract(u, alpha, q)
            vectors.subtract(w, alpha, z)
            if callback:
                callback(x)
            if (k + 1) % _RENEWED == 0:
                times(x, r)
                vectors.difference(r, b, r)
                times(p, s)
                if not alone:
                    apply(r, u)
                    apply(s, q)
                times(q, z)
                times(u, w)
        return types.LIMIT, limit

    return run
