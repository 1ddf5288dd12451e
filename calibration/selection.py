"""What is measured where only some names are asked for: operations, devices, methods."""

from __future__ import annotations

from collections.abc import Iterable

from hetero.calibration.portions import Portion
from hetero.ops.cases import Case, Place


def names_of(portion: Portion, case: Case) -> set[str]:
    """The names that stand for a case."""
    operation = portion.operation
    return {operation.name, operation.function, case.implementation.method} | place_names(
        portion.place
    )


def place_names(place: Place) -> set[str]:
    """The names that stand for all that is of a place: "cuda:0" and "cuda"."""
    return {place.name, place.kind}


def selected(portions: Iterable[Portion], only: Iterable[str]) -> list[Portion]:
    """The cases that have one of these names.

    Raises
    ------
    ValueError
        If a name stands for nothing that can be measured; the message lists those that do.
    """
    portions, only = list(portions), set(only)
    known = {
        name: None
        for portion in portions
        for case in portion.cases
        for name in sorted(names_of(portion, case))
    }
    for name in sorted(only - known.keys()):
        valid = ", ".join(map(repr, sorted(known)))
        raise ValueError(f"only must name what can be measured here: {valid}; got {name!r}")
    found = [
        portion._replace(cases=tuple(c for c in portion.cases if names_of(portion, c) & only))
        for portion in portions
    ]
    return [portion for portion in found if portion.cases]
