"""A model of the H100's tensor cores, bit for bit, and of products by 16-bit pieces on them.

As published (doi 10.1145/3830409): 16 products and the sum so far are aligned to the largest
exponent, cut off two bits below float32's last one, added, and cut off to float32.
"""

import numpy as np

GROUP, EXTRA_BITS, LEAST_EXPONENT = 16, 2, -133
TOP, LIFT = 14, 2.0**11  # as in tensor_pieces.cu


def exponents(x):
    """floor(log2 |x|); very small for 0."""
    return np.where(x == 0, -1000, np.frexp(x)[1] - 1)


def cut_off(x):
    """float64 to float32 toward zero."""
    near = x.astype(np.float32)
    return np.where(np.abs(near.astype(float)) > np.abs(x), np.nextafter(near, np.float32(0)), near)


def add_products(total, a, b):
    """float32 sums (rows,) plus those of a b, (rows, multiple of 16) float64 of 16-bit values."""
    for at in range(0, a.shape[1], GROUP):
        x, y = a[:, at : at + GROUP], b[:, at : at + GROUP]
        products, before = x * y, total.astype(float)
        of_products = np.where(products == 0, -1000, exponents(x) + exponents(y)).max(1)
        largest = np.maximum(np.maximum(of_products, exponents(before)), LEAST_EXPONENT)
        unit = np.exp2((largest - 23 - EXTRA_BITS).astype(float))
        cut = np.trunc(products / unit[:, None]).sum(1) + np.trunc(before / unit)
        total = cut_off(cut * unit)
    return total


def to_bfloat16(x):
    """float32's nearest bfloat16, as float32."""
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + (bits >> np.uint64(16) & np.uint64(1))) & np.uint64(0xFFFF0000)
    return bits.astype(np.uint32).view(np.float32)


def scaled(x):
    """Rows, each times the power of two that brings its largest magnitude to [2^14, 2^15); the
    exponents."""
    e = exponents(np.abs(x).max(1).astype(float))
    return (x * np.exp2(TOP - e)[:, None]).astype(np.float32), e


def pieces(x, float16):
    """The pieces of scaled rows, as float64."""
    if float16:
        high = x.astype(np.float16).astype(np.float32)
        low = ((x - high) * np.float32(LIFT)).astype(np.float16)
        return [high.astype(float), low.astype(float)]
    found, rest = [], x
    for _ in range(3):
        found.append(to_bfloat16(rest).astype(float))
        rest = (rest - found[-1]).astype(np.float32)
    return found


def put_together(laid):
    """What two pieces of float16, or three of bfloat16, add up to, (..., rows, columns), which lie
    as wgmma reads them: (..., panels, steps, pieces, 128, 4, 8) of uint16."""
    *front, panels, steps, count = laid.shape[:-3]
    eighths = np.arange(4) ^ (np.arange(128)[:, None] >> 1 & 3)
    eighths = eighths.reshape(*[1] * (laid.ndim - 3), 128, 4, 1)
    found = np.moveaxis(np.take_along_axis(laid, eighths, axis=-2), -4, 0)
    if count == 2:
        high, low = found.view(np.float16).astype(float)
        values = high + low / LIFT
    else:
        values = (found.astype(np.uint32) << 16).view(np.float32).astype(float).sum(axis=0)
    return values.swapaxes(-4, -3).reshape(*front, panels * 128, steps * 32)


def dots(A, B, float16):
    """The dot products of rows of A and B, float32, as tensor_product.cu computes them."""
    (a, of_a), (b, of_b) = scaled(A), scaled(B)
    a, b = pieces(a, float16), pieces(b, float16)
    pairs = [(0, 1), (1, 0)] if float16 else [(0, 1), (1, 0), (0, 2), (2, 0), (1, 1)]
    depth = 64 if float16 else 32
    total = others = np.zeros(len(A), np.float32)
    for at in range(0, A.shape[1], depth):
        here = slice(at, at + depth)
        total = total + add_products(np.zeros_like(total), a[0][:, here], b[0][:, here])
        for i, j in pairs:
            others = add_products(others, a[i][:, here], b[j][:, here])
    lowered = others.astype(float) / (LIFT if float16 else 1.0)
    return (total + lowered).astype(np.float32) * np.exp2(of_a + of_b - 2.0 * TOP)


def chained(A, B):
    """The same by multiply-adds of float32, one after the other, as SGEMM without parts of k."""
    total = np.zeros(len(A), np.float32)
    for x, y in zip(A.T.astype(float), B.T.astype(float), strict=True):
        total = (x * y + total).astype(np.float32)
    return total.astype(float)
