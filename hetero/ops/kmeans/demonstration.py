"""What `hetero demo` shows of k-means: the colours of a photograph, quantised to 16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hetero.ops.photograph import photograph, save

COLOURS = 16


def _landscape(y: np.ndarray, x: np.ndarray, hills: np.ndarray) -> np.ndarray:
    sky = np.stack([0.9 - 0.6 * y, 0.8 - 0.2 * y, 1.0 - 0.1 * x], axis=-1)
    green = 0.3 + 0.2 * np.sin(40.0 * (y - hills))
    land = np.stack([0.4 * green, green, 0.2 + 0.1 * x], axis=-1)
    return np.where((y > hills)[..., None], land, sky)


def colours(side: int) -> tuple[np.ndarray, str]:
    """The (side^2, 3) colours of a photograph, each point of it four times, and where it is
    from."""
    found, source = photograph("astronaut", "astronaut", _landscape)
    found = np.repeat(np.repeat(found, 2, axis=0), 2, axis=1)[:side, :side]
    return found.reshape(-1, 3), source


def pictured_result(result: tuple[Any, ...], path: str) -> str:
    """Save a photograph in its few colours as a PPM file, its name after that of another one."""
    centroids, labels, _ = result
    named = Path(path)
    named = named.with_name(f"{named.stem}-{len(centroids)}-colours.ppm")
    side = round(len(labels) ** 0.5)
    save(centroids[labels].reshape(side, side, 3), named)
    return str(named)
