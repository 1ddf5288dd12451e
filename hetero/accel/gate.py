"""A gate in front of NumPy's loops of `matmul`: small products run as ever, large ones are offered.

NumPy's C API lets anybody put another inner loop in the place of one of a universal function's
(`PyUFunc_ReplaceLoopBySignature`). Operators, ``out=``, casts, broadcasting, subclasses and errors
are NumPy's before it calls the loop. A loop in Python would cost 2 us a call, so the one put there
is machine code: it multiplies the extents, and calls NumPy's loop below a limit. From there on it
calls Python, and where that has not computed the product, for whatever reason, NumPy's loop.

An exception that ends the Python code, such as one that a signal's handler raises, is raised once
the product is done, as with NumPy alone: by a pending call of the interpreter in the main thread,
and by `PyThreadState_SetAsyncExc` in others.

The code is for x86-64, with the calling convention that all its systems but Windows share. On other
processors there is no gate, and `Gate` says so.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import platform
import sys
import threading
from collections.abc import Callable
from typing import Any

OFF = (1 << 63) - 1  # a limit that no product reaches
_ABI = 0x02000000  # of NumPy 2; what follows is fixed by it
_VERSION, _REPLACE = 0, 30  # places in the tables of the C API
_TYPES = {"float32": 11, "float64": 12}  # NPY_FLOAT, NPY_DOUBLE
# NumPy calls it with args, dims, steps and data in rdi, rsi, rdx and rcx; they are a `_Call` on the
# stack for Python. An error of Python's is kept in the cells until `_Raiser` raises it. Two
# hexadecimal digits are a byte, CELLS is an address.
_GATE = """
48 8b 06             ;         mov  rax, [rsi]
48 0f af 46 08       ;         imul rax, [rsi + 8]
48 0f af 46 10       ;         imul rax, [rsi + 16]
48 0f af 46 18       ;         imul rax, [rsi + 24]
49 b8 CELLS          ;         mov  r8, cells
4d 8b 48 10          ;         mov  r9, [r8 + 0x10]       vectors
48 83 7e 08 01       ;         cmp  qword [rsi + 8], 1
74 0a                ;         je   decide
48 83 7e 18 01       ;         cmp  qword [rsi + 24], 1
74 03                ;         je   decide
4d 8b 08             ;         mov  r9, [r8]              matrices
4c 39 c8             ; decide: cmp  rax, r9
73 04                ;         jae  large
41 ff 60 18          ;         jmp  [r8 + 0x18]           numpys
53                   ; large:  push rbx                   the caller's
53                   ;         push rbx                   room for the state
51 52 56 57          ;         push rcx, rdx, rsi, rdi
6a 00                ;         push 0                     not done; the stack is aligned
4c 89 c3             ;         mov  rbx, r8
ff 53 20             ;         call [rbx + 0x20]          PyGILState_Ensure
48 89 44 24 28       ;         mov  [rsp + 40], rax
48 8b 7b 28          ;         mov  rdi, [rbx + 0x28]     python
48 8b 73 30          ;         mov  rsi, [rbx + 0x30]     format
48 89 e2             ;         mov  rdx, rsp
31 c0                ;         xor  eax, eax              no vector registers
ff 53 38             ;         call [rbx + 0x38]          PyObject_CallFunction
48 85 c0             ;         test rax, rax
75 51                ;         jne  made
ff 53 50             ;         call [rbx + 0x50]          PyThread_get_thread_ident
48 89 43 78          ;         mov  [rbx + 0x78], rax     thread
48 8d bb 80 00 00 00 ;         lea  rdi, [rbx + 0x80]     type
48 8d b3 88 00 00 00 ;         lea  rsi, [rbx + 0x88]     value
48 8d 93 90 00 00 00 ;         lea  rdx, [rbx + 0x90]     traceback
ff 53 58             ;         call [rbx + 0x58]          PyErr_Fetch
48 8b b3 80 00 00 00 ;         mov  rsi, [rbx + 0x80]     type
48 3b b3 98 00 00 00 ;         cmp  rsi, [rbx + 0x98]     recursion: NumPy needs none
74 28                ;         je   over
48 8b 7b 78          ;         mov  rdi, [rbx + 0x78]     thread
48 3b bb a0 00 00 00 ;         cmp  rdi, [rbx + 0xa0]     main
74 08                ;         je   main
ff 93 08 00 00 00    ;         call [rbx + 0x08]          PyThreadState_SetAsyncExc
eb 13                ;         jmp  over
48 8b 7b 60          ; main:   mov  rdi, [rbx + 0x60]     PyObject_IsTrue
48 8b 73 68          ;         mov  rsi, [rbx + 0x68]     raiser
ff 53 70             ;         call [rbx + 0x70]          Py_AddPendingCall
eb 06                ;         jmp  over
48 89 c7             ; made:   mov  rdi, rax
ff 53 40             ;         call [rbx + 0x40]          Py_DecRef
48 8b 7c 24 28       ; over:   mov  rdi, [rsp + 40]
ff 53 48             ;         call [rbx + 0x48]          PyGILState_Release
4c 8b 43 18          ;         mov  r8, [rbx + 0x18]      numpys
58                   ;         pop  rax                   done
5f 5e 5a 59 5b 5b    ;         pop  rdi, rsi, rdx, rcx, rbx, rbx
48 85 c0             ;         test rax, rax
74 01                ;         je   numpys
c3                   ;         ret
41 ff e0             ; numpys: jmp  r8
"""
_PAGE, _ROOM = 4096, 512  # bytes of all gates, and of each
_API = ctypes.pythonapi
_WORD = ctypes.c_void_p
_LOOP = ctypes.CFUNCTYPE(None, _WORD, _WORD, _WORD, _WORD)
# Least multiplications of a product that is offered, of matrices and with a vector. What begins
# with Py is a function of Python's; from ``thread`` on it is about an error.
_NAMES = (
    *(
        "matrices",
        "PyThreadState_SetAsyncExc",
        "vectors",
        "numpys",
        "PyGILState_Ensure",
        "python",
        "format",
    ),
    *("PyObject_CallFunction", "Py_DecRef", "PyGILState_Release", "PyThread_get_thread_ident"),
    *("PyErr_Fetch", "PyObject_IsTrue", "raiser", "Py_AddPendingCall"),
    *("thread", "type", "value", "traceback", "recursion", "main"),
)
Taker = Callable[[str, Any, Any, Any, Callable[[], None]], bool]


class _Cells(ctypes.Structure):
    """What the code of a gate reads and writes, at the places that it names."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in _NAMES)


class _Call(ctypes.Structure):
    """A product as NumPy hands it to its loop."""

    _fields_ = (
        ("done", ctypes.c_ssize_t),
        ("args", ctypes.POINTER(ctypes.c_void_p)),
        ("dims", ctypes.POINTER(ctypes.c_ssize_t)),
        ("steps", ctypes.POINTER(ctypes.c_ssize_t)),
        ("data", _WORD),
    )


class _Raiser:
    """Raises the error that a gate kept in its cells, when it is asked whether it is true.

    A pending call fails if it returns anything but 0.
    """

    def __init__(self, cells: _Cells) -> None:
        self._cells = cells

    def __bool__(self) -> bool:
        cells, error = self._cells, (self._cells.type, self._cells.value, self._cells.traceback)
        cells.type = cells.value = cells.traceback = 0
        _API.PyErr_Restore(*map(_WORD, error))
        return False


class Unknown(Exception):
    """Why there is no gate: the NumPy or the processor is not known."""


class Gate:
    """The gates of both product loops; `Unknown` where there can be none.

    ``take(dtype, pointers, extents, strides, loop)`` computes a large product, and returns whether
    it did; the pointers are those of two operands and the result, and ``loop()`` computes it as
    NumPy does. What it raises is raised once the product is done.
    """

    def __init__(self, take: Taker) -> None:
        self.take = take
        self._replace = _replacer()
        page = mmap.mmap(-1, _PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        begin = ctypes.addressof(ctypes.c_char.from_buffer(page))
        called = (name for name in _NAMES if name.startswith("Py"))
        addresses = {name: ctypes.cast(getattr(_API, name), _WORD).value for name in called}
        self._held: list[Any] = [page, form := ctypes.create_string_buffer(b"K")]
        self._loops: list[tuple[Any, int, _Cells]] = []  # types, gate, its cells
        code = "".join(line.partition(";")[0] for line in _GATE.splitlines())
        for at, (dtype, number) in zip(range(0, _PAGE, _ROOM), _TYPES.items(), strict=False):
            cells = _Cells(OFF, vectors=OFF, format=ctypes.addressof(form), **addresses)
            objects = functools.partial(self._called, dtype, cells), _Raiser(cells), RecursionError
            cells.python, cells.raiser, cells.recursion = (
                _WORD.from_buffer(ctypes.py_object(x)).value for x in objects
            )
            here = ctypes.addressof(cells).to_bytes(8, "little").hex()
            made = bytes.fromhex(code.replace("CELLS", here))
            page[at : at + len(made)] = made
            self._loops.append(((ctypes.c_int * 3)(*[number] * 3), begin + at, cells))
            self._held.append(objects)
        self._in_main_thread()
        os.register_at_fork(after_in_child=self._in_main_thread)
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        if protect(_WORD(begin), ctypes.c_size_t(_PAGE), mmap.PROT_READ | mmap.PROT_EXEC):
            error = os.strerror(ctypes.get_errno())
            raise Unknown(f"this system lets no program make code: {error}")

    def limit(self, matrices: int, vectors: int) -> None:
        """Offer products from a number of multiplications on, `OFF` for none."""
        for *_, cells in self._loops:
            cells.matrices, cells.vectors = matrices, vectors

    def set(self) -> None:
        """Put the gates in front of the loops."""
        for types, gate, cells in self._loops:
            self._replace(gate, types, ctypes.addressof(cells) + _Cells.numpys.offset)

    def restore(self) -> None:
        """Put the loops back, each where its gate still stands."""
        found = _WORD()
        for types, gate, cells in self._loops:
            self._replace(cells.numpys, types, ctypes.addressof(found))
            if found.value != gate:
                self._replace(found.value, types, None)

    def _in_main_thread(self) -> None:
        for *_, cells in self._loops:
            cells.main = threading.main_thread().ident

    def _called(self, dtype: str, cells: _Cells, at: int) -> None:
        """What a gate calls with the address of a product."""
        call = _Call.from_address(at)
        given = [_WORD.from_buffer(call, field.offset) for field in _ARGUMENTS]
        ended: list[None] = []  # by NumPy's loop, which no signal's handler parts from its note

        def loop() -> None:
            ended.extend(map(_LOOP(cells.numpys), *([pointer] for pointer in given)))

        try:
            product = tuple(call.args[:3]), tuple(call.dims[:4]), tuple(call.steps[:9])
            if self.take(dtype, *product, loop):
                ended.append(None)
        finally:
            call.done = len(ended)


_ARGUMENTS = _Call.args, _Call.dims, _Call.steps, _Call.data


def _table(module: Any, name: str) -> Any:
    """A table of NumPy's C API."""
    pointer = ctypes.PYFUNCTYPE(_WORD, ctypes.py_object, ctypes.c_char_p)
    at = pointer(("PyCapsule_GetPointer", _API))(getattr(module, name), None)
    return ctypes.cast(at, ctypes.POINTER(_WORD))


def _replacer() -> Any:
    """`PyUFunc_ReplaceLoopBySignature` of `numpy.matmul`, where this NumPy's tables are known."""
    if platform.machine() != "x86_64":
        raise Unknown(f"gates are not known for this processor, {platform.machine()}")
    module = sys.modules.get("numpy._core._multiarray_umath")
    if sys.implementation.name != "cpython" or not hasattr(module, "_UFUNC_API"):
        raise Unknown("this NumPy has no C API where NumPy 2 has it")
    version = ctypes.PYFUNCTYPE(ctypes.c_uint)(_table(module, "_ARRAY_API")[_VERSION])()
    if version != _ABI:
        raise Unknown(f"NumPy's C API must be of version {_ABI:#x}, got {version:#x}")
    prototype = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, _WORD, _WORD, _WORD)
    replace = prototype(_table(module, "_UFUNC_API")[_REPLACE])
    return functools.partial(replace, sys.modules["numpy"].matmul)
