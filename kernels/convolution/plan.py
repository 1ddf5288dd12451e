"""Launch plans of two-dimensional correlation."""

from __future__ import annotations

from typing import Unpack

from ..common import tuning as tables
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
    only_if: bool = False,
    tuning: tables.Table | None = None,
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
    only_if : bool
        Do nothing unless the first number of the buffer ``"only_if"`` of ints is not 0.
    tuning : Table, optional
        The figures that tiles are chosen by. Default: `hetero.kernels.common.tuning.default`.
    **sizes
        See `hetero.kernels.convolution.correlation.correlation`.

    Returns
    -------
    LaunchPlan
        On the buffers ``"image"``, ``"taps"`` and ``"out"``, and the float ``"fillvalue"``.
    """
    problem = correlation(**sizes)
    if block_limit < WARP:
        raise ValueError(f"block_limit must be at least {WARP}, got {block_limit}")
    found = None
    tuning = tuning or tables.default()
    if cuda:
        found = small(problem, multiprocessors, alignment, block_limit, tuning)
    if found is None:
        found = tiled(problem, multiprocessors, alignment, block_limit, shared_limit, tuning)
    return _on_condition(found) if only_if else found


def _on_condition(launch_plan: LaunchPlan) -> LaunchPlan:
    """The same launches, each of which looks at the flag first."""
    launches = tuple(
        launch._replace(
            defines=(*launch.defines, ("ONLY_IF", 1)), arguments=(*launch.arguments, "only_if")
        )
        for launch in launch_plan.launches
    )
    return launch_plan._replace(launches=launches)
