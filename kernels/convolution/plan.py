"""Launch plans of two-dimensional correlation."""

from __future__ import annotations

from typing import Unpack

from ..common.boundaries import BOUNDARIES
from ..common.launch import LaunchPlan
from .correlation import WARP, TapSizes, correlation
from .plan_lines import separable, separable_limit
from .plan_small import small
from .plan_tiled import tiled

__all__ = ["BOUNDARIES", "direct", "separable", "separable_limit"]


def direct(
    *,
    multiprocessors: int,
    alignment: int,
    cuda: bool,
    block_limit: int = 1024,
    shared_limit: int = 32768,
    **sizes: Unpack[TapSizes],
) -> LaunchPlan:
    """Plan out[b, i, j] = sum over u, v of taps[u, v] ext[b, i + u - top, j + v - left].

    ``ext`` is the image extended beyond its edges.

    Parameters
    ----------
    multiprocessors : int
        Of the device.
    alignment : int
        Bytes; the largest power of two, up to 16, that divides every operand's address.
    cuda : bool
        Whether the kernels that were made for NVIDIA's GPUs may be used.
    block_limit : int
        Most threads the device takes in a block; at least 32.
    shared_limit : int
        Bytes of shared memory that a block may have; at least 16384.
    **sizes
        See `hetero.kernels.convolution.correlation.correlation`.

    Returns
    -------
    LaunchPlan
        On the buffers ``"image"``, ``"taps"`` and ``"out"``, the float ``"fillvalue"``, and the
        buffer of ints ``"only_if"``: where its first one is 0 nothing is done. It may be null.
    """
    problem = correlation(**sizes)
    if block_limit < WARP:
        raise ValueError(f"block_limit must be at least {WARP}, got {block_limit}")
    plan = None
    if cuda:
        plan = small(problem, multiprocessors, alignment, block_limit)
    if plan is None:
        plan = tiled(problem, multiprocessors, alignment, block_limit, shared_limit)
    return plan
