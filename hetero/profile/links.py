"""Prices of copies by the links of a profile: alone, or on several devices at once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from math import inf
from typing import Any, Self

from hetero.registry.models import bind_link

PAGEABLE, PINNED, STAGED = "pageable", "pinned", "staged"
# Bytes that may be staged. The threads that help with smaller copies would compete with BLAS's
# threads, which spin for a moment after a product: 2.7 MB took 3.5 ms in place of 0.6.
_STAGED_SIZES = [round(2.0 ** (step / 4)) for step in range(4 * 22, 4 * 31 + 1)]


class Links:
    """The part of a `Profile` that predicts copies.

    Parameters
    ----------
    data : dict
        The content of a profile file.

    Attributes
    ----------
    data : dict
    devices : dict
        Device name -> description.
    """

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        self.devices: dict[str, dict[str, Any]] = data["devices"]
        self._links: dict[tuple[str, ...], Callable[[int], float]] = {}
        self._least: dict[tuple[str, str], float] = {}
        self._together: dict[str, Self] = {}
        self._group: tuple[str, ...] = ()
        self._quiet, self._times = self, 1

    def link(self, device: str, direction: str, memory: str = "pageable") -> Callable[[int], float]:
        """Seconds that a copy takes, as a function of bytes.

        Of pageable memory it is "staged" from the size on from which that curve is the lower one,
        as the devices do it (`least_staged`).

        Parameters
        ----------
        device : str
            Or all equal ones that copy at once, "cuda*2": then the bytes are those of each.
        direction : {"upload", "download"}, to or from the device
        memory : {"pageable", "pinned"}

        Raises
        ------
        KeyError
            If the profile knows nothing of this link.
        """
        key = (device, direction, memory, "link")
        try:
            return self._links[key]
        except KeyError:
            pass
        seconds = curve = self._at_once(device, direction, memory)
        least = self.least_staged(device, direction) if memory == PAGEABLE else inf
        if least < inf:
            staged = self._at_once(device, direction, STAGED)

            def seconds(nbytes: int) -> float:
                return staged(nbytes) if nbytes >= least else curve(nbytes)

        self._links[key] = seconds
        return seconds

    def _at_once(self, device: str, direction: str, memory: str) -> Callable[[int], float]:
        """A curve; for several devices at once that of one alone, unless it was measured."""
        try:
            return self.curve(device, direction, memory)
        except KeyError:
            if _alone(device) == device:
                raise
            return self.curve(_alone(device), direction, memory)

    def curve(self, device: str, direction: str, memory: str) -> Callable[[int], float]:
        """One curve as it was measured; parameters as in `link`, but "staged" is pageable memory
        through pinned buffers (`hetero.host.copying.staging`), and "pageable" by the driver."""
        key = (device, direction, memory)
        if key not in self._links:
            for name in (*self._group, *self._names(device, device.partition(":")[0])):
                kinds = self.data["links"].get(name, {}).get(direction, {})
                model = kinds.get(memory)
                if model is not None:
                    self._links[key] = self._in_turn(bind_link(model))
                    break
            else:
                raise KeyError(f"{memory} {direction} of {device}")
        return self._links[key]

    def _in_turn(self, curve: Callable[[int], float]) -> Callable[[int], float]:
        """A curve for the copies of all devices one after another, where they share a bus."""
        times = self._times
        return curve if times == 1 else lambda nbytes: times * curve(nbytes)

    def at_once(self, group: str) -> Self:
        """The same constants, with the links of each of several devices that copy at once.

        Parameters
        ----------
        group : str
            Of the devices together, "cuda*2". Where their links were not measured they are taken
            to share one bus: copies at once take as long as one after the other.
        """
        variant = self._together.get(group)
        if variant is None:
            variant = self._together[group] = type(self)(self.data)
            variant._group, variant._quiet = (group,), self
            if group not in self.data["links"]:
                variant._times = int(group.partition("*")[2])
        return variant

    def least_staged(self, device: str, direction: str) -> float:
        """Bytes from which on staged copies of pageable memory are faster, whatever their size;
        infinite where none are, or none were measured.

        Several devices at once stage what each of them stages alone.
        """
        key = _alone(device), direction
        if key not in self._least:
            least = inf
            with contextlib.suppress(KeyError):
                plain, staged = (self._quiet.curve(*key, memory) for memory in (PAGEABLE, STAGED))
                for nbytes in reversed(_STAGED_SIZES):
                    if staged(nbytes) >= plain(nbytes):
                        break
                    least = nbytes
            self._least[key] = least
        return self._least[key]

    def stages(self) -> dict[str, dict[str, float]]:
        """Device -> direction -> `least_staged`, of all devices with known staged copies."""
        return {
            name: {way: self.least_staged(name, way) for way in ("upload", "download")}
            for name in self.devices
            if any(
                STAGED in kinds
                for known in self._names(name, name.partition(":")[0])
                for kinds in self.data["links"].get(known, {}).values()
            )
        }

    def _names(self, device: str, kind: str) -> tuple[str, ...]:
        same_as = self.devices.get(device, {}).get("same_as")
        return (device, *((same_as,) if same_as else ()), f"{kind}:*")


def _alone(device: str) -> str:
    """One of several devices at once: "cuda:0" of "cuda*2"."""
    kind, several, _ = device.partition("*")
    return f"{kind}:0" if several and ":" not in device else device
