"""Remembered convolutions of device arrays with small filters; see `hetero.runtime.call_cache`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hetero.arrays import Operand, alignment
from hetero.runtime import call_cache as express
from hetero.runtime import planner
from hetero.runtime.call_cache import MISS, Library, Remembered, learn_library

_forced = planner.forced.get


class FilterExpress(Remembered):
    """The remembered calls, ``find[type(image)](image, rest)``.

    ``rest`` is all else that a call depends on, hashable.
    """

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
        from hetero.ops.convolve2d.device import prepared_direct
        from hetero.runtime.transfer import needs_synchronizing

        chosen, problem, kind = plan.chosen, plan.problem, type(image)
        library = learn_library(kind)
        if (
            library is None
            or (chosen.implementation.kind, chosen.method) != ("cuda", "direct")
            or not (library.usable is None or library.usable(image))
            or not (operand.location == problem.output.location == chosen.device)
            or needs_synchronizing(operand)
            or _forced() is not None
            or devices.disabled(chosen.device)
        ):
            return
        bits = operand.pointer & 15
        device = devices.get(chosen.device)
        self._keep(
            kind,
            partial(_finder, library),
            (library.facts(image, image, None), rest),
            bits,
            device,
            lambda: prepared_direct(device, problem, request, alignment(bits)),
            lambda launches: _entry(device, library, launches, problem.output),
            now,
        )


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

    return run
