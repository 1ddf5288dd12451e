"""The ways to multiply a matrix and a vector: NumPy, our own kernels."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from hetero import registry
from hetero.ops.products import operands, tiled
from hetero.registry import Arguments
from hetero.registry.models import Work
from hetero.registry.problem import Problem

NAME = "matvec"
# Rows and columns of the largest matrix that calibration measures, by kind of device; of others.
LARGEST = {"cpu": 8192, "opencl": 1024, "": 16384}


def _cpu_work(problem: Problem, info: dict[str, Any]) -> Work:
    return _as_measured(operands.cpu_work(problem, info), info)


def _gpu_work(problem: Problem, info: dict[str, Any]) -> Work:
    return _as_measured(operands.gpu_work(problem, info), info)


def _as_measured(work: Work, info: dict[str, Any]) -> Work:
    """The work with the dimensions of a shorter matrix of as many elements, if one is very long.

    Each element is read once, whatever the shape, and that is what takes the time. A matrix that
    has few elements for its length tells of the start of a call, not of the rate.
    """
    m, k = work.dims
    most = LARGEST.get(info.get("kind"), LARGEST[""])
    fold = min(max(m, k) / most, most / min(m, k))
    if fold <= 1.0:
        return work
    m, k = (m / fold, k * fold) if m > k else (m * fold, k / fold)
    return work._replace(dims=(round(m), round(k)))


def _run_blas(devices: tuple[()], problem: Problem, arguments: Arguments) -> None:
    getattr(np, problem.function)(*arguments.inputs, out=arguments.output)


_method = functools.partial(registry.register_method, operation=NAME)
_method(method="blas", kinds=("cpu",), work=_cpu_work, run=_run_blas)
_method(method="tiled", kinds=("cuda",), work=_gpu_work, run=tiled.run, prepare=tiled.prepare)
_method(method="tiled", kinds=("opencl",), work=_gpu_work, run=tiled.run)
