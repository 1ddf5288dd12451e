"""Which iteration a solve takes: the prices of both, from times that are measured in place."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from hetero.mpi.ranks import Ranks

METHODS = ("cg", "pipelined")
# Vectors that an iteration reads and writes, by threes as `scale_and_add` does, and what a
# preconditioner adds to them.
_PASSES = {"cg": (4.3, 1.7), "pipelined": (8.7, 4.0)}
_SUMS = {"cg": (2, 1), "pipelined": (1, 0)}
_LEAST = 0.95  # of the price of "cg", which "pipelined" has to be below
_TIMES, _VECTORS = 3, 6


def prices(
    ranks: Ranks, vectors: Any, times: Callable[..., Any], b: Any, preconditioned: bool
) -> dict[str, float]:
    """Seconds of an iteration, and what they are made of; a collective call.

    With the time of a product t_A, of a pass over three vectors t_v and of a sum t_s, each that of
    the slowest rank::

        cg          t_A + 4.3 t_v + 2 t_s           (with M: 6 t_v, 3 t_s)
        pipelined   max(t_A, t_s) + 8.7 t_v         (with M: 12.7 t_v)

    What M itself takes is the same in both, and left out.

    Returns
    -------
    dict
        "cg", "pipelined", "product", "pass", "sum", in seconds.
    """
    others = [b.copy() for _ in range(_VECTORS)]  # as many as an iteration works on

    def passes() -> None:
        for number in range(_VECTORS):
            vectors.scale_and_add(others[number], 0.5, others[number - 1])

    def seconds(work: Callable[[], Any]) -> float:
        taken = []
        for _ in range(_TIMES):
            vectors.synchronize()
            began = time.perf_counter()
            work()
            vectors.synchronize()
            taken.append(time.perf_counter() - began)
        return min(taken)

    product, one_pass = ranks.gather(
        seconds(lambda: times(b, others[0])), seconds(passes) / _VECTORS
    ).max(axis=0)
    prices = {"product": float(product), "pass": float(one_pass), "sum": ranks.latency()}
    for method in METHODS:
        passes, sums = (a + preconditioned * more for a, more in (_PASSES[method], _SUMS[method]))
        waiting = sums * prices["sum"]
        if method == "cg":
            prices[method] = prices["product"] + waiting + passes * prices["pass"]
        else:
            prices[method] = max(prices["product"], waiting) + passes * prices["pass"]
    return prices


def cheaper(prices: dict[str, float]) -> str:
    """The method to take."""
    return "pipelined" if prices["pipelined"] < _LEAST * prices["cg"] else "cg"
