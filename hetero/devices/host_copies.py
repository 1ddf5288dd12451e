"""What a device copies from and to the host: at once, through its ring, or by a stream."""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from hetero.arrays import pinned
from hetero.errors import DeviceError
from hetero.host.copying.copy_jobs import DOWNLOAD, UPLOAD, Copy, plainly
from hetero.host.copying.staging import Ring, least


class HostCopies(abc.ABC):
    """The part of `hetero.devices.base.Device` that moves bytes to and from the host, in queues."""

    name: str
    kind: str
    stages: bool = False  # whether staged copies may be the faster ones
    # Bytes from which on a copy of ordinary memory goes through the `ring`, by direction, where
    # that was not measured; infinite: never.
    least_staged: Mapping[str, float] = MappingProxyType({UPLOAD: math.inf, DOWNLOAD: math.inf})

    @abc.abstractmethod
    def upload(self, source: np.ndarray, target: Any, offset: int = 0, stream: Any = None) -> None:
        """Copy a C-contiguous host array to device memory, from byte ``offset`` on.

        Returns when ``source`` may change. With a stream, it may change when the stream has come
        so far, and only `pinned` memory is copied without holding up the host.
        """

    @abc.abstractmethod
    def download(
        self, source: Any, target: np.ndarray, offset: int = 0, stream: Any = None
    ) -> None:
        """Copy device memory, from byte ``offset`` on, to a C-contiguous host array.

        Returns when it is there. With a stream, it is there when the stream has come so far.
        """

    def start_upload(
        self, source: np.ndarray, target: Any, offset: int = 0, after: Any = None
    ) -> Copy:
        """Begin to copy a host array of any strides, packed in C order, to device memory.

        Until `Copy.wait` returns, the source must not change, and what is begun on the device must
        not use the target. Copies of one direction go in the order of their start, both directions
        at once. A copy that is dropped without having been waited for is cancelled. Where the
        device has no `ring`, the copy is complete at once.

        Parameters
        ----------
        source : numpy.ndarray
        target : buffer
        offset : int
            Bytes from the target's begin.
        after : event, optional
            What must have come before the target is overwritten, as `record` gives it; default: all
            that the default queue holds now.
        """
        return self._start(UPLOAD, source, target, offset, after)

    def start_download(
        self, source: Any, target: np.ndarray, offset: int = 0, after: Any = None
    ) -> Copy:
        """Begin to copy packed device memory to a host array of any strides.

        Until `Copy.wait` returns, neither may be written to. As for `start_upload`.

        Parameters
        ----------
        source : buffer
        target : numpy.ndarray
        offset : int
            Bytes from the source's begin.
        after : event, optional
            What must have come before the source is read; default: all that the default queue holds
            now.
        """
        return self._start(DOWNLOAD, target, source, offset, after)

    def _start(
        self, direction: str, array: np.ndarray, buffer: Any, offset: int, after: Any
    ) -> Copy:
        ring = self.ring()
        if ring is None or not array.nbytes:
            if after is not None:
                self.wait(after)
            self.copy_plainly(direction, array, buffer, offset)
            return Copy()
        if after is None:
            after = self.record()
        direct = self.is_pinned(array) and (array.flags.c_contiguous or self.sends_rows(array))
        start = ring.start_pinned if direct else ring.start
        return start(direction, array, buffer, offset, after)

    def copy_plainly(self, direction: str, array: np.ndarray, buffer: Any, offset: int = 0) -> None:
        """Copy a host array of any strides, packed in C order, past the `ring`."""
        if not array.nbytes:
            return
        if direction == UPLOAD:
            with plainly():
                self.upload(np.ascontiguousarray(array), buffer, offset)
            return
        packed = array if array.flags.c_contiguous else np.empty(array.shape, array.dtype)
        with plainly():
            self.download(buffer, packed, offset)
        if packed is not array:
            array[...] = packed

    def staged(self, direction: str, array: np.ndarray, buffer: Any, offset: int) -> bool:
        """Copy through the `ring` if that is faster; whether it was done."""
        copy = self.begin_staged(direction, array, buffer, offset)
        if copy is not None:
            copy.wait()
        return copy is not None

    def begin_staged(
        self, direction: str, array: np.ndarray, buffer: Any, offset: int = 0
    ) -> Copy | None:
        """Begin to copy through the `ring` if that is faster; None where it is not."""
        if array.nbytes < (least(self.name) or self.least_staged)[direction]:
            return None
        ring = self.ring()
        if ring is None or (array.flags.c_contiguous and self.is_pinned(array)):
            return None
        if not ring.is_worth_it(direction, array):
            return None
        return ring.start(direction, array, buffer, offset, self.record())

    def ring(self) -> Ring | None:
        """What copies go through that are staged; None where there is none, and in its threads."""
        return None

    def is_pinned(self, array: np.ndarray) -> bool:
        """Whether the device copies from and to a host array directly."""
        return pinned.holds(array)

    def send(
        self,
        direction: str,
        array: np.ndarray,
        buffer: Any,
        offset: int,
        stream: Any,
        awake: bool = False,
    ) -> Any:
        """Let a stream copy a pinned array; what `await_sent` waits for.

        It is C-contiguous, or a matrix that `sends_rows` takes. Who waits may stay awake instead of
        sleeping.
        """
        raise DeviceError(f"{self.kind} has only one queue")

    def send_slices(
        self,
        direction: str,
        array: np.ndarray,
        buffer: Any,
        offset: int,
        region: np.ndarray,
        stream: Any,
        cancel: Any,
        helpers: int,
    ) -> None:
        """Copy an array, of which the rows are contiguous, through pinned memory, with helpers,
        until it is done or `cancel` holds a value that is not 0."""
        raise DeviceError(f"{self.kind} has only one queue")

    def sends_rows(self, array: np.ndarray) -> bool:
        """Whether `send` takes a matrix whose rows lie apart."""
        return False

    def sends_slices(self, direction: str) -> bool:
        """Whether `send_slices` works, which takes the interpreter's lock once."""
        return False

    def will_send_slices(self, direction: str) -> bool:
        """Whether `send_slices` works, or will soon."""
        return self.sends_slices(direction)

    def await_sent(self, mark: Any) -> None:
        """Hold up the host until a copy is complete, asleep if that takes long."""
        raise DeviceError(f"{self.kind} has only one queue")

    @abc.abstractmethod
    def pinned(self, nbytes: int, purpose: str = "pinned arrays") -> np.ndarray:
        """Host memory (uint8) that the device copies from and to directly, counted by purpose."""

    def staging(self, nbytes: int) -> np.ndarray:
        """Host memory to copy through, the same at each call; `peers` sees to it that all wait."""
        return np.empty(nbytes, np.uint8)

    # -- what orders the work that was started

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
