"""What was measured last on the machine: ladders of kernels, and verifications of its choices.

They are kept in a JSON file of its own, ``<profile>.latest``: kind of result -> key -> what was
measured. The page has a section of each.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from hetero import paths
from hetero.evaluation.page.charts import Row, rows
from hetero.evaluation.page.drawing import Numbers, rate, when
from hetero.evaluation.page.markup import (
    figure,
    folded,
    heading,
    items,
    paragraph,
    side_by_side,
    table,
)
from hetero.evaluation.report import ERRORS, by, chosen_over_best, gained, prefixed, rounded
from hetero.profile import places
from hetero.times import readable

VERIFY, LADDER, COMPARED = "verify", "ladder", "compared"
_LARGEST = 1 << 22  # bytes

log = logging.getLogger("hetero")
_LADDERS = (
    "Kernels on the way from one thread to the best, on operands that lie on the device. Full "
    "marks: what is reached; hollow ones: the most that the measured roof allows for this "
    "number of operations and bytes."
)


# -- Kept ------------------------------------------------------------------------------------------


def file_of(profile: Path) -> Path:
    """The file that is kept with a profile."""
    return profile.with_name(profile.name + ".latest")


def keep_ladder(ladder: dict[str, Any]) -> None:
    """Keep a ladder in place of the one before."""
    key = f"{ladder['operation']} {ladder['dtype']} on {ladder['device']}"
    keep(LADDER, key, ladder)


def keep(kind: str, key: str, found: dict[str, Any]) -> None:
    """Keep a result of this machine in place of the one before; where it cannot be kept, it is not.

    The kind is `VERIFY`, `LADDER` or `COMPARED`; the key says what it is of, such as where the
    operands lie.
    """
    try:
        profile = places.place()
        with paths.locked(profile.with_name(profile.name + ".lock")):
            known = read(profile)
            when = datetime.now(UTC).isoformat(timespec="seconds")
            known.setdefault(kind, {})[key] = {"created": when, **found}
            paths.replace_file(file_of(profile), json.dumps(known).encode())
    except OSError as error:
        log.debug("%s is not kept: %s", kind, error)


def read(profile: Path) -> dict[str, dict[str, Any]]:
    """What is kept with a profile; nothing where there is no such file, or another one."""
    try:
        kept = json.loads(paths.read_file(file_of(profile), _LARGEST))
    except (OSError, ValueError):
        return {}
    is_ours = isinstance(kept, dict) and all(isinstance(v, dict) for v in kept.values())
    return kept if is_ours else {}


# -- Shown -----------------------------------------------------------------------------------------


def ladders(kept: Mapping[str, Mapping[str, Any]]) -> str:
    """Every ladder that is kept, as `hetero.evaluation.ladder.ladder` gives it; markup."""
    return paragraph(_LADDERS) + "".join(map(_ladder, kept.values()))


def _ladder(found: Mapping[str, Any]) -> str:
    roof = found["roof"]
    text = (
        f"One {found['what']}, measured {when(found['created'])}. The roof: "
        f"{prefixed(roof['flops_per_second'])}FLOP/s ({roof['how']}) and "
        f"{rate(roof['bytes_per_second'])} (a copy)."
    )
    title = f"{found['operation']} {found['dtype']} on {found['device']} ({found['name']})"
    numbers, pictures = Numbers(), []
    for size in dict.fromkeys(row["size"] for row in found["rows"]):
        at = [row for row in found["rows"] if row["size"] == size]
        if any("share" in row for row in at):
            pictures.append(_rungs(title, at, roof, numbers))
    ideas = {row["method"]: row["idea"] for row in found["rows"] if row.get("idea")}
    lines = items(f"<b>{escape(name)}</b>: {escape(idea)}" for name, idea in ideas.items())
    parts = [heading(3, title), paragraph(text), side_by_side(pictures)]
    return "".join([*parts, folded("what each step brings", lines) if ideas else ""])


def _rungs(
    title: str, at: Sequence[Mapping[str, Any]], roof: Mapping[str, Any], numbers: Numbers
) -> str:
    """One size, in the unit of what the roof says is scarce."""
    timed = [row for row in at if "share" in row]  # all but that of the CPU
    flops, nbytes = (timed[-1][of] / roof[of] for of in ("flops_per_second", "bytes_per_second"))
    what, unit = ("bytes_per_second", "B/s") if nbytes > flops else ("flops_per_second", "FLOP/s")
    drawn = [
        Row(
            f"{'or' if row.get('instead_of') else row['number']} {row['method']}",
            numbers[row["method"]],
            [row[what]],
            [row[what] / row["share"]] if row["share"] else [],
            readable(row["seconds"]),
        )
        for row in timed
    ]
    dims = by(at[0]["dims"])
    description = "; ".join(f"{one.name}: {one.note}" for one in drawn) + "."
    picture = rows(f"{title}: {dims}", description, unit, prefixed, drawn)
    cells = [
        (
            row["method"],
            readable(row["seconds"]),
            rounded(row[what] * 1e-9),
            "-" if row["gain"] is None else gained(row, rounded(row["gain"])),
            f"{row['share']:.1%}" if row["share"] < 0.095 else f"{row['share']:.0%}",
        )
        for row in timed
    ]
    head = ("", "time", f"G{unit}", "gain", "of the roof")
    left_out = [f"{row['method']} is left out: {row['reason']}." for row in at if "reason" in row]
    return figure(picture, dims, left_out, folded("as a table", table("", head, cells)))


def verifications(kept: Mapping[str, Mapping[str, Any]]) -> str:
    """What `hetero verify` found last, by what was verified; markup."""
    return "".join(_verification(name, found) for name, found in kept.items())


def _verification(name: str, found: Mapping[str, Any]) -> str:
    errors = {**found["prediction_error"]}
    for device, kinds in found.get("links", {}).items():
        errors |= {f"{device} {kind}": error for kind, error in kinds.items()}
    cells = [(key, *(f"{error[part]:.0%}" for part in ERRORS)) for key, error in errors.items()]
    fastest = sorted(found["fastest"].items(), key=lambda item: -item[1])
    parts = [
        heading(3, name),
        paragraph(
            f"{found['problems']} random problems, measured {when(found['created'])}.", "soft"
        ),
        paragraph(f"{chosen_over_best(found['chosen_over_best'])}."),
        table("fastest of all candidates", ("", "problems"), [(n, str(c)) for n, c in fastest]),
        table("error of the predictions", ("", "mean", "95th percentile", "worst"), cells),
    ]
    if worst := found.get("worst_choices"):
        parts.append(folded("worst choices", items(map(escape, worst))))
    left_out = found.get("left_out", {})
    parts += [paragraph(f"Left out: {device}: {why}", "warn") for device, why in left_out.items()]
    return "".join(parts)
