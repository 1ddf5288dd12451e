"""What `lloyd_device` takes of the CPU's iterations."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hetero.ops.kmeans import lloyd
from hetero.ops.kmeans.rows_blas import BlasRows

__all__ = ["BlasRows", "means"]


class _Given(NamedTuple):
    rows: Any
    labels: np.ndarray
    both: tuple[np.ndarray, np.ndarray]

    def sums(self, centroids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.both

    def distances(self, centroids: np.ndarray) -> np.ndarray:
        return self.rows.distances(centroids, self.labels)

    def row(self, index: int) -> np.ndarray:
        return self.rows.row(index)

    def weight(self, index: int) -> float:
        return float(self.rows.weights[index])


def means(
    rows: Any, centroids: np.ndarray, labels: np.ndarray, sums: np.ndarray, totals: np.ndarray
) -> np.ndarray:
    """See `hetero.ops.kmeans.lloyd.means`."""
    return lloyd.means(_Given(rows, labels, (sums, totals)), centroids)
