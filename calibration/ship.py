"""A measured profile as one that comes with hetero: without raw samples, its models packed.

python -m hetero.calibration.ship MEASURED.json NAME SHIPPED.json
"""

from __future__ import annotations

import base64
import json
import lzma
import math
import sys
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from hetero import profile
from hetero.profile import packing
from hetero.registry.models import ModelKey

_FARTHEST = 20  # units of the last digit, that a table may be from its reference times a ratio


def shipped(data: dict[str, Any], name: str) -> bytes:
    """The bytes of the profile to ship.

    Parameters
    ----------
    data : dict
        The content of a measured one.
    name : str
        What it is to be called.
    """
    models = {
        key: {part: value for part, value in model.items() if part != "samples"}
        for key, model in data["models"].items()
    }
    small = dict(models)
    for key, model in data["models"].items():
        if "interpolated" in model.get("samples", {}):
            beside = _beside(ModelKey.parse(key), models)
            small[key] = {**models[key], "constants": beside or models[key]["constants"]}
    text = json.dumps(small, separators=(",", ":")).encode()
    packed = base64.b85encode(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)).decode()
    assert packing.unpacked(packed, profile.LARGEST) == models
    links = {
        device: {
            direction: {
                memory: {part: value for part, value in model.items() if part != "samples"}
                for memory, model in kinds.items()
            }
            for direction, kinds in directions.items()
        }
        for device, directions in data["links"].items()
    }
    pack = {part: v for part, v in data["host"]["pack"].items() if part != "samples"}
    host = {**data["host"], "pack": pack}
    return profile.encode({**data, "name": name, "links": links, "host": host, "models": packed})


def _beside(key: ModelKey, models: dict[str, Any]) -> dict[str, Any] | None:
    """A table's constants as a ratio to one of another layout, the one that needs least."""
    constants = models[str(key)]["constants"]
    best = None
    for other in map(ModelKey.parse, models):
        # In one order, so that no two are beside each other.
        if other[:4] != key[:4] or other.layout >= key.layout:
            continue
        reference = models[str(other)]["constants"]
        if reference["axes"] != constants["axes"]:
            continue
        for less in (0, 1):
            knots = [[n - less for n in [axis[0], *_coarse(axis)]] for axis in constants["axes"]]
            ratios = _ratios(constants, reference, knots)
            near = packing.estimates(reference, knots, ratios)
            units = [_units(a, b) for a, b in zip(constants["seconds"], near, strict=True)]
            worst = max(map(abs, units))
            if worst <= _FARTHEST and (best is None or sum(map(abs, units)) < best[0]):
                best = (
                    sum(map(abs, units)),
                    {
                        "overhead": constants["overhead"],
                        "beside": other.layout,
                        "axes": knots,
                        "ratios": ratios,
                        "last": packing.letters(units),
                    },
                )
    return best and best[1]


def _coarse(axis: list[int]) -> list[int]:
    """Every second power of two, as measured beside a reference."""
    return [n for n in axis[1:] if n & (n - 1) == 0][::2]


def _ratios(
    constants: dict[str, Any], reference: dict[str, Any], knots: list[list[int]]
) -> list[float]:
    """At the knots: what, interpolated, comes closest to the ratio of both tables."""
    shape = [len(axis) for axis in constants["axes"]]
    logs = np.log(np.divide(constants["seconds"], reference["seconds"])).reshape(shape)
    for position, (axis, few) in enumerate(zip(constants["axes"], knots, strict=True)):
        at = np.interp(np.log(axis), np.log(few), np.arange(len(few)))
        weights = np.maximum(1.0 - abs(at[:, None] - np.arange(len(few))), 0.0)
        logs = np.moveaxis(np.tensordot(np.linalg.pinv(weights), logs, (1, position)), 0, position)
    return [float(f"{ratio:.6g}") for ratio in np.exp(logs).ravel()]


def _units(wanted: float, near: float) -> int:
    """How many units of the last digit must be added to come from one to the other."""
    unit = 10.0 ** (math.floor(math.log10(near) + 1e-12) - 4)
    guess = round((wanted - near) / unit)
    found = reduce(
        lambda best, n: n if packing.changed_by(near, n) == wanted else best,
        range(guess - 10, guess + 11),
        10**6,
    )
    return found


def main(arguments: list[str]) -> None:
    """Make a profile to ship: MEASURED.json, its new name, the file to write."""
    measured, name, target = arguments
    content = shipped(profile.read(measured).data, name)
    Path(target).write_bytes(content)
    print(f"{target}: {len(content)} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
