"""A gate in front of NumPy's loops of `matmul`: small products run as ever, large ones are offered.

NumPy's C API lets anybody put another inner loop in the place of one of a universal function's
(`PyUFunc_ReplaceLoopBySignature`). Operators, ``out=``, casts, broadcasting, subclasses and errors
are NumPy's before it calls the loop. A loop in Python would cost 2 us a call, so the one put there
is `gate.c`, compiled when hetero is installed: it multiplies the extents, and calls NumPy's loop
below a limit. From there on it calls Python, and where that has not computed the product, for
whatever reason, NumPy's loop.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

OFF = (1 << 63) - 1  # a limit that no product reaches
_ABI = 0x02000000  # of NumPy 2; what follows is fixed by it
_VERSION, _REPLACE = 0, 30  # places in the tables of the C API
_TYPES = {"float32": 11, "float64": 12}  # NPY_FLOAT, NPY_DOUBLE
_INTEGER, _WORD = ctypes.c_ssize_t, ctypes.c_void_p
_LOOP = ctypes.CFUNCTYPE(None, _WORD, _WORD, _WORD, _WORD)
Taker = Callable[[str, Any, Any, Any, Callable[[], None]], bool]


class _Gate(ctypes.Structure):
    """``struct gate`` of gate.c."""

    _fields_ = (
        ("matrices", _INTEGER),
        ("vectors", _INTEGER),
        ("numpys", _WORD),
        ("offered", ctypes.py_object),
    )


class Gate:
    """The gates of both product loops, one for the process; NotImplementedError where there can be
    none.

    ``take(dtype, pointers, extents, strides, loop)`` computes a large product, and returns whether
    it did; the pointers are those of two operands and the result, and ``loop()`` computes it as
    NumPy does. What it raises is raised once the product is done.
    """

    def __init__(self) -> None:
        self.take: Taker = lambda *product: False
        library = _library()
        self._replace = _replacer(library)
        ctypes.c_ulong.in_dll(library, "main_thread").value = threading.main_thread().ident
        passes = (_WORD * 2).in_dll(library, "passes")
        gates = (_Gate * 2).in_dll(library, "gates")
        self._loops: list[tuple[Any, int, _Gate]] = []  # types, what stands in the place, its gate
        for (dtype, number), code, gate in zip(_TYPES.items(), passes, gates, strict=True):
            gate.offered = functools.partial(self._offered, dtype, gate)
            gate.matrices = gate.vectors = OFF
            self._loops.append(((ctypes.c_int * 3)(*[number] * 3), code, gate))

    def set(self, take: Taker, matrices: int, vectors: int) -> None:
        """Offer products from a number of multiplications on."""
        self.take = take
        for types, code, gate in self._loops:
            if gate.matrices == OFF:
                self._replace(code, types, ctypes.addressof(gate) + _Gate.numpys.offset)
            gate.matrices, gate.vectors = matrices, vectors

    def restore(self) -> None:
        """Put the loops back, each where its gate still stands."""
        found = _WORD()
        for types, code, gate in self._loops:
            gate.matrices = gate.vectors = OFF
            self._replace(gate.numpys, types, ctypes.addressof(found))
            if found.value != code:
                self._replace(found.value, types, None)

    def _offered(self, dtype: str, gate: _Gate, done: int, *given: int) -> None:
        """What a gate calls with the addresses of whether the product is done, and of what NumPy
        hands to its loop: pointers, extents, steps and data."""
        ended: list[None] = []  # by NumPy's loop, which no signal's handler parts from its note
        sizes = zip(given, (3, 4, 9), strict=False)
        product = [tuple((_INTEGER * count).from_address(at)) for at, count in sizes]

        def loop() -> None:
            ended.extend(map(_LOOP(gate.numpys), *([word] for word in given)))

        try:
            if self.take(dtype, *product, loop):
                ended.append(None)
        finally:
            _INTEGER.from_address(done).value = len(ended)


def _library() -> Any:
    """gate.c, where it was compiled."""
    try:
        return ctypes.PyDLL(str(Path(__file__).with_name("libgate.so.1")))
    except OSError as error:
        raise NotImplementedError(f"the gate was not compiled: {error}") from None


def _replacer(library: Any) -> Any:
    """`PyUFunc_ReplaceLoopBySignature` of `numpy.matmul`, where this NumPy's tables are known."""
    module = sys.modules.get("numpy._core._multiarray_umath")
    if sys.implementation.name != "cpython" or not hasattr(module, "_UFUNC_API"):
        raise NotImplementedError("this NumPy has no C API where NumPy 2 has it")
    function_of = ctypes.PYFUNCTYPE(_WORD, ctypes.py_object, ctypes.c_int)(("function_of", library))
    version = ctypes.PYFUNCTYPE(ctypes.c_uint)(function_of(module._ARRAY_API, _VERSION))()
    if version != _ABI:
        raise NotImplementedError(f"NumPy's C API must be of version {_ABI:#x}, got {version:#x}")
    prototype = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, _WORD, _WORD, _WORD)
    replace = prototype(function_of(module._UFUNC_API, _REPLACE))
    return functools.partial(replace, sys.modules["numpy"].matmul)
