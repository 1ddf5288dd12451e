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


def _pointer(builder, address, kind):  # type: ignore
    return builder.inttoptr(address, kind.as_pointer())


def _block_of(rows, vectors):  # type: ignore
    """A function for blocks of ``rows`` by ``vectors``.

    ``block(source, stride, step, taps, height, width, target, target_stride, unit)`` takes
    addresses and, in bytes, the distances between rows. Row r of the target becomes the sums over
    u < height and v < width of ``taps[u, v] * source[r * step + u, j + v]``: 2 height width flops
    for each output. unit is any number of the dtype.
    """

    @intrinsic
    def block(context, source, stride, step, taps, height, width, target, target_stride, unit):  # type: ignore
        def generate(context, builder, signature, arguments):  # type: ignore
            source, stride, step, taps, height, width, target, target_stride, _ = arguments
            number = context.get_value_type(unit)
            size = unit.bitwidth // 8
            vector = ir.VectorType(number, _VECTOR // size)
            spread = ir.Constant(ir.VectorType(ir.IntType(32), _VECTOR // size), None)

            def constant(value):  # type: ignore
                return ir.Constant(ir.IntType(64), value)

            def smaller(a, b):  # type: ignore
                return builder.select(builder.icmp_signed("<", a, b), a, b)

            def larger(a, b):  # type: ignore
                return builder.select(builder.icmp_signed("<", a, b), b, a)

            sums = [
                [
                    cgutils.alloca_once_value(builder, ir.Constant(vector, None))
                    for _ in range(vectors)
                ]
                for _ in range(rows)
            ]

            def add(begin, end, used):  # type: ignore
                """Rows begin to end of the source, to the rows of the block that use them."""
                with cgutils.for_range_slice(builder, begin, end, constant(1)) as (s, _):
                    line = builder.add(source, builder.mul(s, stride))
                    weights = [
                        builder.add(
                            taps,
                            builder.mul(
                                builder.sub(s, builder.mul(constant(r), step)),
                                builder.mul(width, constant(size)),
                            ),
                        )
                        for r in used
                    ]
                    with cgutils.for_range(builder, width) as loop:
                        offset = builder.mul(loop.index, constant(size))
                        at = builder.add(line, offset)
                        tapped = []
                        for weight in weights:
                            pointer = _pointer(builder, builder.add(weight, offset), number)
                            tap = builder.insert_element(
                                ir.Constant(vector, ir.Undefined),
                                builder.load(pointer, align=size),
                                ir.Constant(ir.IntType(32), 0),
                            )
                            tapped.append(
                                builder.shuffle_vector(
                                    tap, ir.Constant(vector, ir.Undefined), spread
                                )
                            )
                        for k in range(vectors):
                            pointer = _pointer(
                                builder, builder.add(at, constant(k * _VECTOR)), vector
                            )
                            x = builder.load(pointer, align=size)
                            for r, tap in zip(used, tapped, strict=True):
                                product = builder.fmul(tap, x, flags=("contract",))
                                total = builder.load(sums[r][k])
                                builder.store(
                                    builder.fadd(total, product, flags=("contract",)), sums[r][k]
                                )

            full = builder.mul(constant(rows - 1), step)
            for r in range(rows - 1):
                first = builder.mul(constant(r), step)
                add(first, smaller(full, builder.add(first, height)), [r])
            add(full, height, list(range(rows)))
            for r in range(1, rows):
                first = builder.mul(constant(r), step)
                add(larger(full, height), builder.add(first, height), [r])
            for r in range(rows):
                line = builder.add(target, builder.mul(constant(r), target_stride))
                for k in range(vectors):
                    pointer = _pointer(builder, builder.add(line, constant(k * _VECTOR)), vector)
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
