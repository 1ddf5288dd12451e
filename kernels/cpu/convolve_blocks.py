"""A block of sums in registers, written as LLVM's code.

Numba's loops keep no array of sums in registers. Addresses are integers, distances are in bytes.
"""

from __future__ import annotations

import llvmlite.binding
import numba  # noqa: F401  # whole, before its modules, which another thread may be importing
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

__all__ = ["BLOCK", "ROWS", "block", "flat_block", "half_block", "pointer"]

# Vectors of 64 bytes where registers have them. A block's sums, and what it multiplies, fill most
# of the 32 registers there, or of the 16 elsewhere.
_WIDE = bool(llvmlite.binding.get_host_cpu_features().get("avx512f"))
_VECTOR = 64 if _WIDE else 32  # bytes
ROWS = 4 if _WIDE else 3
_VECTORS = 4  # vectors of a row of sums that stay in registers
BLOCK = _VECTOR * _VECTORS  # bytes of one row of a block
_WORD = ir.IntType(64)


def _pointer(builder, address, kind):  # type: ignore
    return builder.inttoptr(address, kind.as_pointer())


def _block_of(rows, vectors):  # type: ignore
    """A function for blocks of ``rows`` by ``vectors``.

    ``block(source, stride, step, taps, height, width, target, target_stride, unit)`` takes
    addresses and, in bytes, the distances between rows. Row r of the target becomes the sums over
    u < height and v < width of ``taps[u, v] * source[r * step + u, j + v]``: 2 height width flops
    for each output. unit is any number of the dtype.
    """

    places = range(vectors)

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

            def past(begin, count, distance):  # type: ignore
                """The address or number of what lies ``count`` distances behind the begin."""
                number = (
                    ir.Constant(_WORD, n) if isinstance(n, int) else n for n in (count, distance)
                )
                return builder.add(begin, builder.mul(*number))

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


block = _block_of(ROWS, _VECTORS)
half_block = _block_of(ROWS, _VECTORS // 2)
flat_block = _block_of(1, _VECTORS)


@intrinsic
def pointer(context, address, unit):  # type: ignore
    """An address as a pointer to numbers of ``unit``'s type, for `numba.carray`."""

    def generate(context, builder, signature, arguments):  # type: ignore
        return _pointer(builder, arguments[0], context.get_value_type(unit))

    return types.CPointer(unit)(types.int64, unit), generate
