"""Remembered convolutions of device arrays with small host filters; see `hetero.ops.express`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from hetero import planner
from hetero.arrays import Operand, alignment
from hetero.errors import DeviceError
from hetero.ops import express
from hetero.ops.express import MISS, Library, learn_library

_forced = planner.forced.get


class FilterExpress:
    """The remembered calls.

    Attributes
    ----------
    find : dict
        Type of image -> ``find[type(image)](image, rest)``: the result, or `MISS`. ``rest`` is all
        else that a call depends on, hashable.
    """

    def __init__(self) -> None:
        self.find: dict[type, Callable[[Any, Any], Any]] = {}
        self._entries: dict[type, dict[Any, Callable[..., Any]]] = {}
        self._lock = threading.Lock()

    def learn(
        self, plan: planner.Plan, request: Any, image: Any, operand: Operand, rest: Any, now: int
    ) -> None:
        """Remember a call that just ran the general way, if it can be done this way.

        Parameters
        ----------
        plan : Plan
        request : Request
            With a filter whose values are known.
        image, operand
            The caller's image and its description.
        rest
            As for ``find``.
        now : int
            Of the plans, see `planner.generation`, before the plan was made.
        """
        from hetero import devices
        from hetero.filtering.device import prepared_direct
        from hetero.transfer import needs_synchronizing

        chosen, problem, kind = plan.chosen, plan.problem, type(image)
        library = learn_library(kind)
        if (
            library is None
            or (chosen.implementation.kind, chosen.method) != ("cuda", "direct")
            or not (library.usable is None or library.usable(image))
            or not (operand.location == problem.output.location == chosen.device)
            or needs_synchronizing(operand)
            or _forced() is not None
            or devices.set_aside(chosen.device)
        ):
            return
        with self._lock:
            if kind not in self.find:
                self._entries[kind] = planner.shortcut_table()
                self.find[kind] = _finder(library, self._entries[kind])
        key, bits = (library.facts(image, image, None), rest), operand.pointer & 15
        device = devices.get(chosen.device)
        try:
            with device.active():
                known = self._entries[kind].get(key)
                here = express.current_context()
                launches = known.of.get(here, {}) if known else {}  # type: ignore[attr-defined]
                if bits in launches:
                    return
                launch = prepared_direct(device, problem, request, alignment(bits))
                entry = _entry(device, library, {**launches, bits: launch}, problem.output)
        except DeviceError:  # the call itself failed too, and the CPU answered
            return
        planner.remember(self._entries[kind], key, entry, now)


def _finder(library: Library, entries: dict[Any, Callable[..., Any]]) -> Callable[[Any, Any], Any]:
    facts, usable, ready = library.facts, library.usable, library.ready

    def find(image: Any, rest: Any) -> Any:
        if _forced() is not None or not ready() or not (usable is None or usable(image)):
            return MISS
        run = entries.get((facts(image, image, None), rest))
        return MISS if run is None else run(image)

    return find


def _entry(
    device: Any, library: Library, launches: dict[int, Callable[[int, int], None]], output: Operand
) -> Callable[[Any], Any]:
    """A remembered call, ``run(image)``; ``launches`` by the lowest bits of both addresses."""
    context, current = express.current_context(), library.context
    shape, dtype = output.shape, output.dtype
    address, empty = library.address, library.maker(device)

    def run(image: Any) -> Any:
        try:
            here = current()
            if here != context:
                if here:
                    return MISS
                with device.active():
                    return run(image) if current() == context else MISS
            out = empty(shape, dtype, image)
            a, c = address(image), address(out)
            launches[(a | c) & 15](a, c)
        except Exception:  # the general way reports it, or does better
            return MISS
        return out

    run.of = {context: launches}  # type: ignore[attr-defined]
    return run
