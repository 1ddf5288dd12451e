"""Two-dimensional correlation of images on the CPU.

Every thread takes tiles of the output. The part of the extended image that a tile reads is copied
to a buffer that stays in the cache, and there the boundary is dealt with, whichever it is; from
then on there are no edges. Blocks of a few rows by a few vectors are summed in registers over all
taps, which needs one load of the image for several products: `convolve_blocks` writes that loop.

Each output's products are added in one order wherever it lies: the result depends neither on the
tiles nor on the number of threads.
"""

from __future__ import annotations

import math

import numpy as np
from numba import carray

from hetero.host.threads import compiled, inlined, no_overlap, part, task_count, team_for

from ..common.boundaries import FILL, SYMM, WRAP
from .convolve_blocks import BLOCK, ROWS, block, flat_block, half_block, pointer

__all__ = ["FILL", "SYMM", "WRAP", "block_width", "correlate"]


_TILE_ROWS = 32  # rows of a tile of the image: it stays in a core's own cache
_TILE = 4096  # bytes of one row of a tile, at most
_MANY = 4  # tiles for each task, of which one more or less does not matter
_TAPS_PER_ELEMENT = 64  # products that take as long as one of the elements that `share` counts


def block_width(dtype: np.dtype) -> int:
    """Columns that are summed at a time at least: a rest takes as long as a whole."""
    return BLOCK // 2 // dtype.itemsize


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
def _extend(image, corner, part, boundary, fill, size, room, pitch):  # type: ignore
    """Copy ``part`` (rows, columns) of the extended image, from its ``corner``, to ``room``."""
    address, stride, height, width = image
    top, left = corner
    rows, columns = part
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
def _sum_blocks(
    source, pitch, step, taps, height, width, target, stride, rows, columns, size, spare, unit
):  # type: ignore
    """A tile's sums, block by block; the last blocks overlap those before them.

    Rows narrower than a block are made in ``spare``. Half a block is enough for the rest of a row
    where that is no more.
    """
    tall = 1 if height <= step or rows < ROWS else ROWS
    bytes = columns * size
    for begin in range(0, bytes, BLOCK):
        wide = BLOCK // 2 if tall > 1 and bytes - begin <= BLOCK // 2 else BLOCK
        narrow = bytes < wide
        at = max(min(begin, bytes - wide), 0)
        for first in range(0, rows, tall):
            i = min(first, rows - tall)
            here, there = source + i * step * pitch + at, target + i * stride + at
            to, apart = (spare, BLOCK) if narrow else (there, stride)
            if tall == 1:
                flat_block(here, pitch, step, taps, height, width, to, apart, unit)
            elif wide == BLOCK:
                block(here, pitch, step, taps, height, width, to, apart, unit)
            else:
                half_block(here, pitch, step, taps, height, width, to, apart, unit)
            if narrow:
                for r in range(tall):
                    _copy(there + r * stride, spare + r * BLOCK, columns, unit)


@inlined
def _sum_rows(source, pitch, taps, target, stride, rows, columns, unit):  # type: ignore
    """A tile's sums with 3 x 3 taps, row by row: faster than blocks are with so few."""
    t = _numbers(taps, 9, unit)
    a, b, c, d, e, f, g, h, k = t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8]
    for i in range(rows):
        here = source + i * pitch
        x = _numbers(here, columns + 2, unit)
        y = _numbers(here + pitch, columns + 2, unit)
        z = _numbers(here + 2 * pitch, columns + 2, unit)
        out = _numbers(target + i * stride, columns, unit)
        for j in range(columns):
            total = a * x[j] + b * x[j + 1] + c * x[j + 2]
            total += d * y[j] + e * y[j + 1] + f * y[j + 2]
            out[j] = total + g * z[j] + h * z[j + 1] + k * z[j + 2]


@inlined
def _sum_tile(source, pitch, columns, rows, counts, target, stride, shape, size, spare, unit):  # type: ignore
    """A tile from its part of the extended image: directly, or in terms + 1 passes.

    The terms' sums along rows alternate in the room after the image's part: to them, the columns
    are one filter of terms * height taps.
    """
    height, width, terms = counts
    if terms == 0 and height == width == 3:
        _sum_rows(source, pitch, columns, target, stride, shape[0], shape[1], unit)
        return
    deep = shape[0] + height - 1
    between = source + deep * pitch
    for r in range(terms + 1):
        if r < terms:
            taps, begin, step, tall, wide = rows + r * width * size, source, 1, 1, width
            to, apart, lines = between + r * pitch, terms * pitch, deep
        else:
            taps, to, apart, lines = columns, target, stride, shape[0]
            if terms > 0:
                begin, step, tall, wide = between, terms, terms * height, 1
            else:
                begin, step, tall, wide = source, 1, height, width
        _sum_blocks(
            begin, pitch, step, taps, tall, wide, to, apart, lines, shape[1], size, spare, unit
        )


@inlined
def _edge(i, rows, down):  # type: ignore
    """The first row of band i of ``down``, each of which has whole blocks of rows."""
    return min(i * -(-rows // ROWS) // down * ROWS, rows)


@compiled
def _sum_image(team, image, out, columns, rows, counts, corner, tiles, boundary, fill, size, room):  # type: ignore
    """All tiles; image and out are (address, strides of two axes, shape)."""
    numbers = image + out + counts + corner + tiles
    _sum_bands(team, room.shape[0], (columns, rows, boundary, fill, size, room) + numbers)


@part
def _sum_bands(start, stop, columns, rows, boundary, fill, size, room,
               source, source_batch, source_stride, _, source_rows, source_columns,
               target, target_batch, target_stride, batch, out_rows, out_columns,
               height, width, terms, above, before, down, across, pitch):  # type: ignore  # fmt: skip
    no_overlap()
    bands = room.shape[0]
    tasks = batch * down * across
    for band in range(start, stop):
        spare = (room[band].ctypes.data + 63) // 64 * 64
        part = spare + ROWS * BLOCK
        for task in range(band * tasks // bands, (band + 1) * tasks // bands):
            b, i, j = task // (down * across), task // across % down, task % across
            top, left = _edge(i, out_rows, down), j * out_columns // across
            shape = _edge(i + 1, out_rows, down) - top, (j + 1) * out_columns // across - left
            _extend(
                (source + b * source_batch, source_stride, source_rows, source_columns),
                (top - above, left - before),
                (shape[0] + height - 1, shape[1] + width - 1),
                boundary,
                fill,
                size,
                part,
                pitch,
            )
            begin = target + b * target_batch + top * target_stride + left * size
            counts = height, width, terms
            _sum_tile(
                part, pitch, columns, rows, counts, begin, target_stride, shape, size, spare, fill
            )


def _bands(rows: int, most: int, each: int, tasks: int) -> int:
    """Into how many bands of at most ``most`` rows to cut, so that every task gets as many tiles.

    A band has ``each`` tiles.
    """
    fair = tasks // math.gcd(each, tasks)
    bands = -(-rows // most)
    if bands * each < _MANY * tasks:
        bands = -(-bands // fair) * fair
    return min(bands, -(-rows // ROWS))


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
    down = _bands(tall, deep, batch * across, tasks)
    deep, most = -(-tall // (down * ROWS)) * ROWS + height, -(-wide // across) * size
    # Rows begin on lines of the cache, an odd number of lines apart.
    pitch = (most + BLOCK + width * size) // 128 * 128 + 192
    bands = min(tasks, down * across * batch)
    # Blocks wider than the output read on: zeros, since subnormal numbers would be slow.
    make = np.zeros if most < BLOCK else np.empty
    room = make((bands, 64 + ROWS * BLOCK + deep * (1 + terms) * pitch), np.uint8)
    _sum_image(
        team,
        (_address(image), *image.strides[:2], *image.shape),
        (_address(out), *out.strides[:2], *out.shape),
        _address(columns),
        0 if rows is None else _address(rows),
        (height, width, terms),
        corner,
        (down, across, pitch),
        boundary,
        out.dtype.type(fillvalue),
        size,
        room,
    )
