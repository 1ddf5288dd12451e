"""Gates in front of NumPy's loops: small products run as ever, large ones are handed to Python.

NumPy's C API lets anybody put another inner loop in the place of one of a universal function's
(`PyUFunc_ReplaceLoopBySignature`). Operators, ``out=``, casts, broadcasting, subclasses and errors
are NumPy's before it calls the loop. A loop in Python would cost 2 us a call, so the one put there
is machine code: it multiplies the extents, and jumps to NumPy's loop below a limit, to Python from
there on.

The code is LLVM's translation of `_TEXT`. It names no symbol; three numbers in it stand for
addresses that only the process knows, and are overwritten when it is loaded. So the bytes are kept
on disk, and the next process needs no LLVM, whose import takes 60 ms. Where code does not hold such
numbers whole, as ARM's, there is no gate, and `Gate` says so.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import struct
import sys
import zlib
from collections.abc import Callable
from typing import Any

from hetero.imports import load

OFF = (1 << 63) - 1  # a limit that no product reaches
_ABI = 0x02000000  # of NumPy 2; what follows is fixed by it
_VERSION, _REPLACE = 0, 30  # places in the tables of the C API
_FUNCTIONS_AT = 32  # bytes from the start of a universal function: behind its head and four ints
_TYPES = {"float32": 11, "float64": 12}  # NPY_FLOAT, NPY_DOUBLE
_FUNCTIONS = {"matmul": 4, "matvec": 3, "vecmat": 3}  # -> extents: of the batch, then of the core
_MARKS = tuple(0x6B5A49382716F5E0 + i * 0x0101010101010101 for i in range(3))
# What a C compiler makes of: if (cells[thin ? 2 : 0] <= product) python(...); else numpy(...);
# cells[1] counts the calls of NumPy's loop, not atomically: about as many.
_TEXT = """
define void @gate(i8* %args, i64* %dims, i64* %steps, i8* %data) {{
{product}
  %cells = inttoptr i64 {0} to i64*
  %counter = getelementptr i64, i64* %cells, i64 1
  %vectors = getelementptr i64, i64* %cells, i64 2
  %limit = select i1 %thin, i64* %vectors, i64* %cells
  %least = load volatile i64, i64* %limit
  %large = icmp uge i64 %work, %least
  br i1 %large, label %python, label %numpy
python:
  %taker = inttoptr i64 {1} to void (i8*, i64*, i64*, i8*)*
  tail call void %taker(i8* %args, i64* %dims, i64* %steps, i8* %data)
  ret void
numpy:
  %count = load volatile i64, i64* %counter
  %more = add i64 %count, 1
  store volatile i64 %more, i64* %counter
  %loop = inttoptr i64 {2} to void (i8*, i64*, i64*, i8*)*
  tail call void %loop(i8* %args, i64* %dims, i64* %steps, i8* %data)
  ret void
}}
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
        for name, number_of_extents in _FUNCTIONS.items():
            function = getattr(sys.modules["numpy"], name)
            for dtype, number in _TYPES.items():
                numpys = _loop_of(function, dtype)
                python = LOOP(functools.partial(self._called, name, dtype, LOOP(numpys)))
                code, called = _code(number_of_extents), ctypes.cast(python, ctypes.c_void_p).value
                named = ctypes.addressof(self.cells), called, numpys
                for mark, value in zip(_MARKS, named, strict=True):
                    code = code.replace(struct.pack("<Q", mark), struct.pack("<Q", value))
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


@functools.cache
def _code(extents: int) -> bytes:
    """The machine code of a gate with `_MARKS` in it, from disk where there is one."""
    lines = ["  %p0 = load i64, i64* %dims"]
    for i in range(1, extents):
        lines += [
            f"  %at{i} = getelementptr i64, i64* %dims, i64 {i}",
            f"  %n{i} = load i64, i64* %at{i}",
            f"  %p{i} = mul i64 %p{i - 1}, %n{i}",
        ]
    thin = "  %thin = icmp eq i64 0, 0"  # matvec and vecmat
    if extents == 4:
        lines += ["  %row = icmp eq i64 %n1, 1", "  %column = icmp eq i64 %n3, 1"]
        thin = "  %thin = or i1 %row, %column"
    lines.append(thin)
    product = "\n".join(lines).replace(f"%p{extents - 1} =", "%work =")
    text = _TEXT.format(*_MARKS, product=product)
    disk_cache = load("hetero.host.disk_cache")
    name = f"gate-{os.uname().machine}-{zlib.crc32(text.encode()):08x}"
    code = disk_cache.read("gates", name)
    if code is None:
        code = _compiled(text)
        disk_cache.write("gates", name, code)
    if any(code.count(struct.pack("<Q", mark)) != 1 for mark in _MARKS):
        raise Unknown(f"gates are not known for this processor, {os.uname().machine}")
    return code


def _compiled(text: str) -> bytes:
    binding = load("llvmlite.binding")
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    module = binding.parse_assembly(text)
    target = binding.Target.from_default_triple()
    machine = target.create_target_machine(opt=2, reloc="pic", codemodel="small")
    sections = binding.ObjectFileRef.from_data(machine.emit_object(module)).sections()
    return b"".join(section.data() for section in sections if section.is_text())
