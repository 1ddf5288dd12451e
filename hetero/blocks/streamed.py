"""method="streamed": a call on host arrays in blocks, of which some move while others compute.

An operation chooses its blocks and computes with them, by `hetero.moving.pipeline`. What all
operations share is here: a choice is made once for each problem and room, and again for half the
room where the device runs out of memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from hetero import profile, tables
from hetero.errors import DeviceMemoryError, NotPriced
from hetero.moving import failures
from hetero.pricing import memory_limit, pricing
from hetero.profile import inventory
from hetero.registry import Arguments, Price
from hetero.registry.problem import Problem

if TYPE_CHECKING:
    from hetero.devices.base import Device
    from hetero.profile import Profile

_ROOM = 0.8  # of a device's memory: its pool rounds sizes up, and others use it too


class Choice(Protocol):
    """Blocks of one problem; ``str`` describes them."""

    @property
    def nbytes(self) -> int:
        """Of the device's memory."""

    @property
    def terms(self) -> dict[str, float] | None:
        """Predicted seconds, which add up to the whole; None where they are not known."""


class Streamed:
    """An operation's method.

    Parameters
    ----------
    choose : callable
        ``choose(problem, name, info, constants, room)`` gives the fastest `Choice` that fits so
        many bytes of a device; None where none fits.
    compute : callable
        ``compute(device, problem, arguments, choice)``; the device is active.
    smallest : str
        What there must be room for at least, such as "a row of the image".
    limited : float, optional
        What blocks may take of a limit that the caller set.
    """

    def __init__(
        self,
        choose: Callable[..., Any],
        compute: Callable[..., None],
        smallest: str,
        limited: float = 1.0,
    ) -> None:
        self._choose, self._compute = choose, compute
        self._smallest, self._limited = smallest, limited
        self._choices = tables.new_table()

    def price(self, problem: Problem, name: str, info: dict[str, Any], constants: Profile) -> Price:
        """``price`` of the method's rows."""
        try:
            choice = self._choose(problem, name, info, constants, self._room(info))
        except NotPriced:  # a block
            return Price(None, reason=pricing.UNKNOWN_THERE)
        if choice is None:
            return Price(None, reason=f"there is no room for {self._smallest}")
        return Price(choice.terms, str(choice))

    def run(self, devices: tuple[Device], problem: Problem, arguments: Arguments) -> None:
        """``run`` of the method's rows.

        Raises
        ------
        DeviceMemoryError
            Where there is no room for the smallest blocks.
        """
        (device,) = devices
        room = self._room(memory_limit.of(device))
        while (choice := self._chosen(problem, device, room)) is not None:
            try:
                with device.active():  # turns the driver's errors into ours
                    self._compute(device, problem, arguments, choice)
                return
            except DeviceMemoryError as error:
                failures.release(error)
            device.trim()
            room = choice.nbytes / 2
        raise DeviceMemoryError(f"{device.name} has no room for {self._smallest}")

    def _room(self, info: dict[str, Any]) -> float:
        """Bytes of a device that blocks may take."""
        most, limit = _ROOM * info["memory_bytes"], info.get("memory_limit")
        return most if limit is None else min(most, self._limited * limit)

    def _chosen(self, problem: Problem, device: Device, room: float) -> Any:
        """The choice with this machine's constants, remembered."""
        key = problem, device.name, room
        choice = self._choices.get(key)
        if choice is None:
            now = tables.generation()
            info = inventory.devices()[device.name]
            choice = self._choose(problem, device.name, info, profile.current(), room)
            tables.remember(self._choices, key, choice, now)
        return choice
