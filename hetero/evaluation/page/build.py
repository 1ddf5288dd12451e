"""The page: what is known of one machine, put together."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from hetero import profile, registry
from hetero.calling.planner import OtherMachine
from hetero.evaluation import calls
from hetero.evaluation.page import choices, figures, last, links, machine, methods
from hetero.evaluation.page.drawing import Numbers
from hetero.evaluation.page.markup import document, heading, items, paragraph, side_by_side
from hetero.ops import over_sizes
from hetero.pricing.plan import CPU
from hetero.profile import Profile
from hetero.registry import Operation
from hetero.registry.problem import DEVICE_DTYPES

Progress = Callable[[float, str], None]

_LINKS = (
    "How many bytes a second a copy moves, by its size. Lines are the fitted curves, marks the "
    "measured samples."
)
_ALONE = (
    "Operands where the method computes: nothing is moved. Thick lines are devices, thin ones the "
    "CPU; full marks are measured samples, hollow ones those that the line was not fitted to."
)
_HOST = "Operands and result on the host: what is moved is in the time."
_CHOSEN = "What a call takes for each pair of sizes."
_NO_SAMPLES = "This profile keeps no samples."
_NONE_HERE = "None of the samples is of a problem of these lines."
_UNREADABLE = "What is kept beside the profile is of another form: measure it again."
_NOT_VERIFIED = "None is kept. `hetero verify` measures random problems, and keeps what it finds."


class Page(NamedTuple):
    """A page."""

    html: str  # all of it; it loads nothing
    profile: str  # name of the profile that it shows
    pictures: int  # how many there are


def page(named: str | None = None, progress: Progress | None = None) -> Page:
    """What is known of this machine, or of another one by its profile.

    Parameters
    ----------
    named : str, optional
        A profile that comes with hetero, or a profile's file. Default: this machine.
    progress : callable, optional
        As in `hetero.calibrate`.

    Raises
    ------
    ValueError
        If there is no such profile; the message names those that there are.
    """
    constants, devices = calls.known(named)
    is_here = named is None
    kept = last.read(profile.default_path() if is_here else Path(named))
    show = progress or (lambda part, what: None)
    show(0.0, "links")
    sections = {"The machine": machine.section(constants, devices, is_here)}
    drawn = links.section(links.links(constants))
    sections["Copies to devices and back"] = (
        paragraph(_LINKS) + side_by_side(drawn) if drawn else paragraph("There are none.")
    )
    operations = registry.operations()
    for number, operation in enumerate(operations):
        show(0.05 + 0.95 * number / len(operations), operation.function)
        if content := "".join(_operation(operation, constants, devices)):
            sections[operation.function] = content
    if climbed := kept.get(last.LADDER):
        sections["Ladders of kernels"] = _kept(last.ladders, climbed)
    verified = kept.get(last.VERIFY)
    sections["The last verification"] = (
        _kept(last.verifications, verified) if verified else paragraph(_NOT_VERIFIED)
    )
    html = document(machine.title(devices), machine.trust(constants, is_here), sections)
    return Page(html, constants.name, len(re.findall('<svg [^>]*role="img"', html)))


def _kept(section: Callable[[Any], str], kept: Any) -> str:
    """A section of what is kept, which another version may have written."""
    try:
        return section(kept)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError):
        return paragraph(_UNREADABLE, "warn")


def _operation(operation: Operation, constants: Profile, devices: methods.Devices) -> Iterator[str]:
    """What there is of an operation; nothing where nothing is known."""
    numbers, sampled, name = Numbers(), False, operation.function
    alone, hosted = [], []
    machine = OtherMachine(constants, devices)
    for line in over_sizes.lines(operation):
        for dtype in DEVICE_DTYPES:
            title = f"{line.text}, {dtype}"
            if curves := methods.alone(operation, line, dtype, constants, devices):
                sampled = sampled or any(one.fitted or one.held_out for one in curves)
                drawn = figures.of_curves(f"{name} alone", title, line.axis, curves, numbers)
                alone.append(drawn)
            curves = methods.from_host(operation, line, dtype, machine)
            if {one.device for one in curves} - {CPU}:
                within = f"{name} from the host"
                hosted.append(figures.of_curves(within, title, line.axis, curves, numbers))
    if not alone and not hosted:
        return
    maps, always = choices.maps(operation, machine, numbers)
    yield paragraph(operation.summary, "soft")
    if alone:
        yield heading(3, "Each method alone")
        has_samples = any("samples" in model for model in constants.data["models"].values())
        without = _NONE_HERE if has_samples else _NO_SAMPLES
        yield paragraph(_ALONE if sampled else f"{_ALONE} {without}")
        yield side_by_side(alone)
    if hosted:
        yield heading(3, "Calls from the host")
        yield paragraph(_HOST)
        yield side_by_side(hosted)
    if maps or always:
        yield heading(3, "What is chosen")
        yield paragraph(_CHOSEN)
        yield items(map(escape, always)) if always else ""
        yield side_by_side(maps) if maps else ""
    if drawn := figures.of_errors(operation, constants, numbers):
        yield heading(3, "How far predictions are off, at shapes that were not fitted")
        yield side_by_side(drawn)
