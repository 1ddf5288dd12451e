"""Photographs that `hetero demo` works on, and files of what it makes of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hetero.imports import load


def photograph(name: str, title: str, drawn: Callable[..., Any]) -> tuple[np.ndarray, str]:
    """One of scikit-image's photographs as float32 from 0 to 1, and where it is from.

    Where that package is not installed, a landscape: ``drawn(y, x, hills)`` of 512 x 512 points,
    from 0 to 1, with the height of the hills.
    """
    try:
        data = load("skimage.data")
    except ImportError:
        y, x = np.mgrid[0:512, 0:512] / 512.0
        hills = 0.55 + 0.1 * np.sin(9.0 * x) + 0.05 * np.sin(31.0 * x + 2.0)
        return drawn(y, x, hills).astype(np.float32), "a drawn landscape"
    return getattr(data, name)().astype(np.float32) / 255.0, f"scikit-image's {title}"


def save(picture: np.ndarray, path: str | Path) -> None:
    """Write values from 0 to 1 as a binary PGM file, colours as PPM."""
    pixels = np.clip(np.rint(255.0 * picture), 0, 255).astype(np.uint8)
    height, width = pixels.shape[:2]
    kind = "P5" if pixels.ndim == 2 else "P6"
    Path(path).write_bytes(f"{kind} {width} {height} 255\n".encode() + pixels.tobytes())
