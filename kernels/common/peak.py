"""Launches that measure a device's peak rates, with the flops of each."""

from __future__ import annotations

from .launch import REAL, Launch, check_dtype

THREADS = 256
_FLOPS = 2 * 8 * 32  # of a thread in a round, see peak.cu
_TENSOR_FLOPS = 2048 * 4 * 8 // 32  # see peak_tensor.cu
_FLOAT64_TENSOR_CORES = ((8, 0), (9, 0), (10, 0))


def peaks(
    dtype: str, blocks: int, rounds: int, block_limit: int, capability: tuple[int, int] | None
) -> dict[str, tuple[Launch, float]]:
    """Name -> a launch on a buffer ``"out"`` of an element for each thread, and its flops.

    ``blocks`` and ``rounds``: how many blocks, and how long each computes; ``block_limit``: most
    threads that the device takes in a block; ``capability``: of a CUDA device.
    """
    check_dtype(dtype)
    threads = min(THREADS, block_limit)
    size = ("THREADS", threads)
    arguments = ("out", rounds)
    plain = Launch("peak.cu", "peak", (("REAL", REAL[dtype]), size), blocks, threads, arguments)
    kernels = {"multiply-adds": (plain, float(_FLOPS * rounds * blocks * threads))}
    if dtype == "float64" and capability in _FLOAT64_TENSOR_CORES:
        tensor = Launch("peak_tensor.cu", "peak_tensor", (size,), blocks, threads, arguments)
        kernels["tensor cores"] = tensor, float(_TENSOR_FLOPS * rounds * blocks * threads)
    return kernels
