"""What a rung's kernel asks of a multiprocessor's first cache and of its shared memory.

Both are one unit, which serves a warp in *wavefronts* of 128 bytes: a load of global memory takes
one for each line that it touches, one of shared memory as many as its threads meet in a bank (see
`reads.wavefronts`), a read of the same element by all threads one. A kernel is counted by its
innermost loops, for warps of 32 threads, with rows that lie together in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace as _Of
from typing import Any, NamedTuple

from .reads import wavefronts

__all__ = ["Wavefronts", "counted"]

_LINE, _WARP, _QUAD = 128, 32, 16  # bytes; threads; bytes of the widest read


class Wavefronts(NamedTuple):
    """Those of loads that go through the cache, and of the banks of shared memory."""

    cache: float
    banks: float


def _wide(nbytes: float) -> float:
    return max(1.0, nbytes / _LINE)


def _elements(o: _Of) -> Wavefronts:
    """A row of A times a column of B: neighbouring threads along a row of C, or along a column;
    of C's elements, NX of a thread are neighbours where they are grouped."""
    if o.SWAPPED:
        return Wavefronts(min(o.BX, _WARP) + o.rows, 0)
    return Wavefronts(o.rows + o.line * (o.NX if o.GROUPED else 1), 0)


def _tiles(o: _Of) -> Wavefronts:
    """An element of B serves ROWS products; those of A, the same for a row and for TILES of B, come
    by 16 bytes."""
    brought = (1 / (o.TILES * o.BX) + 1 / (o.ROWS * o.BY)) * o.item / 4  # to the tiles, once each
    return Wavefronts(brought, o.line / o.ROWS + o.item / _QUAD / o.TILES + brought)


def _products(o: _Of) -> Wavefronts:
    """SIDE elements of A and of B serve SIDE^2 products of a thread."""
    reads = o.SIDE / o.GROUP * (1 + _wide(min(o.BX, _WARP) * o.GROUP * o.item))
    brought = (1 / o.BX + 1 / o.BY) / o.SIDE * o.item / 4
    return Wavefronts(brought, reads / o.SIDE**2 + brought)


def _square(pad: int) -> Callable[[_Of], Wavefronts]:
    """A square of A, whose columns are read by neighbours, in rows of SIDE + pad elements."""

    def of(o: _Of) -> Wavefronts:
        return Wavefronts(o.warp, o.warp + wavefronts(o.item, 1, o.SIDE + pad))

    return of


def _image(columns: int) -> Callable[[_Of], Wavefronts]:
    """The image in shared memory, some blocks wide; two loads serve a piece of the filter."""

    def of(o: _Of) -> Wavefronts:
        brought = 2 * o.lines / (o.BX if columns > 1 else o.BY)
        tap = o.item / _QUAD if o.STEP > 1 else 1.0
        return Wavefronts(brought, brought + wavefronts(o.item, o.BX, columns * o.BX) + tap)

    return of


# Kernel -> flops of its unit, as the methods count them, and the wavefronts of a warp's units.
_KERNELS: dict[str, tuple[float, Callable[[_Of], Wavefronts]]] = {
    **dict.fromkeys(("matmul_naive", "matmul_pattern"), (2, _elements)),
    "matmul_rows": (2, lambda o: Wavefronts(o.rows + o.line / o.ROWS, 0)),
    "matmul_shared": (2, _tiles),
    "matmul_column": (2, lambda o: Wavefronts(o.warp / o.ROWS, o.item / _QUAD)),
    "matmul_registers": (2, _products),
    "matvec_naive": (2, lambda o: Wavefronts(_WARP + 1, 0)),
    "matvec_constant": (2, lambda o: Wavefronts(_WARP, 0)),
    **dict.fromkeys(("matvec_shared", "matvec_split"), (2, _square(0))),
    **dict.fromkeys(("matvec_padded", "matvec_tuned"), (2, _square(1))),
    "convolve_naive": (2, lambda o: Wavefronts(o.lines + 1, 0)),
    "convolve_constant": (2, lambda o: Wavefronts(o.lines, 0)),
    "convolve_shared": (2, _image(1)),
    **dict.fromkeys(("convolve_row", "convolve_padded", "convolve_tuned"), (2, _image(2))),
    "jacobi_naive": (10, lambda o: Wavefronts((2 * o.DIMS + 2) * o.lines, 0)),
    "jacobi_shared": (10, lambda o: Wavefronts((2 * o.DIMS - 1) * o.lines, 5 * o.line)),
    "assign_points": (2, lambda o: Wavefronts(1 + (_WARP if o.last == 1 else o.warp), 0)),
    "assign_shared": (2, lambda o: Wavefronts(o.warp, 1)),
}
_DEFAULTS = {"BX": 32, "BY": 8, "ROWS": 1, "SIDE": 32, "GROUP": 1, "STEP": 1, "DIMS": 2}
_DEFAULTS |= {"SWAPPED": 0, "GROUPED": 0, "NX": 1, "TILES": 1}


def counted(
    kernel: str, defines: Mapping[str, Any], last: int, item: int, flops: float
) -> Wavefronts | None:
    """The wavefronts of a method's flops by its kernel; None of one that is not counted.

    ``defines`` are the kernel's macros, ``last`` is its last argument (of k-means the distance
    between a point's elements), ``item`` the bytes of an element.
    """
    if kernel not in _KERNELS:
        return None
    o = _Of(item=item, last=last, **{n: int(defines.get(n, d)) for n, d in _DEFAULTS.items()})
    o.warp = _wide(_WARP * item)  # neighbouring elements for all threads of a warp
    o.line = _wide(min(o.BX, _WARP) * item)  # for those in one row
    o.rows = max(1.0, _WARP / o.BX)  # of threads in a warp
    o.lines = o.rows * o.line
    unit, count = _KERNELS[kernel]
    return Wavefronts(*(flops / unit / _WARP * part for part in count(o)))
