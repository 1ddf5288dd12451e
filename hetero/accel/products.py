"""Products: what the gate offers, and `numpy.dot` and `numpy.einsum`.

`numpy.tensordot` and `numpy.linalg.multi_dot` call `numpy.dot`, which is replaced within NumPy too.
`ndarray.dot` is NumPy's: no documented way replaces a method of its arrays.
"""

from __future__ import annotations

import contextlib
import functools
import os
import string
import sys
import types
from collections.abc import Iterator
from math import prod
from typing import Any

from hetero import tables
from hetero.accel.gate import OFF, Gate
from hetero.accel.loading import has_device
from hetero.accel.notes import shapes
from hetero.accel.patching import standin
from hetero.accel.session import Attempt, Session
from hetero.imports import load

# Multiplications from which a product of matrices, or with a vector, is looked at: 256 cubed and
# 1024 squared, which NumPy makes in 0.1 to 1 ms.
MATRICES, VECTORS = 1 << 24, 1 << 20
# Multiplications a second, about.
_RATES = {"matrices": 2e10 * (os.cpu_count() or 1), "vectors": 2e9, "einsum": 1e9}
_OWN = ("blas",)  # the method that is NumPy's
_settled = tables.new_table()  # kinds of products that are NumPy's -> guessed seconds


def replaced(session: Session, name: str, original: Any) -> Any:
    """What stands in the place of `numpy.dot` or `numpy.einsum`."""
    if name == "numpy.einsum":
        return standin(original, einsum(session, original))
    return standin(original, dot(session, original)) if gains(session) else original


@contextlib.contextmanager
def caught_loops(session: Session) -> Iterator[None]:
    """A block in which NumPy's loops offer large products; `Unknown` where its loops are not."""
    _settled.clear()
    gate = gates()
    gate.take = functools.partial(_take, session)
    gate.limit(*((1, 1) if session.eager else (MATRICES, VECTORS)))
    gate.set()
    yield
    gate.limit(OFF, OFF)
    gate.restore()


def gains(session: Session) -> bool:
    """Whether products are looked at: without a device they gain nothing."""
    return session.recording or has_device()


@functools.cache
def gates() -> Gate:
    """The process's gates, which stay: threads may be on their way through."""
    return Gate(lambda *call: False)


def _take(
    session: Session, dtype: str, pointers: Any, extents: Any, strides: Any, loop: Any
) -> bool:
    kind = dtype, extents, strides
    if session.is_inside():
        return False
    if (guess := _settled.get(kind)) is not None:
        session.loading.spent += session.loading.expected("numpy.matmul", guess)
        return False
    guess = prod(extents) / _RATES["vectors" if 1 in extents[1::2] else "matrices"]
    if session.waits("numpy.matmul", guess):
        session.by_library("numpy.matmul", guess, loop)
        return True

    def plan() -> Any:
        now, made = tables.generation(), numpys.plan()
        is_plain = numpys.is_plain(made.chosen) and not made.kept and not _is_placed()
        if is_plain and not load("hetero.pricing.pricing").copies_pay(made):
            tables.remember(_settled, kind, numpys.seconds, now)
        return made

    numpys = attempted(*_views(dtype, pointers, extents, strides))
    attempt = numpys if session.sees_all else numpys._replace(plan=plan)
    session.run("numpy.matmul", attempt, loop)
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
    plan = functools.partial(_plan, A, B, C)
    compute = functools.partial(_computed, A, B, C)
    return Attempt(shapes((A, B)), seconds, obstacle, plan, _OWN, compute, (A, B), again=True)


def _is_placed() -> bool:
    """Whether the call stands in a block of `hetero.use`."""
    settings = sys.modules.get("hetero.settings")
    return settings is not None and settings.forced.get() is not None


def _plan(A: Any, B: Any, C: Any) -> Any:
    """The plan here, which counts the call: operands that come again may get copies."""
    arrays, planner = load("hetero.arrays"), load("hetero.calling.planner")
    inputs = arrays.describe_used(A), arrays.describe_used(B, A)
    target = None if C is None else arrays.describe(C)
    problem = load("hetero.ops.products.operands").build("matmul", *inputs, target)
    return planner.plan(problem, *planner.placement(None, None))


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


def einsum(session: Session, original: Any) -> Any:
    """The code of ``original``, `numpy.einsum`, of two arrays and without options."""
    ndarray, least = sys.modules["numpy"].ndarray, 1 if session.eager else VECTORS

    def einsum(*operands: Any, **options: Any) -> Any:
        if len(operands) == 3 and not options:
            subscripts, A, B = operands
            if type(A) is ndarray is type(B) and A.size * B.size >= least:
                attempt = _einsum(session, subscripts, A, B)
                if attempt is not None:
                    plain = functools.partial(original, *operands)
                    return session.run("numpy.einsum", attempt, plain)
        return original(*operands, **options)

    return einsum


def dot(session: Session, original: Any) -> Any:
    """The code of ``original``, `numpy.dot`."""
    ndarray, least = sys.modules["numpy"].ndarray, 1 if session.eager else VECTORS // 64

    @functools.wraps(original)
    def dot(a: Any = original, b: Any = original, *more: Any, **options: Any) -> Any:
        if more or options or b is original:  # which says what it misses
            return original(*(x for x in (a, b) if x is not original), *more, **options)
        if type(a) is ndarray and a.size >= least and type(b) is ndarray:
            attempt = _dot(session, a, b)
            if attempt is not None:  # a lambda would make each small call slower
                return session.run("numpy.dot", attempt, functools.partial(original, a, b))
        return original(a, b)

    return dot


def _dot(session: Session, a: Any, b: Any) -> Attempt | None:
    """The attempt of a large product of floats; None for any other."""
    if a.dtype.char not in "fd" or a.dtype != b.dtype or session.is_inside():
        return None
    ranks = a.ndim, b.ndim
    if ranks not in ((2, 2), (2, 1), (1, 2)) or a.shape[-1] != b.shape[0]:
        return None
    work = a.size * b.size // b.shape[0]
    if work < (MATRICES if ranks == (2, 2) else VECTORS) and not session.eager:
        return None
    return attempted(a, b)


def _einsum(session: Session, subscripts: Any, A: Any, B: Any) -> Attempt | None:
    """The attempt of a product of two arrays, which `numpy.einsum` computes without BLAS."""
    if A.dtype != B.dtype or A.dtype.char not in "fd" or type(subscripts) is not str:
        return None
    first, second, summed, result = _parsed(subscripts) or ("", "", "", "")
    if not summed or len(first) != A.ndim or len(second) != B.ndim:
        return None
    extents = [(A.shape[first.index(x)], B.shape[second.index(x)]) for x in summed]
    k = prod(n for n, _ in extents)
    if k == 0 or any(n != other for n, other in extents):
        return None
    if not session.looks(seconds := A.size * B.size / k / _RATES["einsum"]):
        return None
    free = [x for x in first if x not in summed], [x for x in second if x not in summed]
    a = A.transpose([first.index(x) for x in (*free[0], *summed)]).reshape(-1, k)
    b = B.transpose([second.index(x) for x in (*summed, *free[1])]).reshape(k, -1)
    order = [result.index(x) for x in free[0] + free[1]]

    def compute(plan: Any) -> Any:
        numpy = sys.modules["numpy"]
        with numpy.errstate(all="ignore"):  # as NumPy's loop
            is_blas = plan.chosen.device == "cpu"
            made = a @ b if is_blas else _computed(a, b, None, plan)
            if made is None or (is_blas and not numpy.isfinite(made).all()):
                return None
        # NumPy's iterator lays out the result by the operands' strides.
        axes = result + "".join(sorted(summed))
        placed = [[letters.find(x) for x in axes] for letters in (first, second, result)]
        flags = [["readonly"], ["readonly"], ["readwrite", "allocate"]]
        laid = numpy.nditer([A, B, None], ["reduce_ok"], flags, op_axes=placed).operands[2]
        ordered = laid.transpose(order)
        ordered[...] = made.reshape(ordered.shape)
        return laid if result else laid[()]

    plan = functools.partial(_plan, a, b, None)
    return Attempt(f"{subscripts} {shapes((A, B))}", seconds, None, plan, (), compute, (a, b))


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
