"""NumPy: arrays on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.arrays.kept import find
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
        if array.flags.writeable:
            facts = array.shape, array.strides, array.dtype, HOST
            return Operand(*facts, pinned=True) if RANGES and holds(array) else Operand(*facts)
        kept = find(array)
        copies = () if kept is None else kept.copies
        facts = array.shape, array.strides, array.dtype, HOST, 0, True, None
        return Operand(*facts, copies, kept, holds(array))
