"""Gates in front of NumPy's loops: small products run as ever, large ones are handed to Python.

NumPy's C API lets anybody put another inner loop in the place of one of a universal function's
(`PyUFunc_ReplaceLoopBySignature`). Operators, ``out=``, casts, broadcasting, subclasses and errors
are NumPy's before it calls the loop. A loop in Python would cost 2 us a call, so the one put there
is machine code: it multiplies the extents, and jumps to NumPy's loop below a limit, to Python from
there on.

The code is for x86-64, with the calling convention that all its systems but Windows share. On other
processors there is no gate, and `Gate` says so.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import platform
import sys
from collections.abc import Callable
from typing import Any

OFF = (1 << 63) - 1  # a limit that no product reaches
_ABI = 0x02000000  # of NumPy 2; what follows is fixed by it
_VERSION, _REPLACE = 0, 30  # places in the tables of the C API
_FUNCTIONS_AT = 32  # bytes from the start of a universal function: behind its head and four ints
_TYPES = {"float32": 11, "float64": 12}  # NPY_FLOAT, NPY_DOUBLE
_FUNCTIONS = {"matmul": 4, "matvec": 3, "vecmat": 3}  # -> extents: of the batch, then of the core
# gate(args, dims, steps, data): rsi holds dims, the extents. What a C compiler makes of
#     if (dims[0] * dims[1] ... < *limit) { ++cells[1]; numpys(...); } else python(...);
# The count is not atomic: about as many. Two hexadecimal digits are a byte, names are addresses.
_CODE = """
48 8b 06        ;         mov  rax, [rsi]
48 0f af 46 08  ;         imul rax, [rsi + 8]
48 0f af 46 10  ;         imul rax, [rsi + 16]
48 0f af 46 18  ;         imul rax, [rsi + 24]       of matmul
49 b8 CELLS     ;         mov  r8, cells
4d 8b 48 10     ;         mov  r9, [r8 + 16]
48 83 7e 08 01  ;         cmp  qword [rsi + 8], 1    of matmul
74 0a           ;         je   decide                of matmul
48 83 7e 18 01  ;         cmp  qword [rsi + 24], 1   of matmul
74 03           ;         je   decide                of matmul
4d 8b 08        ;         mov  r9, [r8]              of matmul
4c 39 c8        ; decide: cmp  rax, r9
73 10           ;         jae  large
49 ff 40 08     ;         inc  qword [r8 + 8]
48 b8 NUMPYS    ;         mov  rax, numpys
ff e0           ;         jmp  rax
48 b8 PYTHON    ; large:  mov  rax, python
ff e0           ;         jmp  rax
"""
_PAGE = 4096
_pointers = (ctypes.POINTER(t) for t in (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_ssize_t))
LOOP = ctypes.CFUNCTYPE(None, *_pointers, ctypes.c_void_p)
Taker = Callable[[str, str, Any, Any, Any, Callable[[], None]], None]


class Unknown(Exception):
    """Why there is no gate: the NumPy or the processor is not known."""


class Gate:
    """The gates of all product loops.

    Parameters
    ----------
    take : callable
        ``take(function, dtype, pointers, extents, strides, loop)`` computes a large product; the
        pointers are those of two operands and the result, and ``loop()`` computes it as NumPy does.
        It raises nothing.

    Attributes
    ----------
    cells : array of int64
        The least number of multiplications that is handed over, of products of matrices; how many
        calls were smaller so far; the least number of products with a vector.

    Raises
    ------
    Unknown
    """

    def __init__(self, take: Taker) -> None:
        self.take = take
        self.cells = (ctypes.c_int64 * 3)(OFF, 0, OFF)
        self._replace = _replacer()
        try:
            page = mmap.mmap(
                *(-1, _PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS),
                prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC,
            )
        except OSError as error:
            raise Unknown(f"this system lets no program make code: {error}") from None
        begin, used = ctypes.addressof(ctypes.c_char.from_buffer(page)), 0
        self._loops: list[tuple[Any, Any, int, int]] = []  # function, types, NumPy's loop, gate
        self._held: list[Any] = [page]
        for name in _FUNCTIONS:
            function = getattr(sys.modules["numpy"], name)
            for dtype, number in _TYPES.items():
                numpys = _loop_of(function, dtype)
                python = LOOP(functools.partial(self._called, name, dtype, LOOP(numpys)))
                called = ctypes.cast(python, ctypes.c_void_p).value
                code = _code(name, ctypes.addressof(self.cells), numpys, called)
                page[used : used + len(code)] = code
                types = (ctypes.c_int * 3)(number, number, number)
                self._loops.append((function, types, numpys, begin + used))
                self._held.append(python)
                used += -(-len(code) // 16) * 16

    def set(self) -> None:
        """Put the gates in front of NumPy's loops, unless somebody has changed these."""
        for function, types, numpys, gate in self._loops:
            self._swap(function, types, numpys, gate)

    def restore(self) -> None:
        """Put NumPy's loops back, each where its gate still stands."""
        for function, types, numpys, gate in self._loops:
            self._swap(function, types, gate, numpys)

    def _called(
        self, name: str, dtype: str, loop: Any, args: Any, dims: Any, steps: Any, data: Any
    ) -> None:
        """What a gate calls: a product as NumPy hands it to its loop."""
        extents = tuple(dims[: _FUNCTIONS[name]])
        strides = tuple(steps[: 3 + {"matmul": 6}.get(name, 4)])
        pointers = tuple(args[:3])
        self.take(name, dtype, pointers, extents, strides, lambda: loop(args, dims, steps, data))

    def _swap(self, function: Any, types: Any, old: int, new: int) -> None:
        found = ctypes.c_void_p()
        if self._replace(function, new, types, ctypes.byref(found)) or found.value != old:
            self._replace(function, found, types, None)


def _table(module: Any, name: str) -> Any:
    """A table of NumPy's C API."""
    api = ctypes.pythonapi
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    at = pointer(("PyCapsule_GetPointer", api))(getattr(module, name), None)
    return ctypes.cast(at, ctypes.POINTER(ctypes.c_void_p))


def _replacer() -> Any:
    """`PyUFunc_ReplaceLoopBySignature`, where this NumPy's tables are known."""
    if platform.machine() != "x86_64":
        raise Unknown(f"gates are not known for this processor, {platform.machine()}")
    module = sys.modules.get("numpy._core._multiarray_umath")
    if sys.implementation.name != "cpython" or not hasattr(module, "_UFUNC_API"):
        raise Unknown("this NumPy has no C API where NumPy 2 has it")
    version = ctypes.PYFUNCTYPE(ctypes.c_uint)(_table(module, "_ARRAY_API")[_VERSION])()
    if version != _ABI:
        raise Unknown(f"NumPy's C API must be of version {_ABI:#x}, got {version:#x}")
    arguments = ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
    prototype = ctypes.PYFUNCTYPE(ctypes.c_int, *arguments)
    return prototype(_table(module, "_UFUNC_API")[_REPLACE])


def _loop_of(function: Any, dtype: str) -> int:
    """The address of a function's loop: C API, ufuncobject.h, ``functions[i]`` of its struct."""
    char = {"float32": "f", "float64": "d"}[dtype]
    place = function.types.index(f"{char}{char}->{char}")
    functions = ctypes.c_void_p.from_address(id(function) + _FUNCTIONS_AT).value
    return ctypes.c_void_p.from_address(functions + place * ctypes.sizeof(ctypes.c_void_p)).value


def _code(function: str, cells: int, numpys: int, python: Any) -> bytes:
    """The machine code of a gate in front of the loop at ``numpys``."""
    text = "".join(
        line.partition(";")[0]
        for line in _CODE.splitlines()
        if function == "matmul" or not line.endswith("of matmul")
    )
    for name, address in (("CELLS", cells), ("NUMPYS", numpys), ("PYTHON", python)):
        text = text.replace(name, address.to_bytes(8, "little").hex())
    return bytes.fromhex(text)
