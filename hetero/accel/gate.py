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
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_ABI = 0x02000000  # of NumPy 2; what gate.c takes from NumPy's tables is fixed by it
_INTEGER, _WORD, _OBJECT = ctypes.c_ssize_t, ctypes.c_void_p, ctypes.py_object
_FILE = Path(__file__).with_name("libgate.so.1")
Taker = Callable[[str, Any, Any, Any, Callable[[], None]], bool]


class Gate:
    """The gates of both product loops, one for the process; NotImplementedError where there can be
    none.

    ``take(dtype, pointers, extents, strides, loop)`` computes a large product, and returns whether
    it did; the pointers are those of two operands and the result, and ``loop()`` computes it as
    NumPy does. What it raises is raised once the product is done.
    """

    def __init__(self) -> None:
        self.take: Taker = lambda *product: False
        module = sys.modules.get("numpy._core._multiarray_umath")
        if sys.implementation.name != "cpython" or not hasattr(module, "_UFUNC_API"):
            raise NotImplementedError("this NumPy has no C API where NumPy 2 has it")
        try:
            library = ctypes.PyDLL(str(_FILE))
        except OSError as error:
            raise NotImplementedError(f"the gate was not compiled: {error}") from None
        version = library.begin(_OBJECT(module._ARRAY_API), _OBJECT(module._UFUNC_API))
        if version != _ABI:
            text = f"NumPy's C API must be of version {_ABI:#x}, got {version:#x}"
            raise NotImplementedError(text)
        self._library, self._matmul = library, _OBJECT(sys.modules["numpy"].matmul)
        self._function = _OBJECT(self._offered)
        self._run = ctypes.CDLL(str(_FILE)).run  # without the interpreter's lock
        self._run.argtypes, self._run.restype = (ctypes.c_int, *[_WORD] * 4), None

    def set(self, take: Taker, matrices: int, vectors: int) -> None:
        """Offer products from a number of multiplications on, of matrices or with a vector."""
        self.take = take
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
            if self.take(("float32", "float64")[which], *product, loop):
                ended.append(None)
        finally:
            _INTEGER.from_address(done).value = len(ended)
