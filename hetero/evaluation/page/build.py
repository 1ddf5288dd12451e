"""The page: what is known of one machine, put together."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from hetero import profile, registry
from hetero.calling.planner import OtherMachine
from hetero.evaluation import calls
from hetero.evaluation.page import (
    answers,
    choices,
    compared,
    figures,
    last,
    links,
    machine,
    methods,
)
from hetero.evaluation.page.drawing import Numbers
from hetero.evaluation.page.markup import document, folded, heading, items, paragraph, side_by_side
from hetero.ops import benchmark, over_sizes
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
_CHOSEN = (
    "What a call takes for each pair of sizes; where two are within 10 %, what its neighbour takes."
)
_NO_SAMPLES = "This profile keeps no samples."
_NONE_HERE = "None of the samples is of a problem of these lines."
_MOST = 1e30  # that an axis can show
_OTHER_FORM = KeyError, TypeError, ValueError, AttributeError, ArithmeticError, IndexError
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
    sections: dict[str, str] = {}
    others = _others(kept.get(last.COMPARED, {}))
    where: list[tuple[str, str]] = []
    operations = registry.operations()
    for number, operation in enumerate(operations):
        show(0.95 * number / len(operations), operation.function)
        if content := "".join(_operation(operation, constants, devices, others, where)):
            sections[operation.function] = content
    if drawn := links.section(links.links(constants)):
        sections["Copies to devices and back"] = paragraph(_LINKS) + side_by_side(drawn)
    if climbed := kept.get(last.LADDER):
        sections["Ladders of kernels"] = _kept(last.ladders, climbed)
    verified = kept.get(last.VERIFY)
    sections["The last verification"] = (
        _kept(last.verifications, verified) if verified else paragraph(_NOT_VERIFIED)
    )
    about = machine.section(constants, devices, is_here)
    sections["The machine"] = folded("what is known of it", about)
    first = _first(constants, devices, where, named, verified or {}, bool(others))
    html = document(machine.title(devices), first + machine.trust(constants, is_here), sections)
    return Page(html, constants.name, len(re.findall('<svg [^>]*role="img"', html)))


def _first(
    constants: Profile,
    devices: methods.Devices,
    where: list[tuple[str, str]],
    named: str | None,
    verified: answers.Verified,
    is_compared: bool,
) -> str:
    """The answers that the page opens with; of a verification in another form without it."""
    for known in (verified, {}):
        try:
            command = answers.advice(constants, named, known, is_compared)
            return answers.tiles(constants, devices, where, known, command)
        except _OTHER_FORM:
            continue
    return ""


def _others(kept: Mapping[str, Any]) -> dict[str, compared.Along]:
    """What `hetero.evaluation.page.compared` keeps, without what another version may have kept."""
    try:
        found = {
            key: {
                name: [(n, t) for n, t in points if 0 < n < _MOST and 0 < t < _MOST]
                for name, points in one["seconds"].items()
            }
            for key, one in kept.items()
        }
    except _OTHER_FORM:
        return {}
    return {key: {n: points for n, points in one.items() if points} for key, one in found.items()}


def _kept(section: Callable[[Any], str], kept: Any) -> str:
    """A section of what is kept, which another version may have written."""
    try:
        return section(kept)
    except _OTHER_FORM:
        return paragraph(_UNREADABLE, "warn")


def _operation(
    operation: Operation,
    constants: Profile,
    devices: methods.Devices,
    others: Mapping[str, compared.Along],
    where: list[tuple[str, str]],
) -> Iterator[str]:
    """What there is of an operation; nothing where nothing is known. ``where`` gets from where on
    a device pays."""
    numbers, sampled, name = Numbers(), False, operation.function
    alone, hosted = [], []
    machine = OtherMachine(constants, devices)
    for line in over_sizes.lines(operation):
        for dtype in DEVICE_DTYPES:
            title = f"{line.text}, {dtype}"
            other = others.get(compared.key(operation, line, dtype))
            called = methods.from_host(operation, line, dtype, machine)
            on_device = bool({one.device for one in called} - {CPU})
            if curves := methods.alone(operation, line, dtype, constants, devices):
                sampled = sampled or any(one.fitted or one.held_out for one in curves)
                within, drawn_too = f"{name} alone", None if on_device else other
                drawn = figures.of_curves(within, title, line.axis, curves, numbers, drawn_too)
                alone.append(drawn)
            if on_device:
                within = f"{name} from the host"
                hosted.append(figures.of_curves(within, title, line.axis, called, numbers, other))
            if called and dtype == benchmark.dtype_of(operation):
                where.append((f"{name}, {title}", answers.pays(called, line.axis)))
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
