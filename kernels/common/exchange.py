"""Launch plan of copies to other devices' memory, after which all devices meet."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .launch import Launch, ceil_div

_UNITS = {16: "int4", 8: "int2", 4: "int"}
_THREADS = 256  # of a block, and most devices
_MOST_BLOCKS = 64  # which fill a link
WORDS = 4 + _THREADS  # of 4 bytes, of each device: peer_flags.cu


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
