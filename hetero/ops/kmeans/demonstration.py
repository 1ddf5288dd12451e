"""What `hetero demo` shows of k-means: the colours of a photograph, quantised to 16."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hetero.ops.kmeans import kmeans
from hetero.ops.photograph import photograph, save
from hetero.pricing.plan import readable

COLOURS = 16
_SIDE = 1024


def _landscape(y: np.ndarray, x: np.ndarray, hills: np.ndarray) -> np.ndarray:
    sky = np.stack([0.9 - 0.6 * y, 0.8 - 0.2 * y, 1.0 - 0.1 * x], axis=-1)
    green = 0.3 + 0.2 * np.sin(40.0 * (y - hills))
    land = np.stack([0.4 * green, green, 0.2 + 0.1 * x], axis=-1)
    return np.where((y > hills)[..., None], land, sky)


def demonstrate(demo: Any) -> dict[str, Any]:
    """Find the colours of a photograph, each point of it four times; save it in them next to
    ``demo.picture`` if that names a file.

    See `hetero.evaluation.demo.Demo`.
    """
    picture, source = photograph("astronaut", "astronaut", _landscape)
    picture = np.repeat(np.repeat(picture, 2, axis=0), 2, axis=1)[:_SIDE, :_SIDE]
    X = picture.reshape(-1, 3)
    clusters, seconds = demo.second(partial(kmeans, X, COLOURS, random_state=0))
    colours, labels, info = clusters
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
