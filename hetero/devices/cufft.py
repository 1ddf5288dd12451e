"""Batched real Fourier transforms in place: cuFFT through `nvmath.bindings.cufft`."""

from __future__ import annotations

from typing import Any

from hetero.errors import DeviceError, DeviceMemoryError

_R2C, _D2Z = 0x2A, 0x6A  # cufftType


def obstacle() -> str | None:
    """Why cuFFT cannot be used, None where it can."""
    try:
        from nvmath.bindings import cufft

        cufft.get_version()
    except Exception:  # package or library missing, or too old
        return "cuFFT is not here; pip install 'hetero[library]'"
    return None


class RealTransform:
    """Rows of ``length`` reals, each in room for length / 2 + 1 complex numbers.

    Parameters
    ----------
    device : CudaDevice
        Active in this thread.
    length : int
        Even.
    rows : int
    dtype : str
        "float32" or "float64".
    """

    def __init__(self, device: Any, length: int, rows: int, dtype: str) -> None:
        from nvmath.bindings import cufft

        self._cufft = cufft
        self._run = cufft.exec_d2z if dtype == "float64" else cufft.exec_r2c
        half = length // 2 + 1
        kind = _D2Z if dtype == "float64" else _R2C
        try:
            self._plan = cufft.create()
            cufft.set_auto_allocation(self._plan, 0)
            needed = cufft.make_plan_many64(
                self._plan, 1, [length], [2 * half], 1, 2 * half, [half], 1, half, kind, rows
            )
            area, self._owner = device.allocate(max(int(needed), 1))
            cufft.set_work_area(self._plan, area)
        except Exception as error:
            raise _error(error) from error

    def __call__(self, buffer: int) -> None:
        """Transform the rows at a device address."""
        try:
            self._run(self._plan, buffer, buffer)
        except Exception as error:
            raise _error(error) from error


def _error(error: Exception) -> DeviceError:
    if isinstance(error, DeviceError):
        return error
    if "ALLOC" in str(error):
        return DeviceMemoryError(f"cuFFT: {error}")
    return DeviceError(f"cuFFT: {error}")
