"""Ways in which the same values can lie in memory."""

from __future__ import annotations

import numpy as np

# Each gives an array of equal values, but for "repeated", which repeats the first row.
LAYOUTS = {
    "C": lambda x: np.ascontiguousarray(x),
    "F": lambda x: np.asfortranarray(x),
    "padded": lambda x: np.concatenate([x, x], axis=-1)[..., : x.shape[-1]],
    "strided": lambda x: np.repeat(np.repeat(x, 2, axis=-1), 3, axis=-2)[..., ::3, ::2],
    "reversed": lambda x: np.ascontiguousarray(x[..., ::-1, ::-1])[..., ::-1, ::-1],
    "repeated": lambda x: np.broadcast_to(x[..., :1, :], x.shape),
}
