"""What `hetero verify` found last, as figures to read."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from hetero.evaluation.page.html import folded, heading, items, paragraph, table
from hetero.evaluation.report import chosen_over_best

_ERRORS = ("mean", "p95", "worst")


def section(found: Mapping[str, Any]) -> str:
    """What is kept of each verification, by what was verified; markup."""
    return "".join(_one(name, one) for name, one in found.items())


def _one(name: str, found: Mapping[str, Any]) -> str:
    errors = {**found["prediction_error"]}
    for device, kinds in found.get("links", {}).items():
        errors |= {f"{device} {kind}": error for kind, error in kinds.items()}
    rows = [(key, *(f"{error[part]:.0%}" for part in _ERRORS)) for key, error in errors.items()]
    fastest = sorted(found["fastest"].items(), key=lambda item: -item[1])
    parts = [
        heading(3, name),
        paragraph(f"{found['problems']} random problems, measured {found['created']}.", "soft"),
        paragraph(f"{chosen_over_best(found['chosen_over_best'])}."),
        table("fastest of all candidates", ("", "problems"), [(n, str(c)) for n, c in fastest]),
        table("error of the predictions", ("", "mean", "95th percentile", "worst"), rows),
    ]
    if worst := found.get("worst_choices"):
        parts.append(folded("worst choices", items(map(escape, worst))))
    left_out = found.get("left_out", {})
    parts += [paragraph(f"Left out: {device}: {why}", "warn") for device, why in left_out.items()]
    return "".join(parts)
