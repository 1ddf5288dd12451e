"""Kernels by which several CUDA devices work together, run with no GPU (devices_on_cpu.cpp)."""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import compiled
import numpy as np

from hetero import kernels
from hetero.kernels import Launch

_HERE = Path(__file__).parent
# What a kernel's text has that C++ has not, or where fibers have to change places.
_INSTEAD = {
    r"extern __shared__ (double) memory\[\];": r"\1 *memory = (\1 *)DYNAMIC;",
    r"__shared__ int (\w+);": r"STATIC_INT(\1);",
    r"\(\(volatile GLOBAL (const )?word_t \*\)words\)": r"(let_others_run(), (\1word_t *)words)",
    r"return \*\(const volatile": "return let_others_run(), *(const",
    r'asm volatile\("mov.u64 %0, %%globaltimer;" : "=l"\(now\)\);': "now = machine->turns();",
}
_TIMES = {"cg_cooperative.cu": [1, 1, 4, 0, 1], "exchange.cu": [0, 1, 0, 1, 1]}
_ENTRY = """
extern "C" void entry(const index_t *words) { call(%s, words); }
"""


class Failure(Exception):
    """What no kernel may do, or a run that does not end."""


def bound(launch: Launch, values: dict[str, int | float]) -> Launch:
    """A plan's launch, whose names have these values."""
    return launch._replace(arguments=[values.get(a, a) for a in launch.arguments])


@cache
def entry(source: str, kernel: str, defines: tuple) -> int:
    """Address of a kernel in a file, or in a text with line breaks."""
    text = source if "\n" in source else kernels.source(source)
    found = []
    for pattern, instead in _INSTEAD.items():
        text, times = re.subn(pattern, instead, text)
        found.append(times)
    assert found == _TIMES.get(source, [0] * len(found))
    options = [f"-D{name}={'int1' if value == 'int' else value}" for name, value in defines]
    library = _compile(text + _ENTRY % kernel, *options)
    library.connect(_scheduler().the_machine())
    return ctypes.cast(library.entry, ctypes.c_void_p).value


@cache
def _scheduler() -> ctypes.CDLL:
    library = _compile((_HERE / "devices_on_cpu.cpp").read_text())
    library.the_machine.restype = ctypes.POINTER(ctypes.c_char)
    library.run.restype = ctypes.c_char_p
    return library


def _compile(text: str, *options: str) -> ctypes.CDLL:
    headers = [(_HERE / f"{name}_on_cpu.h").read_text() for name in ("kernels", "devices")]
    return compiled.library("".join(headers) + text, "-O0", "-ffp-contract=off", *options)


def run(queues: Sequence[Sequence[Launch]], seed: int = 0, limit: int = 100_000) -> int:
    """Run what each device has in its queue, all devices at once; the turns that it took.

    Raises
    ------
    Failure
        Also where ``limit`` turns do not suffice.
    """
    rows, kept = [], []
    for device, queue in enumerate(queues):
        for one in queue:
            words = [struct.pack("d" if type(a) is float else "q", a) for a in one.arguments]
            kept.append(ctypes.create_string_buffer(b"".join(words)))
            address = ctypes.addressof(kept[-1])
            code = entry(one.source, one.kernel, one.defines)
            rows.append((code, address, device, one.grid, one.block, one.shared_bytes))
    table, taken = np.array(rows, np.int64), ctypes.c_longlong()
    failure = _scheduler().run(
        ctypes.c_void_p(table.ctypes.data), len(rows), len(queues), seed,
        ctypes.c_longlong(limit), ctypes.byref(taken),
    )  # fmt: skip
    if failure is not None:
        raise Failure(failure.decode())
    return taken.value
