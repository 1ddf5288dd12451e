"""Products: what the gate offers, and `numpy.dot` and `numpy.einsum`.

`numpy.tensordot` and `numpy.linalg.multi_dot` call `numpy.dot`, which is replaced within NumPy too.
`ndarray.dot` is NumPy's: no documented way replaces a method of its arrays.
"""

from __future__ import annotations

import functools
import logging
import os
import string
import sys
import types
from collections.abc import Callable
from math import prod
from typing import Any

from hetero import tables
from hetero.accel.gate import Gate
from hetero.accel.loading import has_device
from hetero.accel.session import LEAST, Attempt, Session, shapes, wrapped
from hetero.imports import load

log = logging.getLogger("hetero")
# Multiplications from which a product of matrices, or with a vector, is looked at: 256 cubed and
# 1024 squared, which NumPy makes in 0.1 to 1 ms.
MATRICES, VECTORS = 1 << 24, 1 << 20
_DOT = 1 << 26  # product of the operands' sizes, from which `numpy.dot` may have as many
# Multiplications a second, about.
_RATES = {"matrices": 2e10 * (os.cpu_count() or 1), "vectors": 2e9, "einsum": 1e9}
_settled = tables.new_table()  # kinds of products that are NumPy's -> guessed seconds


def gated(installed: Any, name: str, original: Any) -> Any:
    """`numpy.matmul` as it is: until the end of ``installed`` its loops offer large products."""
    session = installed.session
    if gains(session):
        _settled.clear()
        try:
            gate, least = gates(), (1, 1) if session.eager else (MATRICES, VECTORS)
        except (NotImplementedError, AttributeError, ValueError) as error:
            log.warning("A @ B is left as it is: %s", error)
        else:
            gate.set(functools.partial(_take, session), *least)
            installed.ends.callback(gate.restore)
    return original


def caught_dot(installed: Any, name: str, original: Any) -> Any:
    """What stands in the place of `numpy.dot`."""
    if not gains(installed.session):
        return original
    return wrapped(_dot, 0, _DOT, installed, name, original)


def gains(session: Session) -> bool:
    """Whether products are looked at: without a device they gain nothing."""
    return session.recording or has_device()


gates = functools.cache(Gate)  # which stay: threads may be on their way through


def _take(
    session: Session, dtype: str, pointers: Any, extents: Any, strides: Any, loop: Any
) -> bool:
    kind = dtype, extents, strides
    if not session.looks(LEAST):
        return False
    if not session.recording and (guess := _settled.get(kind)) is not None:
        session.loading.spent += session.loading.expected("numpy.matmul", guess)
        return False
    guess = prod(extents) / _RATES["vectors" if 1 in extents[1::2] else "matrices"]
    if session.waits():
        session.by_library("numpy.matmul", guess, loop)
        return True

    def plan() -> Any:
        now, made = tables.generation(), numpys.plan()
        is_plain = numpys.is_plain(made.chosen) and not made.kept and not _is_placed()
        if is_plain and not load("hetero.pricing.pricing").copies_pay(made):
            tables.remember(_settled, kind, guess, now)
        return made

    numpys = attempted(*_views(dtype, pointers, extents, strides))
    session.run("numpy.matmul", numpys._replace(plan=plan), loop)
    return True


def _views(dtype: str, pointers: Any, extents: Any, strides: Any) -> list[Any]:
    """Operands and result of a loop as arrays."""
    numpy, (count, m, k, n), within = sys.modules["numpy"], extents, iter(strides[3:])
    arrays = []
    for pointer, between, core in zip(pointers, strides, ((m, k), (k, n), (m, n)), strict=False):
        steps = next(within), next(within)
        shape = core if count == 1 else (count, *core)
        steps = steps if count == 1 else (between, *steps)
        seen = {"version": 3, "data": (pointer, False), "shape": shape, "strides": steps}
        seen["typestr"] = numpy.dtype(dtype).str
        arrays.append(numpy.asarray(types.SimpleNamespace(__array_interface__=seen)))
    return arrays


def attempted(A: Any, B: Any, C: Any = None) -> Attempt:
    """The attempt of a product, ``C`` taking the result where it is given."""
    vectors = min(A.ndim, B.ndim) < 2 or 1 in (A.shape[-2], B.shape[-1])
    seconds = A.size * (B.shape[-1] if B.ndim > 1 else 1)
    seconds /= _RATES["vectors" if vectors else "matrices"]
    obstacle = None
    if not has_device() and not _is_placed():
        obstacle = "no-device", "measured HERE by NumPy's BLAS; there is no GPU"

    def plan() -> Any:
        """The plan here, which counts the call: operands that come again may get copies."""
        arrays, planner = load("hetero.arrays"), load("hetero.calling.planner")
        inputs = arrays.describe_used(A), arrays.describe_used(B, A)
        target = None if C is None else arrays.describe(C)
        problem = load("hetero.ops.products.operands").build("matmul", *inputs, target)
        return planner.plan(problem, *planner.placement(None, None))

    compute = functools.partial(_computed, A, B, C)
    return Attempt(shapes(A, B), seconds, obstacle, plan, ("blas",), compute, (A, B))


def _is_placed() -> bool:
    """Whether the call stands in a block of `hetero.use`."""
    settings = sys.modules.get("hetero.settings")
    return settings is not None and settings.forced.get() is not None


def _computed(A: Any, B: Any, C: Any, plan: Any) -> Any:
    """The product; None where it holds NaN or infinity, which NumPy is to warn of."""
    execution, results = load("hetero.calling.execution"), load("hetero.moving.results")
    kernels, numpy = load("hetero.ops.convolve2d.device"), sys.modules["numpy"]
    given = () if C is None else (C, plan.problem.output)
    flags: dict[Any, Any] = {}  # device -> (buffer, owner), of whether a part is not finite

    def look(device: Any, dtype: str, buffer: Any, count: int) -> None:
        if device not in flags:
            flags[device] = kernels.flag(device)
        kernels.find_not_finite(device, dtype, buffer, count, flags[device][0])

    before = results.look.set(look)
    try:
        made = execution.execute(plan, execution.Call((A, B), plan.problem.inputs, *given))
        for device, (buffer, _) in flags.items():
            flag = numpy.empty(1, "i4")
            with device.active():
                device.download(buffer, flag)
            if flag[0]:
                return None
        return made if flags or numpy.isfinite(made).all() else None
    finally:
        results.look.reset(before)
        if C is not None:
            load("hetero.arrays.kept").written(C)


# -- Functions of NumPy's that call BLAS without a loop --------------------------------------------


def _dot(looks: Callable[[float], bool], *operands: Any, **options: Any) -> Attempt | None:
    """`numpy.dot` of floats, which calls BLAS."""
    ndarray = sys.modules["numpy"].ndarray
    if options or len(operands) != 2 or not all(type(x) is ndarray for x in operands):
        return None
    (a, b), ranks = operands, tuple(x.ndim for x in operands)
    if a.dtype.char not in "fd" or a.dtype != b.dtype or ranks not in ((2, 2), (2, 1), (1, 2)):
        return None
    if a.shape[-1] != b.shape[0] or not b.size:
        return None
    is_large = a.size * b.size // b.shape[0] >= (MATRICES if ranks == (2, 2) else VECTORS)
    return attempted(a, b) if looks(LEAST * is_large) else None


def einsum(looks: Callable[[float], bool], *operands: Any, **options: Any) -> Attempt | None:
    """`numpy.einsum` of two arrays of floats that is a product, but is computed without BLAS."""
    if len(operands) != 3 or options:
        return None
    (subscripts, A, B), ndarray = operands, sys.modules["numpy"].ndarray
    if not (type(subscripts) is str and type(A) is ndarray is type(B)):
        return None
    first, second, summed, result = _parsed(subscripts) or ("", "", "", "")
    if not summed or (len(first), len(second)) != (A.ndim, B.ndim):
        return None
    extents = {x: B.shape[second.index(x)] for x in summed}
    k = prod(extents.values())
    if A.dtype != B.dtype or A.dtype.char not in "fd" or k == 0:
        return None
    if any(A.shape[first.index(x)] != n for x, n in extents.items()):
        return None
    if not looks(seconds := A.size * B.size / k / _RATES["einsum"]):
        return None
    free = [x for x in first if x not in summed], [x for x in second if x not in summed]
    a = A.transpose([first.index(x) for x in (*free[0], *summed)]).reshape(-1, k)
    b = B.transpose([second.index(x) for x in (*summed, *free[1])]).reshape(k, -1)
    made = attempted(a, b)

    def compute(plan: Any) -> Any:
        numpy = sys.modules["numpy"]
        with numpy.errstate(all="ignore"):  # as NumPy's loop
            is_blas = plan.chosen.device == "cpu"
            product = a @ b if is_blas else made.compute(plan)
            if product is None or (is_blas and not numpy.isfinite(product).all()):
                return None
        # NumPy's iterator lays out the result by the operands' strides.
        axes = result + "".join(sorted(summed))
        placed = [[letters.find(x) for x in axes] for letters in (first, second, result)]
        flags = [["readonly"], ["readonly"], ["readwrite", "allocate"]]
        laid = numpy.nditer([A, B, None], ["reduce_ok"], flags, op_axes=placed).operands[2]
        ordered = laid.transpose([result.index(x) for x in free[0] + free[1]])
        ordered[...] = product.reshape(ordered.shape)
        return laid if result else laid[()]

    what = f"{subscripts} {shapes(A, B)}"
    return Attempt(what, seconds, None, made.plan, (), compute, made.operands)


@functools.lru_cache(256)
def _parsed(subscripts: str) -> tuple[str, str, str, str] | None:
    """(letters of A, of B, those summed over, of the result) of a product; None for others."""
    inputs, arrow, result = subscripts.replace(" ", "").partition("->")
    first, comma, second = inputs.partition(",")
    letters = first + second
    if not comma or not set(letters + result) <= set(string.ascii_letters):
        return None
    if not arrow:
        result = "".join(sorted(x for x in letters if letters.count(x) == 1))
    summed = "".join(x for x in first if x in second and x not in result)
    free = [x for x in letters if x not in summed]
    simple = len(set(first)) == len(first) and len(set(second)) == len(second)
    if not simple or not summed or sorted(free) != sorted(result):
        return None
    return first, second, summed, result
