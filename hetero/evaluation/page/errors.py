"""How far predictions are off, as the profile has it of each model."""

from __future__ import annotations

from statistics import median

from hetero.evaluation.page.html import figure
from hetero.evaluation.page.marks import Numbers
from hetero.evaluation.page.rows import Row, rows
from hetero.evaluation.page.svg import Names
from hetero.evaluation.report import OF_METHODS
from hetero.profile import Profile
from hetero.registry import Operation
from hetero.registry.models import ModelKey

_LEAST = 0.001  # relative error that is told from none


def error_figure(
    operation: Operation, constants: Profile, numbers: Numbers, names: Names
) -> str | None:
    """A row for each method on each device, with the errors of its models; None where none are
    known. Markup."""
    found: dict[str, list[dict[str, float]]] = {}
    for text, error in constants.residuals().items():
        try:
            key = ModelKey.parse(text)
        except ValueError:  # of a link
            continue
        if key.operation == operation.name and "mean" in error:
            found.setdefault(f"{key.method}, {key.place}", []).append(error)
    if not found:
        return None
    drawn = [
        Row(
            name,
            numbers[name],
            [max(one["mean"], _LEAST) for one in errors],
            [max(one["p95"], _LEAST) for one in errors if "p95" in one],
            f"{median(one['mean'] for one in errors):.0%}",
        )
        for name, errors in found.items()
    ]
    told = "; ".join(f"{one.name}: {one.told} in the median model" for one in drawn) + "."
    title = f"{operation.function}: relative errors of its models"
    picture = rows(names, title, told, "relative error", _percent, drawn)
    lines = [
        "Full marks: the mean; hollow ones: the 95th percentile. There is a model for each dtype "
        "and layout; at the end is the median of the means. Acceptable: "
        f"{OF_METHODS.mean:.0%} in the mean."
    ]
    return figure(picture, "all models", lines)


def _percent(value: float) -> str:
    return f"{value * 100:.3g}%"
