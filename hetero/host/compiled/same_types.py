"""Arrays as compiled loops have them: a read-only one would be another type, compiled again."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["as_loops_take"]


class _Writable:
    """An array's memory, said to be writable."""

    def __init__(self, array: np.ndarray) -> None:
        interface: dict[str, Any] = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface
        self.array = array  # whose memory it is


def as_loops_take(array: np.ndarray) -> np.ndarray:
    """The array, or another one of its memory that counts as writable; loops only read it.

    One that is not aligned is copied.
    """
    flags = array.flags
    if not flags.aligned:
        return array.copy()
    return array if flags.writeable else np.asarray(_Writable(array))
