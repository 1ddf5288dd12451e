"""The rate of copies over their size, as a profile tells it, and the samples it rests on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from hetero.evaluation.page.charts import Drawn, Labels, Points, lines
from hetero.evaluation.page.drawing import in_bytes, mean_error, rate
from hetero.evaluation.page.markup import figure, table
from hetero.profile import Profile
from hetero.registry.models import bind_link
from hetero.times import readable

_SIZES = [round(2.0 ** (step / 2)) for step in range(2 * 10, 2 * 30 + 1)]  # bytes
_LARGE = 1 << 28  # bytes


class LinkCurve(NamedTuple):
    """Copies by one kind of the host's memory: bytes per second over bytes."""

    memory: str
    points: Points  # fitted
    samples: Points  # measured
    floor: float  # seconds of the smallest copy
    rate: float  # bytes per second of a large one
    error: dict[str, float]  # relative errors of the fit, as `Profile.residuals`; or empty


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
    samples = [*_samples(model.get("samples") or {}, quiet)]
    sizes = _SIZES
    if samples:  # what was not measured is not drawn
        least, most = min(n for n, _ in samples), max(n for n, _ in samples)
        sizes = [n for n in sizes if least * 0.99 <= n <= most * 1.01]
    points = [(n, n / seconds(n)) for n in sizes if seconds(n) > 0.0]
    large, error = _LARGE / seconds(_LARGE), model.get("residuals", {})
    return LinkCurve(memory, points, samples, seconds(1), large, error)


def _samples(
    samples: dict[str, Any], quiet: Callable[[int], float] | None
) -> Iterator[tuple[float, float]]:
    """Of quiet links seconds are kept; of those in company how many times as long it takes."""
    sizes = samples.get("bytes", ())
    seconds = samples.get("seconds", ())
    if quiet is not None and "times" in samples:
        seconds = [times * quiet(n) for n, times in zip(sizes, samples["times"], strict=True)]
    for nbytes, taken in zip(sizes, seconds, strict=False):
        if taken > 0.0:
            yield nbytes, nbytes / taken


def section(found: list[Link]) -> list[str]:
    """A figure for each device and direction; markup."""
    return [_figure(link) for link in found if any(c.points for c in link.curves)]


def _figure(link: Link) -> str:
    kind, several, number = link.device.partition("*")
    together = several and number.isdecimal()
    title = f"{link.direction}, {f'each of {number} {kind} at once' if together else link.device}"
    drawn = [
        Drawn(one.memory, one.points, number, one.samples, is_thick=True)
        for number, one in enumerate(link.curves)
        if one.points
    ]
    description = "; ".join(
        f"{one.memory}: {readable(one.floor)} for the smallest copy, {rate(one.rate)} for large "
        "ones"
        for one in link.curves
    )
    labels = Labels("bytes", "bytes moved in a second", in_bytes, rate)
    picture = lines(f"Rate of the {title}", description, labels, drawn)
    head = ("memory", "smallest copy", f"{in_bytes(_LARGE)} at", "error of the fit")
    cells = [(c.memory, readable(c.floor), rate(c.rate), mean_error(c.error)) for c in link.curves]
    return figure(picture, title, (), table("", head, cells))
