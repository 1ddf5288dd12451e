"""Batched real Fourier transforms in place, of rows and of planes, by cuFFT."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import Any

from hetero import locks
from hetero.devices.cuda import libraries
from hetero.devices.workspace import Workspace
from hetero.errors import DeviceMemoryError
from hetero.imports import INSTALL

_R2C, _C2R, _D2Z, _Z2D = 0x2A, 0x2C, 0x6A, 0x6C  # cufftType


def obstacle() -> str | None:
    """Why cuFFT cannot be used, None where it can."""
    try:
        libraries.cufft()
    except Exception:  # package or library missing, or too old
        return f"cuFFT is not here; {INSTALL['library']}"
    return None


class _Plans:
    """Plans of cuFFT that share a work area; destroyed with it. The device is active in this
    thread.

    ``layouts`` are, for each, the arguments of ``make_plan_many64`` after the plan.
    """

    def __init__(self, device: Any, layouts: Sequence[tuple[Any, ...]]) -> None:
        self._device, self._state, self._lock = device, device.state(), locks.new()
        self._plans: list[int] = []
        self._cufft = cufft = libraries.cufft()
        self._area = Workspace(device, "transforms' work areas")
        try:
            needed = 1
            for layout in layouts:
                plan = cufft.create()
                self._plans.append(plan)
                cufft.set_auto_allocation(plan, 0)
                needed = max(needed, int(cufft.make_plan_many64(plan, *layout)))
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

    def _execute(self, which: int, function: str, buffer: int) -> None:
        """Run a plan in place, on the default stream."""
        with self._lock:  # a transform is several launches that share the work area
            getattr(self._cufft, function)(self._plans[which], buffer, buffer)


class RealTransform(_Plans):
    """Rows of ``length`` reals (even), each in room for length / 2 + 1 complex numbers; float32 or
    float64.
    """

    def __init__(self, device: Any, length: int, rows: int, dtype: str) -> None:
        half, double = length // 2 + 1, dtype == "float64"
        self._run = "exec_d2z" if double else "exec_r2c"
        kind = _D2Z if double else _R2C
        layout = 1, [length], [2 * half], 1, 2 * half, [half], 1, half, kind, rows
        super().__init__(device, [layout])

    def __call__(self, buffer: int) -> None:
        """Transform the rows at a device address."""
        self._execute(0, self._run, buffer)


class RealTransform2D(_Plans):
    """Planes of (ly, lx) reals, lx even, one after the other, each row in room for lx / 2 + 1
    complex numbers, and back; float32 or float64.

    The way back is not scaled: there and back multiplies by ly lx.
    """

    def __init__(self, device: Any, lengths: tuple[int, int], batch: int, dtype: str) -> None:
        (ly, lx), half, double = lengths, lengths[1] // 2 + 1, dtype == "float64"
        reals, complexes = ([ly, 2 * half], 1, 2 * half * ly), ([ly, half], 1, half * ly)
        self._run = ("exec_d2z", "exec_z2d") if double else ("exec_r2c", "exec_c2r")
        there, back = (_D2Z, _Z2D) if double else (_R2C, _C2R)
        layouts = (*reals, *complexes, there), (*complexes, *reals, back)
        super().__init__(device, [(2, [ly, lx], *layout, batch) for layout in layouts])

    def forward(self, buffer: int) -> None:
        """Transform the planes at a device address."""
        self._execute(0, self._run[0], buffer)

    def inverse(self, buffer: int) -> None:
        """Transform back."""
        self._execute(1, self._run[1], buffer)
