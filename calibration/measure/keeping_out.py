"""What stays impossible however often it is measured is kept out of the models, and said."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from hetero import profile
from hetero.calibration.measure import doubts, expected, whole_solves
from hetero.calibration.measure.samples import Samples
from hetero.ops.cases import Case, Dims, Passes, Place, TimedSolves
from hetero.registry.models import ModelKey

_MOST = 0.25  # of a curve's samples, beyond which nothing of it is believed
_TOGETHER = "set-up and step cannot be told apart"
_FEW = 2  # samples, of which none can be told by the others
_FLAT = 10.0  # times the least: what takes less is no rate
_MARKED = 2.0  # times the bounds of `doubts`: beside other load that is too much

Model = dict[str, Any]


class Unbelievable(Exception):
    """A curve that cannot be, with the reason."""


def believable(case: Case, place: Place, samples: Samples) -> tuple[Samples, dict[Dims, str]]:
    """The samples that can be, others interpolated between them.

    Returns
    -------
    Samples
    dict
        What is kept out: dimensions -> why.

    Raises
    ------
    Unbelievable
        If too little is left, or all of it is far from the conservative constants.
    """
    if not samples.seconds:
        return samples, {}
    if _tells_no_rate(case, samples):
        raise Unbelievable(f"{len(samples.seconds)} samples tell no rate for what is larger")
    usual = expected.conservative(case, place)
    if usual is not None:
        some = expected.spread_out(list(samples.seconds))
        far = doubts.unlike({dims: samples.seconds[dims] for dims in some}, usual)
        if len(far) > _MOST * len(some):
            raise Unbelievable(f"{far[0][2]} at {_size(far[0][0])}")
    out = _impossible(case, place, samples)
    if len(out) > max(_MOST * len(samples.seconds), len(samples.seconds) > _FEW):
        raise Unbelievable(f"{len(out)} of {len(samples.seconds)} samples cannot be")
    out = {**_not_apart(samples), **_disturbed(case, place, samples), **out}
    if not out:
        return samples, {}
    seconds, setup = _without(samples.seconds, out), _without(samples.setup, out)
    if isinstance(case.how, TimedSolves):  # of a size with something missing nothing can be told
        broken = {dims[0] for dims in samples.seconds if dims not in seconds}
        seconds = {dims: value for dims, value in seconds.items() if dims[0] not in broken}
        setup = {dims: value for dims, value in setup.items() if dims[0] not in broken}
    if not seconds:
        raise Unbelievable("no sample can be")
    return replace(samples, seconds=seconds, setup=setup), out


def _tells_no_rate(case: Case, samples: Samples) -> bool:
    """Whether most knots are missing, and those measured hardly take longer than nothing."""
    if isinstance(case.how, TimedSolves):
        return False
    number = len(case.how.knots) if isinstance(case.how, Passes) else math.prod(map(len, case.axes))
    measured = samples.seconds.values()
    return len(measured) < _MOST * number and max(measured) < _FLAT * min(measured)


def _impossible(case: Case, place: Place, samples: Samples) -> dict[Dims, str]:
    """Samples that break what cannot be."""
    ratios, amount, curves = _curves(case, place, samples)
    out: dict[Dims, str] = {}
    for curve in curves:
        for dims, times in doubts.impossible(curve, ratios, amount).items():
            out[dims] = f"{times:.0f} times its neighbours"
    return out


def _disturbed(case: Case, place: Place, samples: Samples) -> dict[Dims, str]:
    """Samples beside other load that stand out, and that others tell better."""
    ratios, amount, curves = _curves(case, place, samples)
    out: dict[Dims, str] = {}
    for curve in curves:
        for dims, beyond in doubts.doubtful(curve, ratios, amount).items():
            if beyond > _MARKED and dims in samples.marked:
                out[dims] = "beside other load only"
    left = {dims: s for dims, s in samples.seconds.items() if dims not in out}
    return {dims: why for dims, why in out.items() if doubts.between(dims, left) is not None}


def _not_apart(samples: Samples) -> dict[Dims, str]:
    """Solves whose times do not tell set-up and step apart, where others tell them better."""
    apart = whole_solves.parts_apart(samples)
    left = {dims: s for dims, s in samples.seconds.items() if apart.get(dims, True)}
    others = (dims for dims in samples.seconds if dims not in left)
    return {dims: _TOGETHER for dims in others if doubts.between(dims, left) is not None}


def _curves(
    case: Case, place: Place, samples: Samples
) -> tuple[bool, Callable[[Dims], float], list[dict[Dims, float]]]:
    """What `doubts` is asked of: whether these are ratios, amounts of work, and the curves."""
    if isinstance(case.how, TimedSolves):
        return False, expected.amount(case, place), expected.curves(samples)
    if (estimate := expected.estimated(case, place)) is not None:
        return True, math.prod, [{d: s / estimate(d) for d, s in samples.seconds.items()}]
    return False, math.prod, [samples.seconds]


def _without(seconds: dict[Dims, float], out: Iterable[Dims]) -> dict[Dims, float]:
    """These interpolated between the others; what has none on both sides is left out."""
    left = {dims: value for dims, value in seconds.items() if dims not in out}
    between = {dims: doubts.between(dims, left) for dims in out if dims in seconds}
    return left | {dims: value for dims, value in between.items() if value is not None}


def stand_in(key: ModelKey, kind: str, why: str) -> Model | None:
    """The conservative model in place of one that is not believed, or None where there is none."""
    models = profile.shipped("conservative").data["models"]
    for place in (key.place, f"{kind}:*"):
        for layout in (key.layout, "*"):
            found = models.get(str(key._replace(place=place, layout=layout)))
            if found is not None:
                return {**copy.deepcopy(found), "samples": {"kept_out": why}}
    return None


def stands_in(model: Model) -> bool:
    """Whether a model is a conservative one in place of another."""
    return isinstance(model.get("samples", {}).get("kept_out"), str)


def told(models: dict[str, Model]) -> list[str]:
    """One line for each model of a profile that something is kept out of."""
    lines = []
    for key, model in models.items():
        out = model.get("samples", {}).get("kept_out")
        name = " ".join(part for part in ModelKey.parse(key) if part != "*")
        if stands_in(model):
            lines.append(f"{name}: {out}; conservative constants serve in its place")
        elif out := [one for one in out or () if one[1] != _TOGETHER]:  # those are no surprise
            dims, why = out[0]
            more = f" and {len(out) - 1} more" if len(out) > 1 else ""
            lines.append(f"{name} at {_size(dims)}{more}: {why}")
    return lines


def _size(dims: Iterable[int]) -> str:
    return " x ".join(map(str, dims))
