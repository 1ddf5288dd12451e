"""Launches that read memory, or shared memory, by a pattern and do nothing else; see access.cu."""

from __future__ import annotations

from .launch import Launch

BYTES = 4  # of an element
_THREADS, _STEPS, _READS = 256, 16, 32  # of a block; elements of a thread; see access.cu


def strided(piece: int, stride: int, elements: int, block_limit: int) -> Launch:
    """Read the elements of the buffer ``"data"`` once, by pieces ``stride`` pieces apart.

    Pieces (in elements), strides and elements are powers of two, and there are at least 4096 and
    ``piece * stride`` elements. ``"out"`` has an element for each thread.
    """
    threads = min(_THREADS, block_limit)
    shift = (elements // (piece * stride)).bit_length() - 1
    defines, grid = (("THREADS", threads), ("PIECE", piece)), elements // (threads * _STEPS)
    return Launch("access.cu", "strided", defines, grid, threads, ("data", "out", shift, stride))


def banks(stride: int, blocks: int, rounds: int, block_limit: int) -> tuple[Launch, int]:
    """Read shared memory, neighbouring threads 0 to 64 elements apart; and the number of reads.

    The launch is on the buffer ``"out"``, which has an element for each thread.
    """
    threads = min(_THREADS, block_limit)
    defines = (("THREADS", threads), ("PIECE", 1))  # as of `strided`: one binary
    launch = Launch("access.cu", "banks", defines, blocks, threads, ("out", stride, rounds))
    return launch, _READS * rounds * blocks * threads
