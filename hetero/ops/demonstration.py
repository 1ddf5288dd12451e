"""What `hetero demo` works on, photographs, and files of what it makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hetero.imports import load

COLOURS = 16


def _photograph(name: str, title: str) -> tuple[np.ndarray, str]:
    """One of scikit-image's photographs as float32 from 0 to 1, and where it is from.

    Where that package is not installed, a drawn one of 512 x 512 points: waves and slopes.
    """
    try:
        data = load("skimage.data")
    except ImportError:
        y, x = np.mgrid[0:512, 0:512] / 512.0
        waves = 0.5 + 0.3 * np.sin(31.0 * x + 9.0 * y) * np.cos(23.0 * y)
        return np.stack([waves, 0.9 - 0.6 * y, x * y], axis=-1).astype(np.float32), "drawn waves"
    return getattr(data, name)().astype(np.float32) / 255.0, f"scikit-image's {title}"


def _save(picture: np.ndarray, path: str | Path) -> None:
    """Write values from 0 to 1 as a binary PGM file, colours as PPM."""
    pixels = np.clip(np.rint(255.0 * picture), 0, 255).astype(np.uint8)
    height, width = pixels.shape[:2]
    kind = "P5" if pixels.ndim == 2 else "P6"
    Path(path).write_bytes(f"{kind} {width} {height} 255\n".encode() + pixels.tobytes())


# -- Convolution: edges found, and out of focus ----------------------------------------------------


def filters() -> dict[str, np.ndarray]:
    """A Sobel edge filter, and disks out of focus, which are of full rank."""
    found = {"edges": np.array([[1, 0, -1], [2, 0, -2], [1, 0, -1]], np.float32)}
    for radius in (7, 31):
        y, x = np.mgrid[-radius : radius + 1, -radius : radius + 1]
        disk = (x**2 + y**2 <= radius**2).astype(np.float32)
        found["out of focus" if radius == 7 else "far out of focus"] = disk / disk.sum()
    return found


def picture(side: int) -> tuple[np.ndarray, str]:
    """A gray photograph, repeated or cut to that height and width, and where it is from."""
    found, source = _photograph("camera", "camera man")
    found = found if found.ndim == 2 else found.mean(axis=-1)
    repeats = [-(-side // n) for n in found.shape]
    return np.ascontiguousarray(np.tile(found, repeats)[:side, :side]), source


def save_filtered(result: np.ndarray, path: str) -> str:
    """Save a filtered photograph as a PGM file."""
    _save(result, path)
    return path


# -- k-means: colours quantised --------------------------------------------------------------------


def colours(side: int) -> tuple[np.ndarray, str]:
    """The (side^2, 3) colours of a photograph, each point of it four times, and where it is
    from."""
    found, source = _photograph("astronaut", "astronaut")
    found = np.repeat(np.repeat(found, 2, axis=0), 2, axis=1)[:side, :side]
    return found.reshape(-1, 3), source


def save_quantised(result: tuple[Any, ...], path: str) -> str:
    """Save a photograph in its few colours as a PPM file, its name after that of another one."""
    centroids, labels, _ = result
    named = Path(path)
    named = named.with_name(f"{named.stem}-{len(centroids)}-colours.ppm")
    side = round(len(labels) ** 0.5)
    _save(centroids[labels].reshape(side, side, 3), named)
    return str(named)
