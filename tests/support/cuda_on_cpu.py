"""CUDA C on the CPU: a kernel's threads as fibers (cuda_on_cpu.h), and functions by themselves."""

from __future__ import annotations

import ctypes
import platform
import re
from pathlib import Path

import pytest
from compiled import library

from hetero import kernels

HEADERS = [Path(__file__).with_name(f"{name}_on_cpu.h") for name in ("kernels", "cuda")]
ROUNDING = "nearest_float16|nearest_bfloat16|values_of_float16"  # in PTX; in the header too
IN_PTX = re.compile(rf"^DEVICE \S+( \S+)? ({ROUNDING})\(.*?^}}\n", re.M | re.S)
SHARED = re.compile(r"extern __shared__ \S+ (\w+) shared\[\];")
ENTRY = """
extern "C" const char *launch(int blocks, const index_t *words)
{
    return launched(%s, blocks, THREADS, words);
}
"""


def kernel(source, name, defines):
    """``run(blocks, *arguments)``: arguments are arrays and integers; gives what went wrong, or
    None."""
    text = kernels.source(source).replace(kernels.source("ptx.cu"), "")
    text, found = IN_PTX.subn("", text)
    options = ["-O1", *(f"-D{macro}={value}" for macro, value in defines.items())]
    if found:
        if platform.machine() != "x86_64":
            pytest.skip("16-bit numbers are rounded by x86-64 processors here")
        options.append("-mf16c")
    text = SHARED.sub(r"\1 *const shared = (\1 *)shared_memory;", text)
    header = "".join(file.read_text("utf-8") for file in HEADERS)
    launch = library(header + text + ENTRY % name, *options).launch
    launch.restype = ctypes.c_char_p

    def run(blocks, *arguments):
        words = [a if isinstance(a, int) else a.ctypes.data for a in arguments]
        return launch(blocks, (ctypes.c_longlong * len(words))(*words))

    return run


def functions(source):
    """The functions of a file that is C too."""
    text = '#include <math.h>\n#define DEVICE\ntypedef long long index_t;\nextern "C" {\n'
    return library(f"{text}{kernels.source(source)}}}\n", "-O1")
