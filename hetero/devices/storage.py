"""What a context holds in its device's memory beyond a call: kept for later calls, and counted."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from hetero import locks
from hetero.devices.copies import Copies

T = TypeVar("T")


class Storage:
    """What one context holds in its device's memory: things kept for later calls, and the count.

    It belongs to the context and is dropped with it. See `Device.storage`.

    Attributes
    ----------
    copies : Copies
        Of operands that do not change.
    """

    def __init__(self) -> None:
        self.copies = Copies()
        self._lock = locks.new()
        self._kept: dict[str, OrderedDict[Hashable, Any]] = {}
        self._workspaces: weakref.WeakSet[Any] = weakref.WeakSet()

    def find(self, purpose: str, key: Hashable) -> Any:
        """What is kept under a key, or None."""
        with self._lock:
            kept = self._kept.get(purpose, {})
            if key not in kept:
                return None
            kept.move_to_end(key)
            return kept[key]

    def put(self, purpose: str, key: Hashable, value: Any, most: int) -> None:
        """Keep a value, and of each purpose no more than the ``most`` that were asked for last."""
        with self._lock:
            kept = self._kept.setdefault(purpose, OrderedDict())
            kept[key] = value
            while len(kept) > most:
                kept.popitem(last=False)

    def get(self, purpose: str, key: Hashable, most: int, make: Callable[[], T]) -> T:
        """What is kept under a key; made now where there is nothing."""
        value = self.find(purpose, key)
        if value is None:
            value = make()
            self.put(purpose, key, value, most)
        return value

    def drop(self) -> bool:
        """Keep nothing any longer, but for copies of operands; whether something was kept.

        Memory that a call in another thread still uses is freed when that call ends.
        """
        with self._lock:
            kept, self._kept = self._kept, {}
        return any(kept.values())

    def drop_all(self) -> None:
        """`drop`, copies included."""
        self.drop()
        self.copies.shed()

    def add(self, workspace: Any) -> None:
        """Count a workspace as long as it lives."""
        with self._lock:
            self._workspaces.add(workspace)

    def sizes(self) -> dict[str, int]:
        """Purpose -> bytes, of all workspaces that live."""
        with self._lock:
            living = list(self._workspaces)
        found: dict[str, int] = {}
        for each in living:
            found[each.purpose] = found.get(each.purpose, 0) + each.nbytes
        return found
