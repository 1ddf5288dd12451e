"""Numba's device arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.arrays.interface import Interface
from hetero.arrays.library import NewArray
from hetero.imports import load


class Numba(Interface):
    """Numba's device arrays."""

    modules = frozenset({"numba", "numba_cuda"})

    def empty(
        self, like: Any, shape: tuple[int, ...], dtype: np.dtype, new_array: NewArray
    ) -> tuple[Any, int]:
        cuda = load("numba.cuda")
        made = cuda.device_array(shape, dtype)
        return made, self.describe(made).pointer
