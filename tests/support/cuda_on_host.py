"""A CUDA kernel on the host, as C++ with a thread for each of a block's: slow, and exact."""

import ctypes
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from hetero import kernels

SHIM = Path(__file__).with_name("host_threads.hpp")
# What kernels say in PTX, for the host: rounding to 16 bits by F16C, or by hand.
ROUNDING = """
#include <immintrin.h>
struct float2 { float x, y; };
static float2 make_float2(float x, float y) { return {x, y}; }
static unsigned int nearest_float16(float x, float y)
{
    return _cvtss_sh(x, 0) | (unsigned int)_cvtss_sh(y, 0) << 16;
}
static unsigned int rounded(float x)
{
    const unsigned int bits = __float_as_uint(x);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
static unsigned int nearest_bfloat16(float x, float y) { return rounded(x) | rounded(y) << 16; }
static float2 values_of_float16(unsigned int both)
{
    return {_cvtsh_ss(both & 0xffff), _cvtsh_ss(both >> 16)};
}
"""
IN_PTX = re.compile(
    r"^DEVICE \S+( \S+)? (nearest_float16|nearest_bfloat16|values_of_float16)\(.*?^}\n", re.M | re.S
)


def compiled(folder, source, kernel, parameters, threads, **macros):
    """``run(blocks, *arguments)``, which runs a kernel; arguments are addresses and integers.

    ``parameters`` are their types in C.
    """
    if shutil.which("g++") is None or platform.machine() != "x86_64":
        pytest.skip("this needs g++ and an x86-64 processor")
    names = [f"p{i}" for i in range(len(parameters))]
    given = ", ".join(f"{kind} {name}" for kind, name in zip(parameters, names, strict=True))
    call = f"run_blocks(blocks, {threads}, [=] {{ {kernel}({', '.join(names)}); }});"
    entry = f'extern "C" void run(unsigned int blocks, {given}) {{ {call} }}\n'
    text = SHIM.read_text("utf-8") + ROUNDING + IN_PTX.sub("", kernels.source(source)) + entry
    name = "-".join([kernel, *(f"{macro}{value}" for macro, value in macros.items())])
    file = folder / f"{name}.cpp"
    file.write_text(text, "utf-8")
    options = ["-std=c++20", "-O1", "-w", "-mf16c", "-shared", "-fPIC", "-pthread"]
    options += [f"-D{macro}={value}" for macro, value in macros.items()]
    library = file.with_suffix(".so")
    subprocess.run(["g++", *options, "-o", library, file], check=True)
    found = ctypes.CDLL(str(library)).run

    def run(blocks, *arguments):
        kinds = [ctypes.c_void_p if "*" in kind else ctypes.c_longlong for kind in parameters]
        found(blocks, *(kind(a) for kind, a in zip(kinds, arguments, strict=True)))

    return run
