"""The tuning table that the kernels of a device are planned by.

Its card's own where the profile holds one (``hetero calibrate --kernels`` measures it), else the
nearest of those that come with hetero.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from hetero import profile
from hetero.kernels.common import tuning as tables
from hetero.kernels.common.tuning import Table, Target
from hetero.profile import inventory

_by_device: dict[str, Table] = {}
_by_card: dict[tuple[Any, ...], Table] = {}
_measuring: dict[str, Any] = {}


def of_device(device: Any) -> Table:
    """The table of a device of this machine."""
    name = getattr(device, "name", "")
    table = _by_device.get(name)
    if table is None:
        table = _by_device[name] = of_info(inventory.devices().get(name, {}))
    return table


def target(device: Any, table: Table | None = None) -> Target:
    """A device as launch plans take it, with its own table or another one."""
    table = table or of_device(device)
    return Target(device.multiprocessors, device.block_limit, table, device.traits.warps)


def of_info(info: Mapping[str, Any]) -> Table:
    """The table of a device, here or elsewhere, by its description."""
    card = info.get("name", "")
    if info.get("elsewhere"):
        own = info.get("kernels")
        return tables.parse(own) if own else _nearest(info)
    key = (card, info.get("arch"), info.get("multiprocessors"))
    if key not in _by_card:
        own = _measuring.get(card) or profile.current().data.get("kernels", {}).get(card)
        _by_card[key] = tables.parse(own) if own else _nearest(info)
    return _by_card[key]


@contextlib.contextmanager
def using(measured: Mapping[str, Any]) -> Iterator[None]:
    """Plan by these tables, by card, until a profile holds them."""
    _measuring.update(measured)
    _forget()
    try:
        yield
    finally:
        _measuring.clear()
        _forget()


def _nearest(info: Mapping[str, Any]) -> Table:
    return tables.nearest(
        info.get("name", ""), info.get("arch", ""), info.get("multiprocessors", 0)
    )


def _forget() -> None:
    _by_device.clear()
    _by_card.clear()


profile.on_change(_forget)
inventory.on_change(_forget)
