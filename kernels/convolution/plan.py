"""Launch plans of two-dimensional correlation."""

from __future__ import annotations

from ..common import tuning as tables
from ..common.boundaries import BOUNDARIES
from ..common.launch import LaunchPlan
from .correlation import WARP, correlation
from .plan_lines import separable, separable_limit
from .plan_small import small
from .plan_tiled import tiled

__all__ = ["BOUNDARIES", "direct", "separable", "separable_limit"]


def direct(
    *,
    batch: int,
    height: int,
    width: int,
    filter_height: int,
    filter_width: int,
    out_height: int,
    out_width: int,
    top: int,
    left: int,
    boundary: str,
    dtype: str,
    image_strides: tuple[int, int, int],
    out_strides: tuple[int, int, int],
    multiprocessors: int,
    alignment: int,
    cuda: bool,
    block_limit: int = 1024,
    shared_limit: int = 32768,
    tap_strides: tuple[int, int] | None = None,
    only_if: bool = False,
    tuning: tables.Table | None = None,
) -> LaunchPlan:
    """Plan out[b, i, j] = sum over u, v of taps[u, v] ext[b, i + u - top, j + v - left].

    ``ext`` is the image extended beyond its edges.

    Parameters
    ----------
    batch, height, width : int
        Of the images, each at least 1.
    filter_height, filter_width : int
        Of the taps; each at least 1, in any proportion to the image.
    out_height, out_width : int
        Of the outputs, each at least 1.
    top, left : int
        Rows and columns of the filter that lie outside of the image at the first output; at least
        0.
    boundary : {"fill", "wrap", "symm"}
        Of the extension: a constant; periodic; mirrored, with the edge repeated.
    dtype : {"float32", "float64"}
        Of all operands; sums are kept in it too.
    image_strides, out_strides : tuple of int
        (batch, row, column), in elements, of any sign; those of the image may be 0.
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
    tap_strides : tuple of int, optional
        (row, column) of the taps, in elements, of any sign. Default: contiguous.
    only_if : bool
        Do nothing unless the first number of the buffer ``"only_if"`` of ints is not 0.
    tuning : Table, optional
        The figures that tiles are chosen by. Default: `hetero.kernels.common.tuning.default`.

    Returns
    -------
    LaunchPlan
        On the buffers ``"image"``, ``"taps"`` and ``"out"``, and the float ``"fillvalue"``.
    """
    problem = correlation(
        batch,
        (height, width),
        (filter_height, filter_width),
        (out_height, out_width),
        (top, left),
        boundary,
        dtype,
        image_strides,
        out_strides,
        tap_strides,
    )
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
