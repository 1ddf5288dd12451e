"""Launches that no family owns.

Probes do one thing alone: arithmetic on registers, with its flops (peak.cu), or reads of memory, or
of shared memory, by a pattern (access.cu). ``"out"`` has an element for each thread. An exchange
copies to other devices' memory, after which all devices meet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .launch import REAL, Launch, ceil_div, check_dtype

BYTES = 4  # of an element that is read
_THREADS = 256  # of a block, and most devices
_STEPS, _READS = 16, 32  # elements of a thread; see access.cu
_FLOPS = 2 * 8 * 32  # of a thread in a round, see peak.cu
_TENSOR_FLOPS = 2048 * 4 * 8 // 32  # see peak_tensor.cu
_FLOAT64_TENSOR_CORES = ((8, 0), (9, 0), (10, 0))
_UNITS = {16: "int4", 8: "int2", 4: "int"}
_MOST_BLOCKS = 64  # which fill a link
WORDS = 4 + _THREADS  # of 4 bytes, of each device: exchange.cu


def peaks(
    dtype: str, blocks: int, rounds: int, block_limit: int, capability: tuple[int, int] | None
) -> dict[str, tuple[Launch, float]]:
    """Name -> a launch that measures a device's peak rate, and its flops.

    ``blocks`` and ``rounds``: how many blocks, and how long each computes; ``block_limit``: most
    threads that the device takes in a block; ``capability``: of a CUDA device.
    """
    check_dtype(dtype)
    threads, arguments = min(_THREADS, block_limit), ("out", rounds)
    size = ("THREADS", threads)
    plain = Launch("peak.cu", "peak", (("REAL", REAL[dtype]), size), blocks, threads, arguments)
    kernels = {"multiply-adds": (plain, float(_FLOPS * rounds * blocks * threads))}
    if dtype == "float64" and capability in _FLOAT64_TENSOR_CORES:
        tensor = Launch("peak_tensor.cu", "peak_tensor", (size,), blocks, threads, arguments)
        kernels["tensor cores"] = tensor, float(_TENSOR_FLOPS * rounds * blocks * threads)
    return kernels


def strided(piece: int, stride: int, elements: int, block_limit: int) -> Launch:
    """Read the elements of the buffer ``"data"`` once, by pieces ``stride`` pieces apart.

    Pieces (in elements), strides and elements are powers of two, and there are at least 4096 and
    ``piece * stride`` elements.
    """
    threads = min(_THREADS, block_limit)
    shift = (elements // (piece * stride)).bit_length() - 1
    defines, grid = (("THREADS", threads), ("PIECE", piece)), elements // (threads * _STEPS)
    return Launch("access.cu", "strided", defines, grid, threads, ("data", "out", shift, stride))


def banks(stride: int, blocks: int, rounds: int, block_limit: int) -> tuple[Launch, int]:
    """Read shared memory, neighbouring threads 0 to 64 elements apart; and the number of reads."""
    threads = min(_THREADS, block_limit)
    defines = (("THREADS", threads), ("PIECE", 1))  # as of `strided`: one binary
    launch = Launch("access.cu", "banks", defines, blocks, threads, ("out", stride, rounds))
    return launch, _READS * rounds * blocks * threads


# -- Exchange between devices ----------------------------------------------------------------------


def exchange(
    copies: Sequence[tuple[int, int, int]], devices: int, rank: int, patience: float
) -> tuple[Launch, list[tuple[int, int, int]]]:
    """Plan the share of device ``rank``: its copies, each (target, source, bytes), addresses first.

    Bytes and addresses are multiples of 4. A device waits for another one for at most ``patience``
    seconds.

    Returns
    -------
    Launch
        Buffers: "copies" (the second result as 64-bit integers) and "words" (addresses of the words
        of all devices).
    list of (int, int, int)
        The copies, with units instead of bytes.
    """
    unit = math.gcd(16, *(number for copy in copies for number in copy))
    counted = [(target, source, nbytes // unit) for target, source, nbytes in copies]
    largest = max((count for *_, count in counted), default=0)
    blocks = max(1, min(ceil_div(largest, _THREADS), _MOST_BLOCKS))
    defines = ("UNIT", _UNITS[unit]), ("THREADS", _THREADS)
    arguments = "copies", "words", len(counted), devices, rank, blocks, round(1e9 * patience)
    return Launch("exchange.cu", "exchange", defines, blocks, _THREADS, arguments), counted
