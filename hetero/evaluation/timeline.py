"""A timeline of one pipelined call: when its blocks moved up, were computed and came down.

The call runs on a device whose copies and events are recorded. A thread for each copy waits for its
end, on the host's clock; computing is timed by events of the device.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from hetero import registry
from hetero.calling import planner
from hetero.devices.base import Copy, Device
from hetero.evaluation.calls import Arrays
from hetero.evaluation.page.drawing import element, text
from hetero.ops import benchmark
from hetero.registry import Arguments
from hetero.times import readable

UPLOAD, COMPUTE, DOWNLOAD = "upload", "compute", "download"
# Of the rows; their lightness differs, too.
_FILLS = {UPLOAD: "#9ecae1", COMPUTE: "#636363", DOWNLOAD: "#fdae6b"}
_COPIES = 64  # that go on at a time, at most
_WIDTH, _HEIGHT, _LEFT, _TOP = 480, 36, 80, 30  # pixels of the picture, of a row
_LINE, _LETTERS = 18, 64  # of the title
_DARK = "@media(prefers-color-scheme:dark){svg{filter:invert(.9) hue-rotate(180deg)}}"


class Span(NamedTuple):
    """What was done from one time to another, in seconds from the begin of the call."""

    what: str
    begin: float
    end: float


class _Watched(Copy):
    """A copy of which a thread notes the end."""

    def __init__(self, copy: Copy, what: str, recorded: Recorded) -> None:
        self._recorded = recorded
        begin = time.perf_counter()

        def watch() -> None:
            try:
                copy.wait()
            finally:
                recorded.note(what, begin, time.perf_counter())

        self._end = recorded.threads.submit(watch)

    def wait(self) -> None:
        self._end.result()
        self._recorded.ready()


class Recorded:
    """A device that notes what a pipeline does with it; all else is the device's own.

    Parameters
    ----------
    device : Device
        Active.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._noted: list[Span] = []
        self._computed: list[tuple[Any, Any]] = []
        self._mark: Any = None
        self.threads = ThreadPoolExecutor(_COPIES, "hetero-timeline")
        device.synchronize()
        self._zero, self._begin = device.event(), time.perf_counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def begin_upload(self, *arguments: Any) -> Copy:
        return _Watched(self._device.begin_upload(*arguments), UPLOAD, self)

    def begin_download(self, *arguments: Any) -> Copy:
        return _Watched(self._device.begin_download(*arguments), DOWNLOAD, self)

    def record(self, *arguments: Any) -> Any:
        """The engine records an event when it has begun a step's computation."""
        if self._mark is not None:
            self._computed.append((self._mark, self._device.event()))
            self._mark = None
        return self._device.record(*arguments)

    def ready(self) -> None:
        """What follows on the device's queue is a step's computation."""
        if self._mark is None:
            self._mark = self._device.event()

    def note(self, what: str, begin: float, end: float) -> None:
        """A copy has ended."""
        self._noted.append(Span(what, begin - self._begin, end - self._begin))

    def spans(self) -> list[Span]:
        """All that was done, in the order of its begin."""
        computed = [
            Span(COMPUTE, *(self._device.elapsed(self._zero, mark) for mark in marks))
            for marks in self._computed
        ]
        return sorted([*self._noted, *computed], key=lambda span: span.begin)


def pictured(device: Device) -> tuple[str, list[Span]]:
    """What was computed, in words, and its spans: a call that its operation chose for a picture.

    Raises
    ------
    ValueError
        If no operation has a method for the device that moves blocks.
    """
    for operation in registry.operations():
        own = benchmark.of(operation, "pictured")
        for row in registry.lookup(operation.name):
            if own is not None and row.kind == device.kind and row.blocks == registry.ALWAYS:
                operands = Arrays("host").of(trial := own(device.kind))
                plan = planner.plan_call(
                    operation, operands, dict(trial.options), device.name, row.method
                )
                result = plan.problem.output
                arguments = Arguments(operands, np.empty(result.shape, result.dtype))
                with device.active():
                    row.run((device,), plan.problem, arguments)  # compiles, and touches the result
                    recorded = Recorded(device)
                    row.run((recorded,), plan.problem, arguments)
                    made_of = plan.chosen.made_of
                    return f"{plan.problem}, {row.method}: {made_of}", recorded.spans()
    raise ValueError(f"no operation has a method on {device.kind} that moves blocks")


def svg(title: str, spans: Sequence[Span]) -> str:
    """The spans as a picture, a row for each kind."""
    end = max(span.end for span in spans)
    scale = (_WIDTH - _LEFT - 50) / end
    lines = textwrap.wrap(title, _LETTERS)
    top = _TOP + _LINE * (len(lines) - 1)
    height = top + len(_FILLS) * (_HEIGHT + 8) + 40
    parts = [
        element("style", _DARK),
        element("rect", width=_WIDTH, height=height, fill="white"),
        *(text(line, 10, 20 + _LINE * number) for number, line in enumerate(lines)),
    ]
    for number, (what, fill) in enumerate(_FILLS.items()):
        y = top + number * (_HEIGHT + 8)
        parts.append(text(what, 10, round(y + _HEIGHT / 2 + 5)))
        look = {"fill": fill, "fill_opacity": 0.7, "stroke": "black", "stroke_width": 0.5}
        for span in spans:
            if span.what == what:
                x, wide = _LEFT + span.begin * scale, max((span.end - span.begin) * scale, 0.5)
                parts.append(element("rect", x=x, y=y, width=wide, height=_HEIGHT, **look))
    for tick in range(5):
        at = tick / 4 * end
        x = _LEFT + at * scale
        parts.append(text(readable(at), x, height - 14, text_anchor="middle"))
    return element(
        "svg",
        parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_WIDTH} {height}",
        font_family="sans-serif",
        font_size=13,
    )
