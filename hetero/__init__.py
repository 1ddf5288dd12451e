"""Matrix products, 2-D convolution, conjugate gradients and Poisson's equation, on CPU or GPU.

hetero measures a machine once (`calibrate`). From then on it predicts before each call how long it
would take on the CPU and on each GPU, copies between host and GPU included. The fastest runs.

==================================  ==========================================================
`matvec`, `matmul`                  products, with the semantics of NumPy's
`convolve2d`                        2-D convolution, with the semantics of SciPy's
`solve_cg`                          conjugate gradients, with the contract of SciPy's
`solve_poisson`                     Poisson's equation on a rectangle or a box
`Poisson`                           its operator, matrix-free, for `solve_cg`
`graph`                             many calls on GPU arrays, recorded once and replayed
`plan`, `Plan`, `spec`              what a call would do and how long it would take; nothing runs
`use`                               choose device or method yourself
`machine`, `calibrate`, `Profile`   what is here, and its measured constants
`memory`, `clear_memory`            memory of the devices that is held, by purpose; give it back
`reset`                             use a device again that failed and was set aside
`errors`                            the exceptions
==================================  ==========================================================

The public names are imported on first use: ``import hetero`` imports neither PyCUDA, PyOpenCL,
Numba nor SciPy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hetero import errors

if TYPE_CHECKING:
    from hetero.arrays import spec
    from hetero.calibration import calibrate
    from hetero.ops import plan
    from hetero.ops.cg import solve_cg
    from hetero.ops.convolve2d import convolve2d
    from hetero.ops.linear_systems.operators import Poisson
    from hetero.ops.matmul import matmul
    from hetero.ops.matvec import matvec
    from hetero.ops.poisson import solve_poisson
    from hetero.runtime.failures import reset
    from hetero.runtime.graphs import graph
    from hetero.runtime.memory import clear_memory, memory
    from hetero.runtime.overview import machine
    from hetero.runtime.planner import Plan, use
    from hetero.runtime.profile import Profile

__version__ = "0.1.0"

_HOMES = {
    "calibrate": "hetero.calibration",
    "clear_memory": "hetero.runtime.memory",
    "convolve2d": "hetero.ops.convolve2d",
    "graph": "hetero.runtime.graphs",
    "machine": "hetero.runtime.overview",
    "matmul": "hetero.ops.matmul",
    "matvec": "hetero.ops.matvec",
    "memory": "hetero.runtime.memory",
    "plan": "hetero.ops",
    "Plan": "hetero.runtime.planner",
    "Poisson": "hetero.ops.linear_systems.operators",
    "Profile": "hetero.runtime.profile",
    "reset": "hetero.runtime.failures",
    "solve_cg": "hetero.ops.cg",
    "solve_poisson": "hetero.ops.poisson",
    "spec": "hetero.arrays",
    "use": "hetero.runtime.planner",
}

__all__ = [
    "Plan",
    "Poisson",
    "Profile",
    "calibrate",
    "clear_memory",
    "convolve2d",
    "errors",
    "graph",
    "machine",
    "matmul",
    "matvec",
    "memory",
    "plan",
    "reset",
    "solve_cg",
    "solve_poisson",
    "spec",
    "use",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hetero' has no attribute {name!r}")
    importlib.import_module("hetero.ops")  # every operation is registered before the first plan
    return _bind(name)


def _bind(name: str) -> Any:
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
