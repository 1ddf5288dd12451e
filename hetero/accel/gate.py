"""Gates in front of NumPy's loops: small products run as ever, large ones are offered to Python.

NumPy's C API lets anybody put another inner loop in the place of one of a universal function's
(`PyUFunc_ReplaceLoopBySignature`). Operators, ``out=``, casts, broadcasting, subclasses and errors
are NumPy's before it calls the loop. A loop in Python would cost 2 us a call, so the one put there
is machine code: it multiplies the extents, and calls NumPy's loop below a limit. From there on it
calls Python, and where that has not computed the product, for whatever reason, NumPy's loop.

An exception that ends the Python code, such as one that a signal's handler raises, is raised once
the product is done, as with NumPy alone: the gate keeps it and has the interpreter raise it, by
`Py_AddPendingCall` in the main thread and by `PyThreadState_SetAsyncExc` in others.

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
_FUNCTIONS = {"matmul": 4, "matvec": 3, "vecmat": 3}  # -> extents: of the batch, then of the core
# What a C compiler makes of
#     void gate(char **args, intptr_t *dims, intptr_t *steps, void *data)  // rdi, rsi, rdx, rcx
#     {
#         if (dims[0] * dims[1] ... < cells->matrices) { ++cells->small; goto numpys; }
#         struct { intptr_t done; ... } call = {0, args, dims, steps, data};  // `_Call`, at rsp
#         state = PyGILState_Ensure();
#         result = PyObject_CallFunction(cells->python, "K", &call);
#         if (result) Py_DecRef(result);
#         else if (PyErr_ExceptionMatches(PyExc_RecursionError)) PyErr_Clear();  // NumPy needs none
#         else {
#             error = PyMem_RawMalloc(32);
#             PyErr_Fetch(&error[0], &error[1], &error[2]), error[3] = cells;
#             if (PyThread_get_thread_ident() == cells->main) Py_AddPendingCall(raise, error);
#             else PyThreadState_SetAsyncExc(.., error[0]), raise(error), PyErr_Clear();
#         }
#         PyGILState_Release(state);
#         if (call.done) return;
#         numpys: cells->numpys(args, dims, steps, data);
#     }
#     int raise(void **error) { PyErr_Restore(error[0], ..); PyMem_RawFree(error); return -1; }
# The count is not atomic: about as many. Two hexadecimal digits are a byte, CELLS is an address.
_GATE = """
48 8b 06             ;         mov  rax, [rsi]
48 0f af 46 08       ;         imul rax, [rsi + 8]
48 0f af 46 10       ;         imul rax, [rsi + 16]
48 0f af 46 18       ;         imul rax, [rsi + 24]       of matmul
49 b8 CELLS          ;         mov  r8, cells
4d 8b 48 10          ;         mov  r9, [r8 + 0x10]       vectors
48 83 7e 08 01       ;         cmp  qword [rsi + 8], 1    of matmul
74 0a                ;         je   decide                of matmul
48 83 7e 18 01       ;         cmp  qword [rsi + 24], 1   of matmul
74 03                ;         je   decide                of matmul
4d 8b 08             ;         mov  r9, [r8]              matrices, of matmul
4c 39 c8             ; decide: cmp  rax, r9
73 08                ;         jae  large
49 ff 40 08          ;         inc  qword [r8 + 0x08]     small
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
74 22                ;         je   failed
48 89 c7             ;         mov  rdi, rax
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
48 8b 7b 50          ; failed: mov  rdi, [rbx + 0x50]     PyExc_RecursionError
ff 53 58             ;         call [rbx + 0x58]          PyErr_ExceptionMatches
85 c0                ;         test eax, eax
75 50                ;         jne  clear
bf 20 00 00 00       ;         mov  edi, 32
ff 53 60             ;         call [rbx + 0x60]          PyMem_RawMalloc
50 50                ;         push rax, rax
48 89 58 18          ;         mov  [rax + 24], rbx
48 89 c7             ;         mov  rdi, rax
48 8d 70 08          ;         lea  rsi, [rax + 8]
48 8d 50 10          ;         lea  rdx, [rax + 16]
ff 53 68             ;         call [rbx + 0x68]          PyErr_Fetch
ff 53 70             ;         call [rbx + 0x70]          PyThread_get_thread_ident
48 8b 34 24          ;         mov  rsi, [rsp]            error
48 8b bb a0 00 00 00 ;         mov  rdi, [rbx + 0xa0]     raise
48 3b 43 78          ;         cmp  rax, [rbx + 0x78]     main
75 0a                ;         jne  other
ff 93 80 00 00 00    ;         call [rbx + 0x80]          Py_AddPendingCall
5f 5f                ;         pop  rdi, rdi
eb 9f                ;         jmp  over
48 89 c7             ; other:  mov  rdi, rax
48 8b 36             ;         mov  rsi, [rsi]            error's class
ff 93 88 00 00 00    ;         call [rbx + 0x88]          PyThreadState_SetAsyncExc
5f 57                ;         pop  rdi; push rdi         error
ff 93 a0 00 00 00    ;         call [rbx + 0xa0]          raise
5f 5f                ;         pop  rdi, rdi
ff 93 90 00 00 00    ; clear:  call [rbx + 0x90]          PyErr_Clear
eb 81                ;         jmp  over
"""
_RAISE = """
53                   ; raise:  push rbx
57 57                ;         push rdi, rdi
48 8b 5f 18          ;         mov  rbx, [rdi + 24]       cells
48 8b 77 08          ;         mov  rsi, [rdi + 8]
48 8b 57 10          ;         mov  rdx, [rdi + 16]
48 8b 3f             ;         mov  rdi, [rdi]
ff 93 98 00 00 00    ;         call [rbx + 0x98]          PyErr_Restore
48 8b 3c 24          ;         mov  rdi, [rsp]
ff 93 a8 00 00 00    ;         call [rbx + 0xa8]          PyMem_RawFree
b8 ff ff ff ff       ;         mov  eax, -1
5f 5f 5b             ;         pop  rdi, rdi, rbx
c3                   ;         ret
"""
_PAGE, _ROOM = 4096, 512  # bytes of all gates, and of each
_API = ctypes.pythonapi
_WORD = ctypes.c_void_p
_LOOP = ctypes.CFUNCTYPE(None, _WORD, _WORD, _WORD, _WORD)
# Least multiplications of a product that is offered, of matrices and with a vector; ``small``
# counts smaller ones. What begins with Py is a function of Python's.
_NAMES = (
    *("matrices", "small", "vectors", "numpys", "PyGILState_Ensure", "python", "format"),
    *("PyObject_CallFunction", "Py_DecRef", "PyGILState_Release", "recursion"),
    *("PyErr_ExceptionMatches", "PyMem_RawMalloc", "PyErr_Fetch", "PyThread_get_thread_ident"),
    *("main", "Py_AddPendingCall", "PyThreadState_SetAsyncExc", "PyErr_Clear", "PyErr_Restore"),
    *("raise_", "PyMem_RawFree"),
)
Taker = Callable[[str, str, Any, Any, Any, Callable[[], None]], bool]


class _Cells(ctypes.Structure):
    """What the code of a gate reads, at the places that it names."""

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


class Unknown(Exception):
    """Why there is no gate: the NumPy or the processor is not known."""


class Gate:
    """The gates of all product loops; `Unknown` where there can be none.

    ``take(function, dtype, pointers, extents, strides, loop)`` computes a large product, and
    returns whether it did; the pointers are those of two operands and the result, and ``loop()``
    computes it as NumPy does. What it raises is raised once the product is done.
    """

    def __init__(self, take: Taker) -> None:
        self.take = take
        self._replace = _replacer()
        page = mmap.mmap(-1, _PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        begin = ctypes.addressof(ctypes.c_char.from_buffer(page))
        code = _code(_RAISE)
        page[: len(code)] = code
        called = (name for name in _NAMES if name.startswith("Py"))
        addresses = {name: ctypes.cast(getattr(_API, name), _WORD).value for name in called}
        self._held = [page, form := ctypes.create_string_buffer(b"K"), RecursionError]
        self._loops: list[tuple[Any, Any, int, _Cells]] = []  # function, types, gate, its cells
        for name in _FUNCTIONS:
            for dtype, number in _TYPES.items():
                cells = _Cells(OFF, 0, OFF, **addresses)
                python = functools.partial(self._called, name, dtype, cells)
                cells.python, cells.recursion = map(_address, (python, RecursionError))
                cells.format, cells.raise_ = ctypes.addressof(form), begin
                at = _ROOM * (1 + len(self._loops))
                code = _code(_GATE, name == "matmul", ctypes.addressof(cells))
                page[at : at + len(code)] = code
                types = (ctypes.c_int * 3)(number, number, number)
                self._loops.append((getattr(sys.modules["numpy"], name), types, begin + at, cells))
                self._held.append(python)
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

    def small(self) -> int:
        """How many products were below the limits since it was asked before."""
        counts = [cells.small for *_, cells in self._loops]
        for *_, cells in self._loops:
            cells.small = 0
        return sum(counts)

    def set(self) -> None:
        """Put the gates in front of the loops."""
        for function, types, gate, cells in self._loops:
            self._replace(function, gate, types, ctypes.addressof(cells) + _Cells.numpys.offset)

    def restore(self) -> None:
        """Put the loops back, each where its gate still stands."""
        found = _WORD()
        for function, types, gate, cells in self._loops:
            self._replace(function, cells.numpys, types, ctypes.addressof(found))
            if found.value != gate:
                self._replace(function, found.value, types, None)

    def _in_main_thread(self) -> None:
        for *_, cells in self._loops:
            cells.main = threading.main_thread().ident

    def _called(self, name: str, dtype: str, cells: _Cells, at: int) -> None:
        """What a gate calls with the address of a product."""
        call = _Call.from_address(at)
        given = [_WORD.from_buffer(call, field.offset) for field in _ARGUMENTS]
        ended: list[None] = []  # by NumPy's loop, which no signal's handler parts from its note

        def loop() -> None:
            ended.extend(map(_LOOP(cells.numpys), *([pointer] for pointer in given)))

        try:
            extents = tuple(call.dims[: _FUNCTIONS[name]])
            strides = tuple(call.steps[: 3 + {"matmul": 6}.get(name, 4)])
            if self.take(name, dtype, tuple(call.args[:3]), extents, strides, loop):
                ended.append(None)
        finally:
            call.done = len(ended)


_ARGUMENTS = _Call.args, _Call.dims, _Call.steps, _Call.data


def _address(x: object) -> int | None:
    return _WORD.from_buffer(ctypes.py_object(x)).value


def _table(module: Any, name: str) -> Any:
    """A table of NumPy's C API."""
    pointer = ctypes.PYFUNCTYPE(_WORD, ctypes.py_object, ctypes.c_char_p)
    at = pointer(("PyCapsule_GetPointer", _API))(getattr(module, name), None)
    return ctypes.cast(at, ctypes.POINTER(_WORD))


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
    prototype = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, _WORD, _WORD, _WORD)
    return prototype(_table(module, "_UFUNC_API")[_REPLACE])


def _code(text: str, is_matmul: bool = True, cells: int = 0) -> bytes:
    """The machine code of a listing."""
    lines = (line.partition(";")[::2] for line in text.splitlines())
    digits = "".join(code for code, remark in lines if is_matmul or "of matmul" not in remark)
    return bytes.fromhex(digits.replace("CELLS", cells.to_bytes(8, "little").hex()))
