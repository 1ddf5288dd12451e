"""Two-dimensional correlation of images on the CPU.

Every thread takes tiles of the output. The part of the extended image that a tile reads is copied
to a buffer that stays in the cache, and there the boundary is dealt with, whichever it is; from
then on there are no edges. Blocks of a few rows by a few vectors are summed in registers over all
taps, which needs one load of the image for several products. That loop is written as LLVM's code:
Numba's loops keep no array of sums in registers. Addresses are integers, distances are in bytes.

Each output's products are added in one order wherever it lies: the result depends neither on the
tiles nor on the number of threads.
"""

from __future__ import annotations

import math

import llvmlite.binding
import numba  # noqa: F401  # whole, before its modules, which another thread may be importing
import numpy as np
from llvmlite import ir
from numba import carray
from numba.core import cgutils, types
from numba.extending import intrinsic

from hetero.host.threads import compiled, inlined, no_overlap, part, task_count, team_for

from ..common.launch import FILL, WRAP

_TILE_ROWS = 32  # rows of a tile of the image: it stays in a core's own cache
_TILE = 4096  # bytes of one row of a tile, at most
_MANY = 4  # tiles for each task, of which one more or less does not matter
_TAPS_PER_ELEMENT = 64  # products that take as long as one of the elements that `team_for` counts
# Vectors of 64 bytes where registers have them. A block's sums, and what it multiplies, fill most
# of the 32 registers there, or of the 16 elsewhere.
_WIDE = bool(llvmlite.binding.get_host_cpu_features().get("avx512f"))
_VECTOR = 64 if _WIDE else 32  # bytes
ROWS = 4 if _WIDE else 3
_VECTORS = 4  # vectors of a row of sums that stay in registers
BLOCK = _VECTOR * _VECTORS  # bytes of one row of a block: a rest takes as long as a whole
_WORD = ir.IntType(64)


def _pointer(builder, address, kind):  # type: ignore
    return builder.inttoptr(address, kind.as_pointer())


def _block_of(rows):  # type: ignore
    """A function for blocks of ``rows`` by `BLOCK` bytes.

    ``block(source, stride, step, taps, height, width, target, target_stride, unit)`` takes
    addresses and, in bytes, the distances between rows. Row r of the target becomes the sums over
    u < height and v < width of ``taps[u, v] * source[r * step + u, j + v]``: 2 height width flops
    for each output. unit is any number of the dtype.
    """

    places = range(_VECTORS)

    @intrinsic
    def block(context, source, stride, step, taps, height, width, target, target_stride, unit):  # type: ignore
        def generate(context, builder, signature, arguments):  # type: ignore
            source, stride, step, taps, height, width, target, target_stride, _ = arguments
            number, size = context.get_value_type(unit), unit.bitwidth // 8
            vector = ir.VectorType(number, _VECTOR // size)
            first_lane = ir.Constant(ir.VectorType(ir.IntType(32), _VECTOR // size), None)
            undefined = ir.Constant(vector, ir.Undefined)
            sums = [
                [cgutils.alloca_once_value(builder, ir.Constant(vector, None)) for _ in places]
                for _ in range(rows)
            ]

            def past(begin, *factors):  # type: ignore
                """The address or number of what lies the factors' product behind the begin."""
                numbers = (ir.Constant(_WORD, n) if isinstance(n, int) else n for n in factors)
                return builder.add(begin, builder.mul(*numbers))

            def bound(order, a, b):  # type: ignore
                return builder.select(builder.icmp_signed(order, a, b), a, b)

            def spread(tap):  # type: ignore
                value = builder.load(_pointer(builder, tap, number), align=size)
                one = builder.insert_element(undefined, value, ir.Constant(ir.IntType(32), 0))
                return builder.shuffle_vector(one, undefined, first_lane)

            def add(begin, end, used):  # type: ignore
                """Rows begin to end of the source, to the rows of the block that use them."""
                with cgutils.for_range_slice(builder, begin, end, ir.Constant(_WORD, 1)) as (s, _):
                    line = past(source, s, stride)
                    row = builder.mul(width, ir.Constant(_WORD, size))
                    weights = [past(taps, past(s, -r, step), row) for r in used]
                    with cgutils.for_range(builder, width) as loop:
                        tapped = [spread(past(weight, loop.index, size)) for weight in weights]
                        for k in places:
                            at = past(past(line, loop.index, size), k, _VECTOR)
                            x = builder.load(_pointer(builder, at, vector), align=size)
                            for r, tap in zip(used, tapped, strict=True):
                                product = builder.fmul(tap, x, flags=("contract",))
                                total = builder.load(sums[r][k])
                                total = builder.fadd(total, product, flags=("contract",))
                                builder.store(total, sums[r][k])

            firsts = [past(ir.Constant(_WORD, 0), r, step) for r in range(rows)]
            ends, full = [builder.add(first, height) for first in firsts], firsts[-1]
            for r in range(rows - 1):
                add(firsts[r], bound("<", full, ends[r]), [r])
            add(full, height, list(range(rows)))
            for r in range(1, rows):
                add(bound(">", full, height), ends[r], [r])
            for r in range(rows):
                line = past(target, r, target_stride)
                for k in places:
                    pointer = _pointer(builder, past(line, k, _VECTOR), vector)
                    builder.store(builder.load(sums[r][k]), pointer, align=size)
            return context.get_dummy_value()

        integers = (types.int64,) * 8
        return types.none(*integers, unit), generate

    return block


block = _block_of(ROWS)
flat_block = _block_of(1)


@intrinsic
def pointer(context, address, unit):  # type: ignore
    """An address as a pointer to numbers of ``unit``'s type, for `numba.carray`."""

    def generate(context, builder, signature, arguments):  # type: ignore
        return _pointer(builder, arguments[0], context.get_value_type(unit))

    return types.CPointer(unit)(types.int64, unit), generate


@inlined
def _inside(k, n, boundary):  # type: ignore
    """Which of n rows or columns stands at k, or -1 for the fill."""
    if 0 <= k < n:
        return k
    if boundary == FILL:
        return -1
    if boundary == WRAP:
        return k % n
    k %= 2 * n
    return k if k < n else 2 * n - 1 - k


@inlined
def _numbers(address, count, unit):  # type: ignore
    """The numbers at an address, of ``unit``'s type."""
    return carray(pointer(address, unit), count)


@inlined
def _copy(target, source, count, unit):  # type: ignore
    to, of = _numbers(target, count, unit), _numbers(source, count, unit)
    for j in range(count):
        to[j] = of[j]


@inlined
def _extend(image, part, boundary, fill, size, room, pitch):  # type: ignore
    """Copy a part of the extended image, (top, left, rows, columns), to ``room``."""
    (address, stride, height, width), (top, left, rows, columns) = image, part
    begin = min(max(-left, 0), columns)
    end = max(min(width - left, columns), begin)
    for i in range(rows):
        place = room + i * pitch
        line = _numbers(place, columns, fill)
        r = _inside(top + i, height, boundary)
        if r < 0:
            for j in range(columns):
                line[j] = fill
            continue
        row = address + r * stride
        source = _numbers(row, width, fill)
        _copy(place + begin * size, row + (left + begin) * size, end - begin, fill)
        for k in range(begin + columns - end):  # what lies to the left and to the right
            j = k if k < begin else k + end - begin
            c = _inside(left + j, width, boundary)
            line[j] = source[c] if c >= 0 else fill


@inlined
def _sum_blocks(source, taps, target, size, spare, unit):  # type: ignore
    """A tile's sums, block by block; the last blocks overlap those before them.

    Rows narrower than a block are made in ``spare``. The source is (address, bytes from row to row,
    rows from tap to tap); the taps are (address, height, width); the target is (address, bytes from
    row to row, rows, columns).
    """
    (begin, pitch, step), (first_tap, height, width) = source, taps
    (end, stride, rows, columns), last = target, target[3] * size - BLOCK
    tall = 1 if height <= step or rows < ROWS else ROWS
    for across in range(0, columns * size, BLOCK):
        at = max(min(across, last), 0)
        for down in range(0, rows, tall):
            i = min(down, rows - tall)
            here, there = begin + i * step * pitch + at, end + i * stride + at
            to, apart = (spare, BLOCK) if last < 0 else (there, stride)
            if tall == 1:
                flat_block(here, pitch, step, first_tap, height, width, to, apart, unit)
            else:
                block(here, pitch, step, first_tap, height, width, to, apart, unit)
            if last < 0:
                for r in range(tall):
                    _copy(there + r * stride, spare + r * BLOCK, columns, unit)


@inlined
def _sum_rows(source, pitch, taps, target, unit):  # type: ignore
    """A tile's sums with 3 x 3 taps, row by row: faster than blocks are with so few."""
    t, (begin, stride, rows, columns) = _numbers(taps, 9, unit), target
    a, b, c, d, e, f, g, h, k = t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8]
    for i in range(rows):
        here = source + i * pitch
        x = _numbers(here, columns + 2, unit)
        y = _numbers(here + pitch, columns + 2, unit)
        z = _numbers(here + 2 * pitch, columns + 2, unit)
        out = _numbers(begin + i * stride, columns, unit)
        for j in range(columns):
            total = a * x[j] + b * x[j + 1] + c * x[j + 2]
            total += d * y[j] + e * y[j + 1] + f * y[j + 2]
            out[j] = total + g * z[j] + h * z[j + 1] + k * z[j + 2]


@inlined
def _edge(i, rows, down):  # type: ignore
    """The first row of band i of ``down``, each of which has whole blocks of rows."""
    return min(i * -(-rows // ROWS) // down * ROWS, rows)


@compiled
def _sum_image(team, columns, rows, boundary, fill, size, room, numbers):  # type: ignore
    """All tiles."""
    _sum_bands(team, room.shape[0], (columns, rows, boundary, fill, size, room) + numbers)


@part
def _sum_bands(start, stop, columns, rows, boundary, fill, size, room,
               source, source_batch, source_stride, _, source_rows, source_columns,
               target, target_batch, target_stride, batch, out_rows, out_columns,
               height, width, terms, above, before, down, across, pitch):  # type: ignore  # fmt: skip
    """Tiles from their parts of the extended image: directly, or in terms + 1 passes.

    The terms' sums along rows alternate in the room after the image's part: to them, the columns
    are one filter of terms * height taps.
    """
    no_overlap()
    bands = room.shape[0]
    tasks = batch * down * across
    for band in range(start, stop):
        spare = (room[band].ctypes.data + 63) // 64 * 64
        part = spare + ROWS * BLOCK
        for task in range(band * tasks // bands, (band + 1) * tasks // bands):
            b, i, j = task // (down * across), task // across % down, task % across
            top, left = _edge(i, out_rows, down), j * out_columns // across
            tall, wide = _edge(i + 1, out_rows, down) - top, (j + 1) * out_columns // across - left
            deep = tall + height - 1
            image = source + b * source_batch, source_stride, source_rows, source_columns
            place = top - above, left - before, deep, wide + width - 1
            _extend(image, place, boundary, fill, size, part, pitch)
            begin = target + b * target_batch + top * target_stride + left * size
            to, between = (begin, target_stride, tall, wide), part + deep * pitch
            if terms == 0 and height == width == 3:
                _sum_rows(part, pitch, columns, to, fill)
                continue
            for r in range(terms + 1):
                read, taps, made = (part, pitch, 1), (columns, height, width), to
                if r < terms:
                    taps = rows + r * width * size, 1, width
                    made = between + r * pitch, terms * pitch, deep, wide
                elif terms > 0:
                    read, taps = (between, pitch, terms), (columns, terms * height, 1)
                _sum_blocks(read, taps, made, size, spare, fill)


def _address(array: np.ndarray) -> int:
    """Where an array's values begin; ``array.ctypes`` imports, which fails at the very end."""
    return array.__array_interface__["data"][0]


def correlate(
    image: np.ndarray,
    out: np.ndarray,
    corner: tuple[int, int],
    boundary: int,
    fillvalue: float,
    columns: np.ndarray,
    rows: np.ndarray | None = None,
) -> None:
    """Correlate images with a filter.

    ``out[b, i, j] = sum(taps[u, v] * image[b, i + u - top, j + v - left])`` over all u and v, with
    the image extended beyond its edges: 2 fh fw flops for each output. With ``rows`` the taps are
    ``sum(outer(columns[r], rows[r]))``, in 2 terms (fh + fw) flops for each output and a few more
    at the edges of tiles; where windows hold infinities or NaN, so may other outputs than those of
    the whole filter.

    Nothing is checked: loops get addresses.

    Parameters
    ----------
    image : (batch, H, W) array of float32 or float64, not empty
        Its last axis is contiguous.
    out : (batch, OH, OW) array, not empty
        Of the image's dtype, as are the taps. Its last axis is contiguous; no part of it overlaps
        the image.
    corner : (top, left)
        Where the first output's window begins, above and left of the image's corner.
    boundary : int
        FILL for fillvalue, WRAP for a periodic image, SYMM for one mirrored with its edges doubled.
    fillvalue : float
        Multiplied by the taps that lie outside, with FILL.
    columns : (fh, fw) array, C-contiguous
        The taps; with ``rows``, (terms, fh).
    rows : (terms, fw) array, C-contiguous
    """
    terms, width = (0, columns.shape[1]) if rows is None else rows.shape
    if terms:
        columns = np.ascontiguousarray(columns.T)
    height, size = len(columns), out.itemsize
    batch, tall, wide = out.shape
    taps = terms * (height + width) if terms else height * width

    team = team_for(max(out.size, out.size * taps // _TAPS_PER_ELEMENT))
    tasks = task_count(team)
    deep = max(_TILE_ROWS, 2 * height) if terms else _TILE_ROWS
    across = -(-wide * size // _TILE)
    # Bands of at most ``deep`` rows; where they are few, every task gets as many tiles.
    down, fair = -(-tall // deep), tasks // math.gcd(batch * across, tasks)
    if down * batch * across < _MANY * tasks:
        down = -(-down // fair) * fair
    down = min(down, -(-tall // ROWS))
    deep, most = -(-tall // (down * ROWS)) * ROWS + height, -(-wide // across) * size
    # Rows begin on lines of the cache, an odd number of lines apart.
    pitch = (most + BLOCK + width * size) // 128 * 128 + 192
    bands = min(tasks, down * across * batch)
    # Blocks wider than the output read on: zeros, since subnormal numbers would be slow.
    make = np.zeros if most < BLOCK else np.empty
    room = make((bands, 64 + ROWS * BLOCK + deep * (1 + terms) * pitch), np.uint8)
    fill, lines = out.dtype.type(fillvalue), 0 if rows is None else _address(rows)
    numbers = [number for x in (image, out) for number in (_address(x), *x.strides[:2], *x.shape)]
    numbers += height, width, terms, *corner, down, across, pitch
    _sum_image(team, _address(columns), lines, boundary, fill, size, room, tuple(numbers))
