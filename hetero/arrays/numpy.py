"""NumPy: arrays on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.arrays import kept, watched
from hetero.arrays.library import Library
from hetero.arrays.operand import HOST, Operand
from hetero.arrays.pinned import RANGES, holds


class Numpy(Library):
    """NumPy's arrays, on the host."""

    def recognises(self, kind: type) -> bool:
        return issubclass(kind, np.ndarray)

    def on_device(self, array: Any) -> bool:
        return False

    def describe(self, array: np.ndarray) -> Operand:
        return _described(array, watched.peek(array))

    def describe_used(self, array: np.ndarray, other: Any) -> Operand:
        """Of an input of a call that runs: it is watched if it was used before."""
        same = getattr(other, "nbytes", -1) == array.nbytes and type(other) is np.ndarray
        same = same and kept.key_of(array) == kept.key_of(other)
        return _described(array, watched.peek(array) if same else watched.note(array))


def _described(array: np.ndarray, known: kept.Kept | None) -> Operand:
    facts, writeable = (array.shape, array.strides, array.dtype, HOST), array.flags.writeable
    if not writeable:
        known = kept.find(array) or known
    copies = () if known is None else known.copies
    if writeable and known is None and not RANGES:
        return Operand(*facts)
    return Operand(*facts, 0, not writeable, None, copies, known, holds(array))
