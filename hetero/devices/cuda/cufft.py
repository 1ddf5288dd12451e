"""Batched real Fourier transforms in place, of rows and of planes, by cuFFT."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from hetero import locks
from hetero.devices.cuda import libraries
from hetero.devices.storage import Workspace
from hetero.errors import DeviceMemoryError
from hetero.imports import INSTALL

_KINDS = {  # dtype: the functions there and back, and their cufftType
    "float32": ((0x2A, "exec_r2c"), (0x2C, "exec_c2r")),
    "float64": ((0x6A, "exec_d2z"), (0x6C, "exec_z2d")),
}


def obstacle() -> str | None:
    """Why cuFFT cannot be used, None where it can."""
    try:
        libraries.cufft()
    except Exception:  # package or library missing, or too old
        return f"cuFFT is not here; {INSTALL['library']}"
    return None


class RealTransform:
    """``batch`` rows of (lx,) or planes of (ly, lx) reals, lx even, one after the other, each row
    in room for lx / 2 + 1 complex numbers; float32 or float64. The device is active in this thread.

    Planes have a way back, which is not scaled: there and back multiplies by ly lx.
    """

    def __init__(self, device: Any, lengths: tuple[int, ...], batch: int, dtype: str) -> None:
        self._device, self._state, self._lock = device, device.state(), locks.new()
        self._cufft = cufft = libraries.cufft()
        self._plans: list[int] = []  # they share a work area
        self._run = [getattr(cufft, name) for _, name in _KINDS[dtype]]
        rank, (*planes, lx) = len(lengths), lengths
        half, number = lx // 2 + 1, planes[0] if planes else 1
        reals = [*planes, 2 * half], 1, 2 * half * number
        complexes = [*planes, half], 1, half * number
        layouts = (*reals, *complexes), (*complexes, *reals)
        self._area = Workspace(device, "transforms' work areas")
        try:
            needed = 1
            for layout, (kind, _) in [*zip(layouts, _KINDS[dtype], strict=True)][:rank]:
                plan = cufft.create()
                self._plans.append(plan)
                cufft.set_auto_allocation(plan, 0)
                size = cufft.make_plan_many64(plan, rank, [*lengths], *layout, kind, batch)
                needed = max(needed, size)
            area = self._area.allocate(needed)
            for plan in self._plans:
                cufft.set_work_area(plan, area)
        except MemoryError as error:
            raise DeviceMemoryError(f"cuFFT: {error}") from error

    def __del__(self) -> None:
        if not sys.is_finalizing() and self._device.holds(self._state):
            with contextlib.suppress(Exception), self._device.active():
                for plan in self._plans:
                    self._cufft.destroy(plan)

    def forward(self, buffer: int) -> None:
        """Transform what lies at a device address, on the default stream."""
        with self._lock:  # a transform is several launches that share the work area
            self._run[0](self._plans[0], buffer, buffer)

    def inverse(self, buffer: int) -> None:
        """Transform back."""
        with self._lock:
            self._run[1](self._plans[1], buffer, buffer)
