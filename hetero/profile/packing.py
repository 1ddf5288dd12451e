"""Models in little room, for the profiles that come with hetero; unpacked, the same numbers.

Most of a profile are tables of one implementation in several layouts that differ little. Of a table
that was interpolated from another one, only the knots of their ratio are kept, and by how much the
last digit differs. All models together are JSON, compressed, as text.
"""

from __future__ import annotations

import base64
import itertools
import json
import lzma
from typing import Any

from hetero.registry.models import ModelKey, Work, bind

_MIDDLE = ord("M")  # stands for a last digit that is right


def unpacked(text: str, largest: int) -> dict[str, Any]:
    """The models of a packed profile.

    Raises
    ------
    ValueError
        If it is no such text, or of more bytes than ``largest``.
    """
    stream = lzma.LZMADecompressor()
    try:
        content = stream.decompress(base64.b85decode(text), largest)
    except lzma.LZMAError as error:
        raise ValueError(f"its models cannot be unpacked: {error}") from None
    if not stream.eof:
        raise ValueError("its models are not complete, or too many")
    models = json.loads(content)
    for key in sorted(models):  # references first
        constants = models[key]["constants"]
        if "beside" in constants:
            reference = models[str(ModelKey.parse(key)._replace(layout=constants["beside"]))]
            models[key]["constants"] = _filled(constants, reference["constants"])
    return models


def _filled(constants: dict[str, Any], reference: dict[str, Any]) -> dict[str, Any]:
    digits = constants["last"].encode()
    tables = zip(estimates(reference, constants["axes"], constants["ratios"]), digits, strict=True)
    return {
        "overhead": constants["overhead"],
        "axes": reference["axes"],
        "seconds": [changed_by(seconds, digit - _MIDDLE) for seconds, digit in tables],
    }


def estimates(reference: dict[str, Any], axes: list[list[int]], ratios: list[float]) -> list[float]:
    """The reference's seconds times a ratio interpolated between knots, to five digits."""
    ratio = bind(
        {"form": "surface", "constants": {"overhead": 0.0, "axes": axes, "seconds": ratios}}
    )
    return [
        float(f"{seconds * _inside(ratio, dims, axes):.5g}")
        for dims, seconds in zip(
            itertools.product(*reference["axes"]), reference["seconds"], strict=True
        )
    ]


def _inside(ratio: Any, dims: tuple[int, ...], axes: list[list[int]]) -> float:
    """The ratio; beyond the last knot, that one's."""
    known = tuple(min(size, axis[-1]) for size, axis in zip(dims, axes, strict=True))
    return sum(ratio(Work(known, 0.0, 0.0)))


def changed_by(seconds: float, units: int) -> float:
    """A number of five digits with so many units more in the last one."""
    digits, exponent = f"{seconds:.4e}".split("e")
    return float(f"{round(float(digits) * 10**4) + units}e{int(exponent) - 4}")


def letters(units: list[int]) -> str:
    """Differences of last digits as text; see `unpacked`."""
    return "".join(chr(_MIDDLE + n) for n in units)
