"""Products: what the gate offers; `numpy.dot` and `numpy.einsum`, which go the same way.

NumPy's C API lets anybody put another inner loop in the place of one of a universal function's
(`PyUFunc_ReplaceLoopBySignature`). Operators, ``out=``, casts, broadcasting, subclasses and errors
are NumPy's before it calls the loop. A loop in Python would cost 2 us a call, so a gate stands in
front of those of `matmul`, `gate.c`, compiled when hetero is installed: small products run as ever.
It offers large ones to Python, and where that has not computed one, for whatever reason, NumPy's
loop does.

Large products of `numpy.dot` and `numpy.einsum` are made by `matmul`, and so offered.
`numpy.tensordot` and `numpy.linalg.multi_dot` call `numpy.dot`, which is replaced within NumPy too.
`ndarray.dot` is NumPy's: no documented way replaces a method of its arrays.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import os
import sys
import threading
import types
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

from hetero import tables
from hetero.accel import session as sessions
from hetero.accel.session import LEAST, Attempt, Note, Session, has_device, looks, shapes, timed
from hetero.imports import load

log = logging.getLogger("hetero")
# Multiplications from which a product of matrices, or with a vector, is looked at: 256 cubed and
# 1024 squared, which NumPy makes in 0.1 to 1 ms.
MATRICES, VECTORS = 1 << 24, 1 << 20
DOT = 1 << 26  # product of the operands' sizes, from which `numpy.dot` may have as many
# Multiplications a second, about; those of `numpy.einsum`.
_RATES, _EINSUM = {False: 2e10 * (os.cpu_count() or 1), True: 2e9}, 1e9  # True: with a vector
_OWN = ("blas",)  # the method that is NumPy's
_settled = tables.new_table()  # kinds of products that are NumPy's -> guessed seconds
_ABI = 0x02000000  # of NumPy 2; what gate.c takes from NumPy's tables is fixed by it
_INTEGER, _WORD, _OBJECT = ctypes.c_ssize_t, ctypes.c_void_p, ctypes.py_object
_FILE = Path(__file__).with_name("libgate.so.1")


# -- The gate --------------------------------------------------------------------------------------


class Gate:
    """The gates of both product loops, one for the process; an error where there can be none."""

    def __init__(self) -> None:
        module, library = sys.modules["numpy._core._multiarray_umath"], ctypes.PyDLL(str(_FILE))
        apis, thread = (module._ARRAY_API, module._UFUNC_API), threading.main_thread().ident
        version = library.begin(*map(_OBJECT, apis), ctypes.c_ulong(thread))
        if version != _ABI:
            raise ValueError(f"NumPy's C API must be of version {_ABI:#x}, got {version:#x}")
        self._library, self._matmul = library, _OBJECT(sys.modules["numpy"].matmul)
        self._function = _OBJECT(self._offered)
        self._run = ctypes.CDLL(str(_FILE)).run  # without the interpreter's lock
        self._run.argtypes, self._run.restype = (ctypes.c_int, *[_WORD] * 4), None

    def set(self, matrices: int, vectors: int) -> None:
        """Offer products from a number of multiplications on, of matrices or with a vector."""
        limits = _INTEGER(matrices), _INTEGER(vectors)
        self._library.stand(self._matmul, self._function, *limits)

    def restore(self) -> None:
        """Put the loops back, each where its gate still stands."""
        self._library.leave(self._matmul)

    def _offered(self, which: int, done: int, *given: int) -> None:
        """What a gate calls with the addresses of whether the product is done, and of what NumPy
        hands to its loop: pointers, extents, steps and data."""
        ended: list[None] = []  # by NumPy's loop, which no signal's handler parts from its note
        sizes = zip(given, (3, 4, 9), strict=False)
        product = [tuple((_INTEGER * count).from_address(at)) for at, count in sizes]

        def loop() -> None:
            ended.extend(map(self._run, *([x] for x in (which, *given))))

        try:
            if _take(("float32", "float64")[which], *product, loop):
                ended.append(None)
        finally:
            _INTEGER.from_address(done).value = len(ended)


gates = functools.cache(Gate)  # which stay: threads may be on their way through


def open_gate(session: Session, ends: contextlib.ExitStack) -> None:
    """Have large products offered to a session, until ``ends`` is closed."""
    if not gains(session):
        return
    try:
        gate = gates()
    except (OSError, KeyError, AttributeError, ValueError) as error:  # not compiled, another NumPy
        log.warning("A @ B is left as it is: %s", error)
        return
    gate.set(*((1, 1) if session.eager else (MATRICES, VECTORS)))
    ends.callback(gate.restore)


def gains(session: Session) -> bool:
    """Whether products are looked at: without a device they gain nothing."""
    return session.recording or has_device()


def _take(dtype: str, pointers: Any, extents: Any, strides: Any, loop: Callable[[], Any]) -> bool:
    """Compute a large product; whether that was done.

    The pointers are those of two operands and the result, and ``loop()`` computes it as NumPy does.
    What is raised is raised once the product is done.
    """
    kind = dtype, extents, strides
    session = sessions.current
    if session is None or not looks(LEAST):
        return False
    if not session.recording and (guess := _settled.get(kind)) is not None:
        session.loading.count(guess, 0.0)
        return False
    if not (session.recording or session.loading.pays()):
        _, seconds = timed(loop)
        session.loading.count(seconds)
        session.note(Note("numpy.matmul", "", "", "start", "", seconds))
    else:
        attempt = _attempt(*_views(dtype, pointers, extents, strides), kind)
        session.run("numpy.matmul", attempt, loop)
    return True


def _views(dtype: str, pointers: Any, extents: Any, strides: Any) -> list[Any]:
    """Operands and result of a loop as arrays."""
    numpy, (count, m, k, n), arrays = sys.modules["numpy"], extents, []
    for i, core in enumerate(((m, k), (k, n), (m, n))):
        stack = slice(0 if count > 1 else 1, None)
        seen = {"version": 3, "data": (pointers[i], False), "typestr": numpy.dtype(dtype).str}
        seen |= {"shape": (count, *core)[stack]}
        seen |= {"strides": (strides[i], *strides[3 + 2 * i : 5 + 2 * i])[stack]}
        arrays.append(numpy.asarray(types.SimpleNamespace(__array_interface__=seen)))
    return arrays


# -- Products of arrays ----------------------------------------------------------------------------


def _attempt(A: Any, B: Any, C: Any, kind: Any) -> Attempt:
    """The attempt of a product in C; those of this ``kind`` are settled once none can gain."""
    with_vector = 1 in (A.shape[-2], B.shape[-1])
    seconds = A.size * B.shape[-1] / _RATES[with_vector]
    # In a block of `hetero.use` whatever that says.
    obstacle = "" if has_device() or tables.forced.get() is not None else "no-device"

    def plan() -> Any:
        """The plan here, which counts the call: operands that come again may get copies."""
        arrays, planner = load("hetero.arrays"), load("hetero.calling.planner")
        now, inputs = tables.generation(), (arrays.describe_used(A), arrays.describe_used(B, A))
        problem = load("hetero.ops.products.operands").build("matmul", *inputs, arrays.describe(C))
        made = planner.plan(problem, *planner.placement(None, None))
        is_plain = not (made.kept or tables.forced.get()) and made.chosen[:2] == ("cpu", *_OWN)
        if is_plain and not load("hetero.pricing.pricing").copies_pay(made):
            tables.remember(_settled, kind, seconds, now)
        return made

    compute = functools.partial(_computed, A, B, C)
    return Attempt(shapes(A, B), seconds, obstacle, plan, _OWN, compute, (A, B))


def _computed(A: Any, B: Any, C: Any, plan: Any) -> Any:
    """The product in C; None where it holds NaN or infinity, which NumPy is to warn of."""
    calls, streaming = load("hetero.ops.products.methods"), load("hetero.moving.streaming")
    kernels, numpy = load("hetero.ops.convolve2d.device"), sys.modules["numpy"]
    flags: dict[Any, Any] = {}  # device -> (buffer, owner), of whether a part is not finite

    def look(device: Any, dtype: str, buffer: Any, count: int) -> None:
        if device not in flags:
            flags[device] = kernels.flag(device)
        kernels.find_not_finite(device, dtype, buffer, count, flags[device][0])

    try:
        with tables.setting(streaming.look, look):
            calls.host_call(plan, numpy.matmul)(A, B, C)
        for device, (buffer, _) in flags.items():
            flag = numpy.empty(1, "i4")
            with device.active():
                device.download(buffer, flag)
            if flag[0]:
                return None
        return C if flags or numpy.isfinite(C).all() else None
    finally:
        load("hetero.arrays.kept").written(C)


def _are_floats(*arrays: Any) -> bool:
    """Whether all are NumPy's own arrays of float32, or all of float64."""
    is_plain = all(type(x) is sys.modules["numpy"].ndarray for x in arrays)
    return is_plain and {x.dtype.char for x in arrays} in ({"f"}, {"d"})


def dot(original: Any, *operands: Any, **options: Any) -> Callable[[], Any] | None:
    """`numpy.dot` of floats that lie as BLAS takes them: the same by `numpy.matmul`."""
    if len(operands) != 2 or options or not _are_floats(*operands):
        return None
    a, b = operands
    is_product = (a.ndim, b.ndim) in ((2, 2), (2, 1), (1, 2)) and a.shape[-1] == b.shape[0]
    if not (is_product and all(x.itemsize in x.strides for x in operands)):
        return None
    return functools.partial(sys.modules["numpy"].matmul, a, b)


def einsum(original: Any, *given: Any, **options: Any) -> Callable[[], Any] | None:
    """`numpy.einsum` of two arrays of floats, which is computed without BLAS: the same by NumPy's
    products, which are offered."""
    if len(given) != 3 or options or type(given[0]) is not str or not _are_floats(*given[1:]):
        return None
    subscripts, A, B = given
    inputs, arrow, result = subscripts.replace(" ", "").partition("->")
    first, _, second = inputs.partition(",")
    result = result if arrow else "".join(sorted(set(first) ^ set(second)))
    every, numpy = dict(zip(first + second, A.shape + B.shape, strict=True)), sys.modules["numpy"]
    if any(len(set(x)) < len(x) for x in (first, second, result)) or not set(result) < set(every):
        return None  # a diagonal, or nothing is summed
    if not ("".join(every).isalpha() and looks(prod(every.values()) / _EINSUM)):
        return None
    # NumPy's iterator lays out the result by the operands' strides.
    axes = [*result, *(every.keys() - set(result))]
    placed = [[letters.find(x) for x in axes] for letters in (first, second, result)]
    flags = [["readonly"], ["readonly"], ["readwrite", "allocate"]]
    laid = numpy.nditer([A, B, None], ["reduce_ok"], flags, op_axes=placed).operands[2]

    def product() -> Any:
        with numpy.errstate(all="ignore"):  # as NumPy's loop
            original(*given, out=laid, optimize=True)
            if not numpy.isfinite(laid.sum()):
                return original(*given)
        return laid if result else laid[()]

    return product
