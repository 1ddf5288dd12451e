"""A timeline of one pipelined call: when its blocks moved up, were computed and came down.

The call runs on a device whose copies and events are recorded. A thread for each copy waits for its
end, on the host's clock; computing is timed by events of the device.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hetero import registry
from hetero.calling import planner
from hetero.devices.base import Copy, Device
from hetero.evaluation import draws
from hetero.ops import benchmark
from hetero.registry import Arguments

UPLOAD, COMPUTE, DOWNLOAD = "upload", "compute", "download"
_ROWS = (UPLOAD, COMPUTE, DOWNLOAD)
_FILLS = ("#9ecae1", "#636363", "#fdae6b")  # also told apart without colour, by their lightness
_WIDTH, _HEIGHT, _LEFT, _TOP = 900, 36, 90, 40  # pixels of the picture, of a row


class Span(NamedTuple):
    """What was done from one time to another, in seconds from the begin of the call."""

    what: str
    begin: float
    end: float


class _Watched(Copy):
    """A copy of which a thread notes the end."""

    def __init__(self, copy: Copy, what: str, recorded: Recorded) -> None:
        self._copy, self._what, self._recorded = copy, what, recorded
        self._begin = time.perf_counter()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._watch, name="hetero-timeline")
        self._thread.start()

    def _watch(self) -> None:
        try:
            self._copy.wait()
        except BaseException as error:
            self._error = error
        self._recorded.note(self._what, self._begin, time.perf_counter())

    def wait(self) -> None:
        self._thread.join()
        if self._error is not None:
            raise self._error
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
                operands = draws.Arrays("host").of(trial := own(device.kind))
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
    height = _TOP + len(_ROWS) * (_HEIGHT + 8) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="10" y="22">{_escaped(title)}</text>',
    ]
    for number, (what, fill) in enumerate(zip(_ROWS, _FILLS, strict=True)):
        y = _TOP + number * (_HEIGHT + 8)
        parts.append(f'<text x="10" y="{y + _HEIGHT / 2 + 5:.0f}">{what}</text>')
        parts += [
            f'<rect x="{_LEFT + span.begin * scale:.1f}" y="{y}" '
            f'width="{max((span.end - span.begin) * scale, 0.5):.1f}" height="{_HEIGHT}" '
            f'fill="{fill}" fill-opacity="0.7" stroke="black" stroke-width="0.5"/>'
            for span in spans
            if span.what == what
        ]
    foot = height - 14
    for tick in range(6):
        at = tick / 5 * end
        x = _LEFT + at * scale
        parts.append(f'<text x="{x:.1f}" y="{foot}" text-anchor="middle">{at * 1e3:.3g} ms</text>')
    return "\n".join([*parts, "</svg>", ""])


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
