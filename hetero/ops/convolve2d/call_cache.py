"""Remembered convolutions of device arrays with small filters; see `hetero.runtime.call_cache`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hetero.arrays import Access, Operand, alignment
from hetero.runtime import planner
from hetero.runtime.call_cache import MISS, Remembered, access_to

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
        access = access_to(image)
        if (
            access is None
            or (chosen.implementation.kind, chosen.method) != ("cuda", "direct")
            or not (access.usable is None or access.usable(image))
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
            partial(_finder, access),
            (access.facts(image), rest),
            bits,
            device,
            lambda: prepared_direct(device, problem, request, alignment(bits)),
            lambda launches: _entry(device, access, launches, problem.output),
            now,
        )


def _finder(access: Access, entries: dict[Any, Callable[..., Any]]) -> Callable[[Any, Any], Any]:
    facts, usable, ordered = access.facts, access.usable, access.ordered

    def find(image: Any, rest: Any) -> Any:
        if _forced() is not None or not ordered() or not (usable is None or usable(image)):
            return MISS
        run = entries.get((facts(image), rest))
        return MISS if run is None else run(image)

    return find


def _entry(
    device: Any, access: Access, launches: dict[int, Callable[[int, int], None]], output: Operand
) -> Callable[[Any], Any]:
    """A remembered call, ``run(image)``; ``launches`` by the lowest bits of both addresses."""
    context, current = device.context_handle(), access.context or device.context_handle
    shape, dtype = output.shape, output.dtype
    address, empty = access.address, access.maker(device)

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
