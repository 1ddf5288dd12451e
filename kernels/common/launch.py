"""What a launch plan is made of: launches, their order, element types, and the kernels' text; and
launches that no family owns.

Preludes make one text serve CUDA C and OpenCL C 1.2.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

# The C name of each element type, and its bytes; those of the widest load and store in use.
REAL = {"float32": "float", "float64": "double"}
ELEMENT_BYTES = {"float32": 4, "float64": 8}
VECTOR_BYTES = 16
_THREADS = 256  # of a block, and most devices
# What lies beyond an image's edges: a constant; periodic; mirrored, with the edge repeated.
BOUNDARIES = ("fill", "wrap", "symm")
FILL, WRAP, SYMM = range(3)


class Launch(NamedTuple):
    """One kernel launch, complete but for the buffers' addresses.

    Launches with equal ``source`` and ``defines`` share a binary.
    """

    source: str  # file of this package that holds the kernel
    kernel: str  # name of the entry point
    defines: tuple[tuple[str, int | str], ...]  # macros to set with ``-D``
    grid: int  # blocks, in one dimension
    block: int  # threads of a block, in one dimension
    # In order. A string names a buffer, an integer is passed as a signed 64-bit integer.
    arguments: tuple[str | int, ...]
    shared_bytes: int = 0  # dynamic shared memory of a block


def launch(
    source: str,
    kernel: str,
    dtype: str,
    grid: int,
    block: int,
    arguments: tuple[str | int, ...],
    **macros: int | str,
) -> Launch:
    """A `Launch` of a kernel that is compiled for elements of a dtype, and with other macros."""
    defines = ("REAL", REAL[dtype]), *macros.items()
    return Launch(source, kernel, defines, grid, block, arguments)


class LaunchPlan(NamedTuple):
    """The launches that do one operation, to be run in order on one stream.

    They may need a scratch buffer ``"partial"`` at an address that 16 divides, of any content.
    """

    launches: tuple[Launch, ...]
    workspace: int  # elements (of the operands' dtype) of ``"partial"``; 0 if there is none
    variant: str  # short name of the variant chosen
    seconds: float = 0.0  # what it is expected to take; 0 where nothing is estimated


class Target(NamedTuple):
    """The device that launches are planned for."""

    multiprocessors: int
    block_limit: int = 1024  # most threads of a block; at least 64
    warps: bool = False  # whether it is NVIDIA's: lanes exchange through registers
    shared_limit: int = 32 << 10  # most bytes of shared memory that a block can have
    capability: tuple[int, int] | None = None  # compute capability of a CUDA device, such as (9, 0)


def ceil_div(a: int, b: int) -> int:
    """Return a / b rounded up, for positive integers."""
    return -(-a // b)


def power_of_two(number: int) -> int:
    """Return the least power of two that is not below a positive number."""
    return 1 << (number - 1).bit_length()


def by_vectors(batch: int, lines: int, strides: tuple[int, int, int], width: int) -> bool:
    """Tell whether lines, at (batch, line, element) strides, are made of vectors of ``width``
    elements that are aligned as the first one is."""
    between, along, element = strides
    return (
        element == 1 and (lines == 1 or along % width == 0) and (batch == 1 or between % width == 0)
    )


# -- The second step of a product split over k: adding up the partial results ---------------------

# Threads along the parts of k, for each output: few outputs with many parts need more.
_GROUPS = (1, 8)
_SMALL_THREADS = 64


def with_sums(
    first: Launch,
    variant: str,
    split_k: int,
    extents: tuple[int, int, int],
    out: str,
    strides: tuple[int, int, int],
    target: Target,
    seconds: float = 0.0,
) -> LaunchPlan:
    """The plan of a launch that computes parts of sums, and of one that adds these up.

    The first one writes the scratch buffer ``"partial"``, (split_k, batch, rows, columns); the
    extents, and the strides in elements of the buffer ``out``, are of (batch, row, column).
    """
    outputs = math.prod(extents)
    threads = _THREADS if target.block_limit >= _THREADS else _SMALL_THREADS
    groups = _GROUPS[split_k > 8 and outputs < 2 * threads * target.multiprocessors]
    lanes = threads // groups
    defines = ("REAL", dict(first.defines)["REAL"]), ("LANES", lanes), ("GROUPS", groups)
    arguments = "partial", out, split_k, *extents, *strides
    grid = ceil_div(outputs, lanes)
    second = Launch("partial.cu", "sum_partials", defines, grid, threads, arguments)
    return LaunchPlan((first, second), split_k * outputs, f"{variant}p{split_k}", seconds)


# -- Probes: arithmetic on registers (peak.cu), or reads of memory by a pattern (access.cu) --------

# The buffer "out" has an element for each thread.
BYTES = 4  # of an element that a probe reads
_STEPS, _READS = 16, 32  # elements of a thread; see access.cu
_FLOPS = 2 * 8 * 32  # of a thread in a round, see peak.cu
_TENSOR_FLOPS = 2048 * 4 * 8 // 32  # see peak_tensor.cu
FLOAT64_TENSOR_CORES = ((8, 0), (9, 0), (10, 0))


def peaks(
    dtype: str, blocks: int, rounds: int, block_limit: int, capability: tuple[int, int] | None
) -> dict[str, tuple[Launch, float]]:
    """Name -> a launch that measures a device's peak rate, and its flops.

    ``blocks`` and ``rounds``: how many blocks, and how long each computes; ``block_limit``: most
    threads that the device takes in a block; ``capability``: of a CUDA device.
    """
    threads, arguments = min(_THREADS, block_limit), ("out", rounds)
    size = ("THREADS", threads)
    plain = Launch("peak.cu", "peak", (("REAL", REAL[dtype]), size), blocks, threads, arguments)
    kernels = {"multiply-adds": (plain, float(_FLOPS * rounds * blocks * threads))}
    if dtype == "float64" and capability in FLOAT64_TENSOR_CORES:
        tensor = Launch("peak_tensor.cu", "peak_tensor", (size,), blocks, threads, arguments)
        kernels["tensor cores"] = tensor, float(_TENSOR_FLOPS * rounds * blocks * threads)
    return kernels


def strided(piece: int, stride: int, elements: int, block_limit: int) -> Launch:
    """Read the elements of the buffer ``"data"`` once, by pieces ``stride`` pieces apart.

    Pieces (in elements), strides and elements are powers of two, and there are at least 4096 and
    ``piece * stride`` elements.
    """
    threads = min(_THREADS, block_limit)
    shift = (elements // (piece * stride)).bit_length() - 1
    defines, grid = (("THREADS", threads), ("PIECE", piece)), elements // (threads * _STEPS)
    return Launch("access.cu", "strided", defines, grid, threads, ("data", "out", shift, stride))


def banks(stride: int, blocks: int, rounds: int, block_limit: int) -> tuple[Launch, int]:
    """Read shared memory, neighbouring threads 0 to 64 elements apart; and the number of reads."""
    threads = min(_THREADS, block_limit)
    defines = (("THREADS", threads), ("PIECE", 1))  # as of `strided`: one binary
    launch = Launch("access.cu", "banks", defines, blocks, threads, ("out", stride, rounds))
    return launch, _READS * rounds * blocks * threads


# -- Exchange: copies to other devices' memory, after which all devices meet -----------------------

_UNITS = {16: "int4", 8: "int2", 4: "int"}
_MOST_BLOCKS = 64  # which fill a link
WORDS = 4 + _THREADS  # of 4 bytes, of each device: exchange.cu


def exchange(
    copies: Sequence[tuple[int, int, int]], devices: int, rank: int, patience: float
) -> tuple[Launch, list[tuple[int, int, int]]]:
    """Plan the share of device ``rank``: its copies, each (target, source, bytes), addresses first.

    Bytes and addresses are multiples of 4. A device waits for another one for at most ``patience``
    seconds.

    Returns
    -------
    Launch
        Buffers: "copies" (the second result as 64-bit integers) and "words" (addresses of the words
        of all devices).
    list of (int, int, int)
        The copies, with units instead of bytes.
    """
    unit = math.gcd(16, *(number for copy in copies for number in copy))
    counted = [(target, source, nbytes // unit) for target, source, nbytes in copies]
    largest = max((count for *_, count in counted), default=0)
    blocks = max(1, min(ceil_div(largest, _THREADS), _MOST_BLOCKS))
    defines = ("UNIT", _UNITS[unit]), ("THREADS", _THREADS)
    arguments = "copies", "words", len(counted), devices, rank, blocks, round(1e9 * patience)
    return Launch("exchange.cu", "exchange", defines, blocks, _THREADS, arguments), counted


# -- The dialect -----------------------------------------------------------------------------------

# What the dialect adds to plain C, as seen by the two compilers. OpenCL C has address spaces and
# functions where CUDA C has qualifiers and variables. What comes into a function as a constant must
# be one: inlining is not left to OpenCL's compilers. 16-byte vectors are spelled alike in both,
# but only their components (.x .y .z .w) are used, since CUDA C has no vector arithmetic.
# Constant memory belongs to a file in CUDA C, where `Device.constant_memory` finds it, and is an
# argument in OpenCL C: a file declares it by CONSTANT_MEMORY, and a kernel's argument by CONSTANT.
_CUDA = """\
#define KERNEL(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
#define DEVICE static __device__ __forceinline__
#define GLOBAL
#define SHARED __shared__
#define LOCAL
#define CONSTANT_MEMORY(type, name, elements) __constant__ type name[elements];
#define CONSTANT(type, name) type *RESTRICT name##_address
#define RESTRICT __restrict__
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("unroll 1")
#define LOAD_ONCE(pointer) __ldcs(pointer)
typedef long long index_t;
"""

_OPENCL = """\
#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
#define KERNEL(threads, blocks) __kernel __attribute__((reqd_work_group_size(threads, 1, 1))) void
#define DEVICE static inline __attribute__((always_inline))
#define GLOBAL __global
#define SHARED __local
#define LOCAL __local
#define CONSTANT_MEMORY(type, name, elements)
#define CONSTANT(type, name) __constant type *name
#define RESTRICT restrict
#define UNROLL _Pragma("unroll")
#define NO_UNROLL
#define LOAD_ONCE(pointer) (*(pointer))
#define threadIdx ((uint3)(get_local_id(0), get_local_id(1), get_local_id(2)))
#define blockIdx ((uint3)(get_group_id(0), get_group_id(1), get_group_id(2)))
#define __syncthreads() barrier(CLK_LOCAL_MEM_FENCE)
#define atomicAdd atomic_add
typedef long index_t;
"""

# Alike in both: unrolled loops of i from 0 to n - 1, and from one number up to another by steps.
_LOOPS = """\
#define UNROLLED_RANGE(i, begin, end, step) UNROLL for (int i = begin; i < (end); i += step)
#define UNROLLED(i, n) UNROLLED_RANGE(i, 0, n, 1)
"""

_INCLUDE = re.compile(r'^#include "(\w+\.cu)"$', re.MULTILINE)
_PRELUDES = {"cuda": _CUDA + _LOOPS, "opencl": _OPENCL + _LOOPS}


@cache
def source(name: str) -> str:
    """The text of one kernel file of any family, by its name, such as ``"matvec.cu"``, or with its
    family, such as ``"matvec/ladder.cu"``.

    Files that it includes are in place, so that a compiler needs no search path.
    """
    text = _files()[name].read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda match: source(match[1]), text)


@cache
def kernel_text(name: str, dialect: str) -> str:
    """A kernel file behind the prelude of a dialect, "cuda" or "opencl"."""
    return _PRELUDES[dialect] + "\n" + source(name)


@cache
def _files() -> dict[str, Any]:
    """Every family's kernel files by name; no two have the same one, but for the ladders."""
    families = resources.files(__package__.rpartition(".")[0])
    return {
        f"{family.name}/{file.name}" if file.name == "ladder.cu" else file.name: file
        for family in families.iterdir()
        if family.is_dir()
        for file in family.iterdir()
        if file.name.endswith(".cu")
    }
