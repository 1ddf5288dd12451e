"""Calls of all blocks as Dask's tasks, each on the GPU that is its worker's own."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import dask.array as da
import numpy as np

from hetero import devices
from hetero.calling import planner
from hetero.ops import functions, plan
from hetero.pricing.plan import CPU


def run(name: str, *operands: Any, call: Callable[..., Any] | None = None, **options: Any) -> Any:
    """The function of this name on a block, where it is fastest; of GPUs, on the worker's own."""
    gpu = None if options.get("device") else own_gpu()
    if gpu is not None and plan(name, *operands, **options).chosen.device == CPU:
        gpu = None
    with nullcontext() if gpu is None else planner.use(device=gpu):
        return (call or getattr(functions, name))(*operands, **options)


def own_gpu() -> str | None:
    """The GPU of the worker of a distributed cluster that runs this task.

    It is that of the number at the end of the worker's name, modulo the number of GPUs. None
    where no worker runs this, without a GPU, and where CUDA_VISIBLE_DEVICES is set.
    """
    distributed = sys.modules.get("distributed")
    if distributed is None or "CUDA_VISIBLE_DEVICES" in os.environ:
        return None
    try:
        number = re.search(r"\d+$", str(distributed.get_worker().name))
    except ValueError:  # no worker
        return None
    gpus = [name for name in devices.available() if name.startswith("cuda:")]
    return gpus[int(number[0]) % len(gpus)] if gpus and number else None


def check_placement(name: str, device: str | None = None, method: str | None = None) -> None:
    """Refuse what names nothing before any block is computed; devices of a distributed cluster are
    its workers'."""
    distributed = sys.modules.get("distributed")
    try:
        elsewhere = distributed is not None and distributed.get_client() is not None
    except ValueError:  # no cluster
        elsewhere = False
    planner.check_placement(name, None if elsewhere else device, method)


def by_blocks(
    name: str, function: Callable[..., Any], axes: str, dtype: Any, *pairs: Any, **more: Any
) -> da.Array:
    """A Dask array of what a function makes of blocks.

    ``pairs`` are arrays, each with a letter for every axis; ``axes`` has those of the result. One
    that the result lacks is whole in each block. ``more`` is for `dask.array.blockwise`.
    """
    more |= {"meta": da.utils.meta_from_array(pairs[0], len(axes), dtype), "concatenate": True}
    return da.blockwise(function, axes, *pairs, dtype=dtype, token=f"hetero-{name}", **more)


def one_element(array: Any) -> np.ndarray:
    """An array like another one, to ask a function for the dtype of its result."""
    return np.ones((1,) * array.ndim, array.dtype)
