"""Copies between the host and a CUDA device: plain, in slices through pinned buffers, by rows."""

from __future__ import annotations

import contextlib
import ctypes
from types import MappingProxyType
from typing import Any

import numpy as np

from hetero.arrays.pinned import holds, known
from hetero.devices.cuda import pinned
from hetero.devices.cuda import rows as cuda_rows
from hetero.devices.cuda.launch import CudaLaunches
from hetero.devices.cuda.state import Lent
from hetero.errors import DeviceError
from hetero.host import blas_spin
from hetero.host.copying import lane, team
from hetero.host.copying.copy_jobs import DOWNLOAD, LONG_BYTES, UPLOAD, here
from hetero.host.copying.lanes import PURPOSE
from hetero.host.copying.staging import Ring, compile_ahead


def _undisturbed(array: np.ndarray) -> Any:
    """A context in which a BLAS leaves the cores to the copy of a host array, if that is long."""
    # The first one does not wait until that is possible: 50 ms, the copy of 64 MiB takes 8.
    return blas_spin.asleep(0.0) if array.nbytes >= LONG_BYTES else contextlib.nullcontext()


class CudaCopies(CudaLaunches):
    """What a CUDA device does of `hetero.devices.host_copies`."""

    stages = True
    least_staged = MappingProxyType({UPLOAD: 8 << 20, DOWNLOAD: 8 << 20})  # before calibration

    def upload(self, source: np.ndarray, target: int, offset: int = 0, stream: Any = None) -> None:
        if stream is None:
            if not self.staged(UPLOAD, source, target, offset):
                with _undisturbed(source):
                    self.driver.memcpy_htod(target + offset, source)
        else:
            self.driver.memcpy_htod_async(target + offset, source, stream.raw)

    def download(
        self, source: int, target: np.ndarray, offset: int = 0, stream: Any = None
    ) -> None:
        if stream is None:
            self._not_captured("bringing results to the host")
            if not self.staged(DOWNLOAD, target, source, offset):
                with _undisturbed(target):
                    self.driver.memcpy_dtoh(target, source + offset)
        else:
            self.driver.memcpy_dtoh_async(target, source + offset, stream.raw)

    def pinned(self, nbytes: int, purpose: str = "pinned arrays") -> np.ndarray:
        if self.same_in_threads():
            made = pinned.cuda_pages(nbytes, self.ordinal, purpose != PURPOSE)
        else:
            made = self.driver.pagelocked_empty(max(nbytes, 1), np.uint8)
        return known(made, purpose)[:nbytes]

    def is_pinned(self, array: np.ndarray) -> bool:
        return holds(array) or pinned.driver_knows(array)

    def ring(self) -> Ring | None:
        if here.is_plain or self.capturing or not self.same_in_threads():
            return None
        state = self.state()
        if state.ring is None:
            with self._lock:
                if state.ring is None:
                    compile_ahead()
                    state.ring = Ring(self, ahead=True)
        return state.ring

    def send(
        self,
        direction: str,
        array: np.ndarray,
        buffer: int,
        offset: int,
        stream: Any,
        awake: bool = False,
    ) -> Any:
        # One mark for all parts: the bus rests for 10 us where a stream comes past one.
        for part, begin in cuda_rows.parts(array):
            to = buffer + offset + begin
            if not part.flags.c_contiguous:
                cuda_rows.send(direction, part, to, stream.handle)
            elif direction == UPLOAD:
                self.driver.memcpy_htod_async(to, part, stream.raw)
            else:
                self.driver.memcpy_dtoh_async(part, to, stream.raw)
        if awake:
            return self.record(stream)
        flags = self.driver.event_flags
        asleep = flags.DISABLE_TIMING | flags.BLOCKING_SYNC
        mark = Lent(self.state().copied, lambda: self.driver.Event(asleep))
        mark.raw.record(stream.raw)
        return mark

    def sends_rows(self, array: np.ndarray) -> bool:
        return cuda_rows.rows(array) is not None

    def sends_slices(self, direction: str) -> bool:
        return lane.ready("serve") is not None

    def will_send_slices(self, direction: str) -> bool:
        return lane.ready("serve") is not None or not lane.settled.is_set()

    def send_slices(
        self,
        direction: str,
        array: np.ndarray,
        buffer: int,
        offset: int,
        region: np.ndarray,
        stream: Any,
        cancel: Any,
        helpers: int,
    ) -> None:
        told = team.cut(direction, array, region.nbytes)
        marks = [self.state().handle_of_event() for _ in range(told["buffers"])]
        told |= lane.functions(pinned.driver())[direction]
        told |= {f"event {number}": mark for number, mark in enumerate(marks)}
        told |= {
            "device": buffer + offset,
            "base": region.__array_interface__["data"][0],
            "stream": stream.handle,
            "cancel": ctypes.addressof(cancel),
        }
        status = team.current(helpers).run(direction, told)
        self.state().handles_of_events.extend(marks)
        if status > 0:
            raise DeviceError(f"a staged {direction} failed: {pinned.error_text(status)}")

    def await_sent(self, mark: Any) -> None:
        mark.raw.synchronize()

    def staging(self, nbytes: int) -> np.ndarray:
        state = self.state()
        if state.staging is None or state.staging.nbytes < nbytes:
            state.staging = self.pinned(nbytes, "pinned, between devices")
        return state.staging[:nbytes]
