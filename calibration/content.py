"""The content of a profile: what was measured, and what stays of the one before."""

from __future__ import annotations

import datetime
from typing import Any

from hetero import profile, registry
from hetero.calibration import modelling
from hetero.calibration.checkpoint import Checkpoint
from hetero.calibration.failures import Failure
from hetero.calibration.measure.loop import Measured
from hetero.calibration.wanted import Wanted
from hetero.profile import inventory
from hetero.registry.models import ModelKey


def profile_of(
    wanted: Wanted,
    kept: Checkpoint,
    measured: list[Measured],
    failures: list[Failure],
) -> dict[str, Any]:
    """The content of a profile: what was measured, and what stays of the one before."""
    base = wanted.base if wanted.only else None
    stays = base or {"models": {}, "links": {}, "host": {}, "devices": {}}
    links = {**stays["links"], **{name: found.links for name, found in kept.around.items()}}
    before = {ModelKey.parse(key): model for key, model in stays["models"].items()}
    models = before | modelling.models(measured, failures, links, kept.fitted)
    others = {k: v for k, v in stays["host"].items() if k == "blas_sleep"}
    models = modelling.derived(registry.operations(), models, failures)
    pack = kept.pack or stays["host"].get("pack")
    found = {
        "schema_version": profile.SCHEMA_VERSION,
        "name": "measured",
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "quick": wanted.quick and bool(stays.get("quick", True)),
        "units": profile.UNITS,
        "fingerprint": inventory.fingerprint(),
        "devices": {
            name: {key: value for key, value in info.items() if key != "set_aside"}
            for name, info in inventory.devices().items()
        },
        "links": links,
        "host": {
            **others,
            "pack": pack or profile.shipped("conservative").data["host"]["pack"],
            "dispatch": {
                **stays["host"].get("dispatch", {}),
                **{
                    name: found.dispatch
                    for name, found in kept.around.items()
                    if found.dispatch or "*" not in name
                },
            },
        },
        "models": {str(key): model for key, model in models.items()},
    }
    if wanted.only and (missing := _missing(base, found)) != []:
        found["unfinished"] = {
            "why": f"only {', '.join(wanted.only)} was measured anew. Conservative constants serve "
            "for what is missing; 'hetero calibrate' measures it",
            "missing": missing,
        }
    return found


def _missing(base: dict[str, Any] | None, found: dict[str, Any]) -> list[str] | None:
    """What the profile before lacked and this one lacks still; None if that is not known."""
    if base is None:
        return None
    missing = base.get("unfinished", {"missing": []}).get("missing")
    there = {*found["models"], *(f"{place}|links" for place in found["links"])}
    there |= {f"{place}|dispatch" for place in found["host"]["dispatch"]}
    return None if missing is None else [name for name in missing if name not in there]
