"""The rate of copies over their size, as a profile tells it, and the samples it rests on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from hetero.evaluation.page.axes import in_bytes, rate
from hetero.evaluation.page.html import figure, table
from hetero.evaluation.page.lines import Drawn, Labels, lines
from hetero.evaluation.page.svg import Names
from hetero.pricing.plan import readable
from hetero.profile import Profile
from hetero.registry.models import bind_link

_SIZES = [round(2.0 ** (step / 2)) for step in range(2 * 10, 2 * 30 + 1)]  # bytes
_LARGE = 1 << 28  # bytes


class LinkCurve(NamedTuple):
    """One kind of copy.

    Attributes
    ----------
    memory : str
        Such as "pinned".
    points, samples : list of (bytes, bytes per second)
        Fitted and measured.
    floor : float
        Seconds of the smallest copy.
    rate : float
        Bytes per second of a large one.
    error : dict
        Relative errors of the fit, as `Profile.residuals`; or empty.
    """

    memory: str
    points: list[tuple[float, float]]
    samples: list[tuple[float, float]]
    floor: float
    rate: float
    error: dict[str, float]


class Link(NamedTuple):
    """All kinds of copies one way: device is "cuda:0", or "cuda*2" for each of two at once."""

    device: str
    direction: str
    curves: list[LinkCurve]


def links(constants: Profile) -> list[Link]:
    """Every direction of every device, and of several at once."""
    return [
        Link(
            device,
            direction,
            [
                _curve(memory, model, _quiet(constants, device, direction, memory))
                for memory, model in kinds.items()
            ],
        )
        for device, directions in constants.data["links"].items()
        for direction, kinds in directions.items()
        if kinds
    ]


def _quiet(
    constants: Profile, device: str, direction: str, memory: str
) -> Callable[[int], float] | None:
    """The same link alone, on a quiet machine; None where that is not known."""
    kind, several, _ = device.partition("*")
    alone = f"{kind}:0" if several and ":" not in device else device
    try:
        return constants.curve(alone, direction, memory.partition(" ")[0])
    except KeyError:
        return None


def _curve(memory: str, model: dict[str, Any], quiet: Callable[[int], float] | None) -> LinkCurve:
    seconds = bind_link(model)
    samples = list(_samples(model.get("samples") or {}, quiet))
    sizes = _SIZES
    if samples:  # what was not measured is not drawn
        least, most = min(n for n, _ in samples), max(n for n, _ in samples)
        sizes = [n for n in sizes if least * 0.99 <= n <= most * 1.01]
    return LinkCurve(
        memory,
        [(n, n / seconds(n)) for n in sizes if seconds(n) > 0.0],
        samples,
        seconds(1),
        _LARGE / seconds(_LARGE),
        model.get("residuals", {}),
    )


def _samples(
    samples: dict[str, Any], quiet: Callable[[int], float] | None
) -> Iterator[tuple[float, float]]:
    """Of quiet links seconds are kept; of those in company how many times as long it takes."""
    sizes = samples.get("bytes", ())
    seconds = samples.get("seconds", ())
    if quiet is not None and "times" in samples:
        seconds = [times * quiet(n) for n, times in zip(sizes, samples["times"], strict=True)]
    for nbytes, found in zip(sizes, seconds, strict=False):
        if found > 0.0:
            yield nbytes, nbytes / found


def section(found: list[Link], names: Names) -> list[str]:
    """A figure for each device and direction; markup."""
    return [_figure(link, names) for link in found if any(c.points for c in link.curves)]


def _figure(link: Link, names: Names) -> str:
    kind, several, number = link.device.partition("*")
    together = several and number.isdecimal()
    title = f"{link.direction}, {f'each of {number} {kind} at once' if together else link.device}"
    drawn = [
        Drawn(one.memory, one.points, number, one.samples, is_thick=True)
        for number, one in enumerate(link.curves)
        if one.points
    ]
    told = "; ".join(f"{one.memory}: {_told(one)}" for one in link.curves)
    labels = Labels("bytes", "bytes moved in a second", in_bytes, rate)
    rows = [
        (one.memory, readable(one.floor), rate(one.rate), _percent(one.error))
        for one in link.curves
    ]
    more = table(
        "", ("memory", "smallest copy", f"{in_bytes(_LARGE)} at", "error of the fit"), rows
    )
    return figure(lines(names, f"Rate of the {title}", told, labels, drawn), title, (), more)


def _told(curve: LinkCurve) -> str:
    return f"{readable(curve.floor)} for the smallest copy, {rate(curve.rate)} for large ones"


def _percent(error: dict[str, float]) -> str:
    return f"{error['mean']:.0%}" if "mean" in error else "-"
