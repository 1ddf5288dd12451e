"""Models fitted to samples, and the profile's content made of them.

A model that cannot be fitted becomes a `Failure`; all others are made.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from hetero import profile, registry
from hetero.calibration import fit
from hetero.calibration.measure.loop import Measured
from hetero.calibration.overheads import Overheads
from hetero.calibration.progress import Failure
from hetero.calibration.request import Request
from hetero.calibration.worklist import module_of
from hetero.ops.cases import Passes, TimedSolves
from hetero.pricing import pricing
from hetero.profile import Profile, inventory
from hetero.registry import Operation
from hetero.registry.models import ModelKey

_LEAST_REST = 0.05  # of a set-up, that is left at least when moves are subtracted

Model = dict[str, Any]


def models(
    measured: list[Measured],
    failures: list[Failure],
    links: dict[str, Any] | None = None,
) -> dict[ModelKey, Model]:
    """The models fitted to samples, in the order in which these were taken.

    By ``links``, link models of a profile, those of several devices leave out what is moved.
    """
    constants = Profile({"name": "", "devices": {}, "links": links or {}})
    fitted: dict[ModelKey, Model] = {}
    for one in measured:
        try:
            still = unmoved(one, constants)
            model = fitted[one.key] = _model(still or one, fitted)
            if still is not None:
                model["moves_apart"] = True
        except Exception as error:
            row = one.case.implementation
            failures.append(Failure(row.operation, one.place.name, str(one.case), error))
    return fitted


def unmoved(one: Measured, constants: Profile) -> Measured | None:
    """Samples of several devices without the moves of operands, which their links predict better.

    The sum of both stays as measured. None where the samples contain no moves, and where the links
    are not known.
    """
    (case, place, samples), how = one, one.case.how
    if len(place.devices) < 2 or not isinstance(how, TimedSolves):
        return None

    def rest(dims: tuple[int, ...], seconds: float) -> float:
        moved = pricing.to_all(case.problem(*dims), place.info, constants)
        whole = sum(sum(part.values()) for part in moved)
        return max(seconds - whole, _LEAST_REST * seconds)

    part = "seconds" if how.few == how.many else "setup"  # where a solve is one step
    try:
        left = {dims: rest(dims, seconds) for dims, seconds in getattr(samples, part).items()}
    except KeyError:
        return None
    return one._replace(samples=replace(samples, **{part: left}))


def _model(one: Measured, before: dict[ModelKey, Model]) -> Model:
    """The model of one case; ``before`` has the model that it refers to."""
    (case, place, samples), how = one, one.case.how
    if isinstance(how, TimedSolves):
        return fit.solve(case.axes, samples.setup, samples.seconds)
    if isinstance(how, Passes):
        seconds, held_out = samples.seconds, samples.held_out
        return fit.passes(how.form, how.block, seconds, held_out, list(how.knots))
    if how.by_estimate:

        def estimate(dims: tuple[int, ...]) -> float:
            return case.implementation.work(case.problem(*dims), place.info).estimate

        return fit.waves(case.axes, samples.seconds, samples.held_out, samples.host, estimate)
    if how.reference is None:
        return fit.surface(case.axes, samples.seconds, samples.held_out)
    reference = before.get(one.key._replace(layout=how.reference))
    if reference is None:
        raise LookupError(f"there is no model of {how.reference!r} to compare it with")
    return fit.surface_by_ratio(reference, samples.seconds, samples.held_out)


def derived(
    operations: Iterable[Operation], models: dict[ModelKey, Model], failures: list[Failure]
) -> dict[ModelKey, Model]:
    """All models, with those that operations derive from others."""
    made = dict(models)
    for operation in operations:
        make = getattr(module_of(operation), "derived", lambda models: {})
        try:
            made.update(make(models))
        except Exception as error:
            failures.append(Failure(operation.name, "", "derived models", error))
    return made


def profile_of(
    request: Request,
    costs: Overheads,
    measured: list[Measured],
    failures: list[Failure],
) -> dict[str, Any]:
    """The content of a profile: what was measured, and what stays of the one before."""
    conservative = profile.shipped("conservative").data
    stays: dict[str, Any] = {"models": {}, "links": {}, "host": {}}
    if request.only:
        stays = request.base or conservative
    links = {**stays["links"], **costs.links}
    before = {ModelKey.parse(key): model for key, model in stays["models"].items()}
    made = before | models(measured, failures, links)
    made = derived(registry.operations(), made, failures)
    return {
        "schema_version": profile.SCHEMA_VERSION,
        "name": "measured",
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "quick": request.quick and bool(stays.get("quick", True)),
        "units": profile.UNITS,
        "fingerprint": inventory.fingerprint(),
        "devices": {
            name: {key: value for key, value in info.items() if key != "set_aside"}
            for name, info in inventory.devices().items()
        },
        "links": links,
        "host": {
            "pack": costs.pack or stays["host"].get("pack") or conservative["host"]["pack"],
            "dispatch": {**stays["host"].get("dispatch", {}), **costs.dispatch},
        },
        "models": {str(key): model for key, model in made.items()},
    }
