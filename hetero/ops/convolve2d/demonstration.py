"""What `hetero demo` shows of convolution: a photograph's edges found, blurred, out of focus."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from hetero.calling.planner import plan_call
from hetero.ops.convolve2d import OPERATION, convolve2d
from hetero.ops.photograph import photograph, save
from hetero.pricing.plan import readable

_SIDE = 2048


def _landscape(y: np.ndarray, x: np.ndarray, hills: np.ndarray) -> np.ndarray:
    sky = 0.9 - 0.5 * y + 0.3 * np.exp(-60.0 * ((x - 0.7) ** 2 + (y - 0.25) ** 2))
    return np.where(y > hills, 0.3 * np.sin(40.0 * (y - hills)) ** 2, sky)


def filters() -> dict[str, np.ndarray]:
    """A Sobel edge filter, a Gaussian, and a disk out of focus, which is of full rank."""
    line = np.exp(-(np.linspace(-2.5, 2.5, 31) ** 2)).astype(np.float32)
    y, x = np.mgrid[-31:32, -31:32]
    disk = (x**2 + y**2 <= 31**2).astype(np.float32)
    return {
        "edges, 3 x 3 Sobel": np.array([[1, 0, -1], [2, 0, -2], [1, 0, -1]], np.float32),
        "blur, 31 x 31 Gaussian": np.outer(line, line) / line.sum() ** 2,
        "out of focus, 63 x 63 disk": disk / disk.sum(),
    }


def demonstrate(demo: Any) -> dict[str, Any]:
    """Filter a gray photograph, repeated up to 2048 x 2048; save the last result as a PGM file if
    ``demo.picture`` names one.

    See `hetero.evaluation.demo.Demo`.
    """
    picture, source = photograph("camera", "camera man", _landscape)
    repeats = [-(-_SIDE // n) for n in picture.shape]
    result = picture = np.tile(picture, repeats)[:_SIDE, :_SIDE]
    demo.show(f"\n{source}, {picture.shape[0]} x {picture.shape[1]}, edges mirrored:")
    rows = []
    for name, values in filters().items():
        options = {"mode": "same", "boundary": "symm"}
        chosen = plan_call(OPERATION, (picture, values), options).chosen
        result, seconds = demo.second(partial(convolve2d, picture, values, **options))
        demo.show(
            f"  {name:<28} {chosen.method} on {chosen.device}: {readable(seconds)}, "
            f"predicted {readable(chosen.seconds or 0.0)}"
        )
        row = {"filter": name, "device": chosen.device, "method": chosen.method}
        rows.append({**row, "predicted": chosen.seconds, "measured": seconds})
    if demo.picture is not None:
        save(result, demo.picture)
        demo.show(f"  the last one is in {demo.picture}")
    return {"picture": rows}
