"""What `hetero bench`, `verify` and `demo` ask of k-means."""

from __future__ import annotations

import random

from hetero.arrays import spec
from hetero.runtime.benchmark import Trial
from hetero.runtime.problem import DEVICE_DTYPES

_ROWS, _COLUMNS, _CLUSTERS = 1 << 18, 256, 256
_WORK = 1 << 29  # n d k at most


def draw(random: random.Random, on: str, largest: int) -> Trial:
    """Random rows, few or many; some iterations from seeds by k-means++."""
    dtype = random.choice(DEVICE_DTYPES)
    most = min(_ROWS, 64 * largest), min(_COLUMNS, largest), min(_CLUSTERS, largest)
    while True:
        n, d, k = (max(1, round(extent ** random.random())) for extent in most)
        if k <= n and n * d * k <= _WORK:
            return Trial((spec((n, d), dtype, on=on), k), {"random_state": 0, "max_iter": 10})
