"""Launches that read memory, or shared memory, by a pattern and do nothing else; see access.cu."""

from __future__ import annotations

from .launch import Launch

__all__ = ["BYTES", "banks", "strided"]

BYTES = 4  # of an element
_THREADS, _STEPS, _READS = 256, 16, 32  # of a block; elements of a thread; see access.cu


def strided(piece: int, stride: int, elements: int, block_limit: int) -> Launch:
    """Read elements once, by pieces that lie ``stride`` pieces apart.

    Parameters
    ----------
    piece, stride, elements : int
        Powers of two; a piece in elements. ``elements`` is the length of the buffer ``"data"``, at
        least 4096 and ``piece * stride``.
    block_limit : int
        Most threads of a block.

    Returns
    -------
    Launch
        On ``"data"`` and ``"out"``, which has an element for each thread.
    """
    threads = min(_THREADS, block_limit)
    shift = (elements // (piece * stride)).bit_length() - 1
    return Launch(
        source="access.cu",
        kernel="strided",
        defines=(("THREADS", threads), ("PIECE", piece)),
        grid=elements // (threads * _STEPS),
        block=threads,
        arguments=("data", "out", shift, stride),
    )


def banks(stride: int, blocks: int, rounds: int, block_limit: int) -> tuple[Launch, int]:
    """Read shared memory, neighbouring threads 0 to 64 elements apart; and the number of reads.

    The launch is on the buffer ``"out"``, which has an element for each thread.
    """
    threads = min(_THREADS, block_limit)
    defines = (("THREADS", threads), ("PIECE", 1))  # as of `strided`: one binary
    launch = Launch("access.cu", "banks", defines, blocks, threads, ("out", stride, rounds))
    return launch, _READS * rounds * blocks * threads
