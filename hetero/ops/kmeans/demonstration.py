"""What `hetero demo` shows of k-means: the colours of a photograph, quantised to 16."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hetero.ops.kmeans import kmeans
from hetero.pricing.plan import readable

COLOURS = 16
_SIDE = 1024


def photograph() -> tuple[np.ndarray, str]:
    """A colour photograph of float32 from 0 to 1, (height, width, 3), and where it is from.

    scikit-image's astronaut, each point four times; where that package is not installed, a drawn
    landscape.
    """
    try:
        from skimage import data

        picture, source = data.astronaut().astype(np.float32) / 255.0, "scikit-image's astronaut"
    except ImportError:
        y, x = np.mgrid[0:512, 0:512] / 512.0
        hills = 0.55 + 0.1 * np.sin(9.0 * x) + 0.05 * np.sin(31.0 * x + 2.0)
        sky = np.stack([0.9 - 0.6 * y, 0.8 - 0.2 * y, 1.0 - 0.1 * x], axis=-1)
        green = 0.3 + 0.2 * np.sin(40.0 * (y - hills))
        land = np.stack([0.4 * green, green, 0.2 + 0.1 * x], axis=-1)
        picture = np.where((y > hills)[..., None], land, sky).astype(np.float32)
        source = "a drawn landscape"
    return np.repeat(np.repeat(picture, 2, axis=0), 2, axis=1)[:_SIDE, :_SIDE], source


def demonstrate(demo: Any) -> dict[str, Any]:
    """Find the colours; save the picture in them beside ``demo.picture`` if that names a file.

    See `hetero.evaluation.demo.Demo`.
    """
    picture, source = photograph()
    X = picture.reshape(-1, 3)
    found, seconds = demo.second(partial(kmeans, X, COLOURS, random_state=0))
    colours, labels, info = found
    different = len(np.unique(X, axis=0))
    demo.show(
        f"\n{source}, {picture.shape[0]} x {picture.shape[1]}, its {different} colours quantised "
        f"to {COLOURS}:"
    )
    error = (info["inertia"] / X.size) ** 0.5
    demo.show(
        f"  {info['method']} on {info['device']}: {info['iterations']} iterations, "
        f"{readable(seconds)}; a colour is off by {255 * error:.1f} of 255"
    )
    if demo.picture is not None:
        path = Path(demo.picture)
        path = path.with_name(f"{path.stem}-{COLOURS}-colours.ppm")
        save(colours[labels].reshape(picture.shape), path)
        demo.show(f"  it is in {path}")
    found = {"colours": COLOURS, "device": info["device"], "method": info["method"]}
    return {"quantised": {**found, "measured": seconds, "iterations": info["iterations"]}}


def save(picture: np.ndarray, path: Path) -> None:
    """Write values from 0 to 1 as a binary PPM file."""
    pixels = np.clip(np.rint(255.0 * picture), 0, 255).astype(np.uint8)
    height, width, _ = pixels.shape
    path.write_bytes(f"P6 {width} {height} 255\n".encode() + pixels.tobytes())
