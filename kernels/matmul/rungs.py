"""Launch plans of the steps of the way to this family's best kernels."""

from __future__ import annotations

from ..common.launch import REAL, Launch, LaunchPlan, ceil_div, check_dtype
from ..common.rungs import Rung

__all__ = ["RUNGS", "plan_rung"]

RUNGS = {
    "naive": Rung(
        2,
        "a thread for each element of C, neighbours along a row",
        "all multiprocessors work, and a warp reads whole lines of B",
    ),
}
_BLOCK = (16, 16)


def plan_rung(
    rung: str,
    *,
    m: int,
    n: int,
    k: int,
    batch: int,
    dtype: str,
    a_strides: tuple[int, int, int],
    b_strides: tuple[int, int, int],
    c_strides: tuple[int, int, int],
    block_limit: int = 1024,
    block: tuple[int, int] | None = None,
) -> LaunchPlan:
    """Plan C = A B for a batch of m x k and k x n matrices by one of `RUNGS`.

    Parameters
    ----------
    rung : str
    m, n, k, batch, dtype, a_strides, b_strides, c_strides
        As for `plan_matmul`.
    block_limit : int
        Most threads the device takes in a block.
    block : (int, int), optional
        Threads of a block, along a row of C and along a column. Default: the rung's own.
    """
    check_dtype(dtype)
    across, down = block or _BLOCK
    while block is None and across * down > block_limit:
        down //= 2
    launch = Launch(
        source="matmul_rungs.cu",
        kernel=f"matmul_{rung}",
        defines=(("REAL", REAL[dtype]), ("BX", across), ("BY", down)),
        grid=ceil_div(m, down) * ceil_div(n, across) * batch,
        block=across * down,
        arguments=("A", "B", "C", m, n, k, *a_strides, *b_strides, *c_strides),
    )
    return LaunchPlan((launch,), 0, f"{rung}{across}x{down}")
