"""What `hetero demo` shows of convolution: a photograph's edges found, and out of focus."""

from __future__ import annotations

import numpy as np

from hetero.ops.photograph import photograph, save


def _landscape(y: np.ndarray, x: np.ndarray, hills: np.ndarray) -> np.ndarray:
    sky = 0.9 - 0.5 * y + 0.3 * np.exp(-60.0 * ((x - 0.7) ** 2 + (y - 0.25) ** 2))
    return np.where(y > hills, 0.3 * np.sin(40.0 * (y - hills)) ** 2, sky)


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
    found, source = photograph("camera", "camera man", _landscape)
    repeats = [-(-side // n) for n in found.shape]
    return np.ascontiguousarray(np.tile(found, repeats)[:side, :side]), source


def pictured_result(result: np.ndarray, path: str) -> str:
    """Save a filtered photograph as a PGM file."""
    save(result, path)
    return path
