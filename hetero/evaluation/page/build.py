"""The page: what is known of one machine, put together."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from hetero import devices as backends
from hetero import profile, registry
from hetero.arrays import HOST
from hetero.errors import ProfileError
from hetero.evaluation import latest
from hetero.evaluation.page import choices, ladders, links, machine, marks, methods, verified
from hetero.evaluation.page.choice_figures import choice_figure
from hetero.evaluation.page.errors import error_figure
from hetero.evaluation.page.html import document, figures, heading, items, paragraph
from hetero.evaluation.page.marks import Numbers
from hetero.evaluation.page.method_figures import method_figure
from hetero.evaluation.page.methods import Devices
from hetero.evaluation.page.svg import Names
from hetero.ops import over_sizes
from hetero.pricing.plan import CPU
from hetero.profile import Profile, inventory
from hetero.registry import Operation
from hetero.registry.problem import DEVICE_DTYPES

Progress = Callable[[float, str], None]

_LINKS = (
    "How many bytes a second a copy moves, by its size. Lines are the fitted curves, marks the "
    "measured samples."
)
_ALONE = (
    "Operands where the method computes: nothing is moved. Thick lines are devices, thin ones the "
    "CPU; full marks are measured samples that the line goes through, hollow ones samples it does "
    "not know."
)
_HOST = "Operands and result on the host: what is moved is in the time."
_CHOSEN = "What a call takes for each pair of sizes."
_NO_SAMPLES = "This profile keeps no samples."
_NONE_HERE = "None of the samples is of a problem of these lines."
_UNREADABLE = "What is kept beside the profile is of another form: measure it again."
_NOT_VERIFIED = "None is kept. `hetero verify` measures random problems, and keeps what it finds."


class Page(NamedTuple):
    """A page.

    Attributes
    ----------
    html : str
        All of it; it loads nothing.
    profile : str
        Name of the profile that it shows.
    pictures : int
        How many there are.
    """

    html: str
    profile: str
    pictures: int


class _Known(NamedTuple):
    """What the page is of."""

    constants: Profile
    devices: Devices
    is_here: bool
    latest: dict[str, dict[str, Any]]


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
    known = _known(named)
    names = Names()
    show = progress or (lambda part, what: None)
    show(0.0, "links")
    sections = {"The machine": machine.section(*known[:3])}
    drawn = links.section(links.links(known.constants), names)
    sections["Copies to devices and back"] = (
        paragraph(_LINKS) + figures(drawn) if drawn else paragraph("There are none.")
    )
    operations = registry.operations()
    for number, operation in enumerate(operations):
        show(0.05 + 0.95 * number / len(operations), operation.function)
        if content := "".join(_operation(operation, known, names)):
            sections[operation.function] = content
    if found := known.latest.get(latest.LADDER):
        sections["Ladders of kernels"] = _kept(ladders.section, found, names)
    found = known.latest.get(latest.VERIFY)
    sections["The last verification"] = (
        _kept(verified.section, found) if found else paragraph(_NOT_VERIFIED)
    )
    first = machine.trust(known.constants, known.is_here)
    html = document(machine.title(known.devices), sections, first, marks.hatches())
    return Page(html, known.constants.name, len(re.findall('<svg [^>]*role="img"', html)))


def _known(named: str | None) -> _Known:
    import hetero.ops  # noqa: F401  # registers them

    if named is None:
        backends.proven()
        kept = latest.read(profile.default_path())
        return _Known(profile.current(), inventory.devices(), True, kept)
    try:
        constants = profile.named(named)
    except (ProfileError, OSError) as error:
        raise ValueError(f"--profile: {error}") from None
    kept = latest.read(Path(named)) if Path(named).exists() else {}
    return _Known(constants, constants.machine() or inventory.devices(), False, kept)


def _kept(section: Callable[..., str], *found: Any) -> str:
    """A section of what is kept, which another version may have written."""
    try:
        return section(*found)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError):
        return paragraph(_UNREADABLE, "warn")


def _operation(operation: Operation, known: _Known, names: Names) -> Iterator[str]:
    """What there is of an operation; nothing where nothing is known."""
    numbers, sampled = Numbers(), False
    alone, hosted = [], []
    for line in over_sizes.lines(operation):
        for dtype in DEVICE_DTYPES:
            given = operation, line, dtype, known.constants, known.devices
            of = f"{line.text}, {dtype}", line.axis
            if found := methods.alone(*given):
                sampled = sampled or any(one.fitted or one.held_out for one in found)
                within = f"{operation.function} alone"
                alone.append(method_figure(within, *of, found, numbers, names))
            found = methods.from_host(*given)
            if {one.device for one in found} - {CPU}:
                within = f"{operation.function} from the host"
                hosted.append(method_figure(within, *of, found, numbers, names))
    if not alone and not hosted:
        return
    maps, always = _maps(operation, known, numbers, names)
    yield paragraph(operation.summary, "soft")
    if alone:
        yield heading(3, "Each method alone")
        models = known.constants.data["models"].values()
        without = _NONE_HERE if any("samples" in model for model in models) else _NO_SAMPLES
        yield paragraph(_ALONE if sampled else f"{_ALONE} {without}")
        yield figures(alone)
    if hosted:
        yield heading(3, "Calls from the host")
        yield paragraph(_HOST)
        yield figures(hosted)
    if maps or always:
        yield heading(3, "What is chosen")
        yield paragraph(_CHOSEN)
        yield items(map(escape, always)) if always else ""
        yield figures(maps) if maps else ""
    if (drawn := error_figure(operation, known.constants, numbers, names)) is not None:
        yield heading(3, "How far predictions are off, at shapes that were not fitted")
        yield figures([drawn])


def _maps(
    operation: Operation, known: _Known, numbers: Numbers, names: Names
) -> tuple[list[str], list[str]]:
    """Figures of maps with several choices, and lines of text on those with one."""
    drawn, always = [], []
    others = [n for n, i in known.devices.items() if n != CPU and not i.get("is_host_cpu")]
    for plane in over_sizes.planes(operation):
        for on, dtype in itertools.product((HOST, *others[:1]), DEVICE_DTYPES):
            given = operation, plane, dtype, known.constants, known.devices, on
            found = choices.choices(*given)
            of = operation.function, f"{plane.text}, {dtype}, operands on {on}"
            chosen = list(found.counts())
            if len(chosen) > 1:
                drawn.append(choice_figure(*of, plane, found, numbers, names))
            elif chosen != [choices.NONE]:
                always.append(f"{of[1]}: always {chosen[0]}")
    return drawn, always
