"""The queues of a device: events in them, waiting for them, and streams beside the default one."""

from __future__ import annotations

import abc
from typing import Any

from hetero.errors import DeviceError


class Queues(abc.ABC):
    """The part of `hetero.devices.base.Device` that orders what was started on it."""

    kind: str

    @abc.abstractmethod
    def event(self, stream: Any = None) -> Any:
        """Mark this point of a queue, for `elapsed`."""

    @abc.abstractmethod
    def elapsed(self, start: Any, end: Any) -> float:
        """Seconds of device time between two marks; waits for the second."""

    def passed(self, mark: Any) -> bool:
        """Whether the device has come past a mark; False where that cannot be told."""
        return False

    @abc.abstractmethod
    def synchronize(self, stream: Any = None) -> None:
        """Wait until everything started, or one stream, has finished; errors show up here."""

    def new_stream(self) -> Any:
        """A queue beside the default one, which stands for None wherever a stream is taken.

        Nothing orders it but `record` and `wait`.
        """
        raise DeviceError(f"{self.kind} has only one queue")

    def record(self, stream: Any = None, event: Any = None) -> Any:
        """An event that comes when all that the stream holds now is done.

        An event that is no longer wanted may be given, to be used again.
        """
        raise DeviceError(f"{self.kind} has no events to wait for")

    def wait(self, event: Any, stream: Any = None) -> None:
        """Let a stream go on only after an event of this or another device of the same kind.

        The default queue cannot be held: for it, and where two devices cannot see each other's
        events, the host waits.
        """
        raise DeviceError(f"{self.kind} has no events to wait for")

    def follow_stream(self, handle: int) -> None:
        """Let the default queue go on only after what another library's stream holds now.

        Here, and in `precede_stream`, the host waits.
        """
        self.synchronize()

    def precede_stream(self, handle: int) -> None:
        """Let another library's stream go on only after what the default queue holds now."""
        self.synchronize()

    @property
    def capturing(self) -> bool:
        """Whether this thread's work becomes part of a graph (`hetero.graph`)."""
        return False
