"""What a rung's kernel asks of a multiprocessor's first cache and of its shared memory.

Both are one unit, which serves a warp in *wavefronts* of 128 bytes: a load of global memory takes
one for each line that it touches, one of shared memory as many as its threads meet in a bank (see
`reads.wavefronts`), a read of the same element by all threads one. A kernel is counted by its
innermost loop, for warps of 32 threads, with rows that lie together in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .reads import wavefronts

__all__ = ["Wavefronts", "counted"]

_LINE, _WARP, _QUAD = 128, 32, 16  # bytes; threads; bytes of the widest read


class Wavefronts(NamedTuple):
    """Wavefronts of a launch, or of a part of it: of loads through the cache, of shared memory."""

    cache: float
    shared: float


class _Of(NamedTuple):
    """A launch: bytes of an element, the last argument, and the macros with their defaults."""

    item: int
    last: int
    BX: int = 32
    BY: int = 8
    ROWS: int = 1
    SIDE: int = 32
    GROUP: int = 1
    STEP: int = 1
    DIMS: int = 2

    @property
    def rows(self) -> float:
        """Rows of threads in a warp, for each of which what these share is read once."""
        return max(1.0, _WARP / self.BX)

    @property
    def line(self) -> float:
        """A warp's neighbouring elements, of one row."""
        return _wide(min(self.BX, _WARP) * self.item)

    @property
    def lines(self) -> float:
        """The same, each row of threads in a row of its own."""
        return self.rows * self.line

    @property
    def quad(self) -> float:
        """One element of several that a read of 16 bytes brings to all threads."""
        return self.item / _QUAD


def _wide(nbytes: float) -> float:
    return max(1.0, nbytes / _LINE)


def _tiles(o: _Of) -> Wavefronts:
    """An element of B's tile serves ROWS products, one of A's, the same for a row, is read by 16
    bytes; each comes to the tile once."""
    brought = (1 / o.BX + 1 / (o.ROWS * o.BY)) * o.item / 4
    return Wavefronts(brought, o.line / o.ROWS + o.quad + brought)


def _products(o: _Of) -> Wavefronts:
    """SIDE elements of A and of B serve SIDE^2 products of a thread."""
    reads = o.SIDE / o.GROUP * (1 + _wide(min(o.BX, _WARP) * o.GROUP * o.item))
    brought = (1 / o.BX + 1 / o.BY) / o.SIDE * o.item / 4
    return Wavefronts(brought, reads / o.SIDE**2 + brought)


def _square(pitch: int) -> Callable[[_Of], Wavefronts]:
    """A square of A with columns that are read by neighbours, in rows of SIDE + pitch elements."""

    def of(o: _Of) -> Wavefronts:
        line = _wide(_WARP * o.item)
        return Wavefronts(line, line + wavefronts(o.item, 1, o.SIDE + pitch))

    return of


def _image(columns: int) -> Callable[[_Of], Wavefronts]:
    """The image in shared memory, so many times as wide as the block; two loads serve a piece."""

    def of(o: _Of) -> Wavefronts:
        brought = 2 * o.lines / (o.BX if columns > 1 else o.BY)
        tap = o.quad if o.STEP > 1 else 1.0
        return Wavefronts(brought, brought + wavefronts(o.item, o.BX, columns * o.BX) + tap)

    return of


# Kernel -> flops of its unit, as the methods count them, and the wavefronts of a warp's units.
_KERNELS: dict[str, tuple[float, Callable[[_Of], Wavefronts]]] = {
    "matmul_naive": (2, lambda o: Wavefronts(o.rows + o.line, 0)),
    "matmul_rows": (2, lambda o: Wavefronts(o.rows + o.line / o.ROWS, 0)),
    "matmul_shared": (2, _tiles),
    "matmul_column": (2, lambda o: Wavefronts(_wide(_WARP * o.item) / o.ROWS, o.quad)),
    "matmul_registers": (2, _products),
    "matvec_naive": (2, lambda o: Wavefronts(_WARP + 1, 0)),
    "matvec_constant": (2, lambda o: Wavefronts(_WARP, 0)),
    **dict.fromkeys(("matvec_shared", "matvec_split"), (2, _square(0))),
    **dict.fromkeys(("matvec_padded", "matvec_tuned"), (2, _square(1))),
    "convolve_naive": (2, lambda o: Wavefronts(o.lines + 1, 0)),
    "convolve_shared": (2, _image(1)),
    **dict.fromkeys(("convolve_row", "convolve_padded", "convolve_tuned"), (2, _image(2))),
    "jacobi_naive": (10, lambda o: Wavefronts((2 * o.DIMS + 2) * o.lines, 0)),
    "jacobi_shared": (10, lambda o: Wavefronts((2 * o.DIMS - 1) * o.lines, 5 * o.line)),
    "assign_points": (2, lambda o: Wavefronts(1 + (_WARP if o.last == 1 else o.line), 0)),
    "assign_shared": (2, lambda o: Wavefronts(o.line, 1)),
}


def counted(
    kernel: str, defines: Mapping[str, Any], last: int, item: int, flops: float
) -> Wavefronts | None:
    """The wavefronts of a method's kernel; None of one that is not counted.

    Parameters
    ----------
    kernel : str
        Its name.
    defines : mapping
        Its macros.
    last : int
        Its last argument: of k-means the distance between elements of a point.
    item : int
        Bytes of an element.
    flops : float
        Of the whole method.
    """
    if kernel not in _KERNELS:
        return None
    own = {name: int(value) for name, value in defines.items() if name in _Of._fields}
    unit, count = _KERNELS[kernel]
    each = count(_Of(item, last, **own))
    return Wavefronts(*(flops / unit / _WARP * part for part in each))
