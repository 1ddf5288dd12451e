"""Matrix products, convolution, conjugate gradients, Poisson's equation, k-means, on CPU or GPU.

hetero measures a machine once (`calibrate`). From then on it predicts before each call how long it
would take on the CPU and on each GPU, copies between host and GPU included. The fastest runs.

==================================  ==========================================================
`matvec`, `matmul`                  products, with the semantics of NumPy's
`convolve2d`                        2-D convolution, with the semantics of SciPy's
`solve_cg`                          conjugate gradients, with the contract of SciPy's
`solve_poisson`                     Poisson's equation on a rectangle or a box
`kmeans`, `KMeans`                  clustering, with the semantics of scikit-learn's
`Poisson`                           Poisson's operator, matrix-free, for `solve_cg`
`plan`, `Plan`, `spec`              what a call would do and how long it would take; nothing runs
`install`, `uninstall`              have NumPy's, SciPy's and scikit-learn's own calls computed so
`use`                               choose device or method yourself; leave results on devices
`to_host`                           bring an array to the host
`machine`, `calibrate`, `Profile`   what is here, and its measured constants
`keep`                              an array that does not change, for calls that use it again
`memory`, `clear_memory`            memory of the devices that is held, by purpose; give it back
`empty_pinned`                      a NumPy array in memory that devices copy from and to directly
`reset`                             use a device again that failed and was set aside
`errors`                            the exceptions
==================================  ==========================================================

The public names are imported on first use: ``import hetero`` imports neither PyCUDA, PyOpenCL,
Numba nor SciPy.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from hetero import errors as errors
from hetero.imports import load

if TYPE_CHECKING:
    from hetero.accel import install as install
    from hetero.accel import uninstall as uninstall
    from hetero.arrays import spec as spec
    from hetero.calibration.calibrate import calibrate as calibrate
    from hetero.calling.overview import clear_memory as clear_memory
    from hetero.calling.overview import empty_pinned as empty_pinned
    from hetero.calling.overview import machine as machine
    from hetero.calling.overview import memory as memory
    from hetero.calling.overview import to_host as to_host
    from hetero.calling.planner import use as use
    from hetero.moving.failures import reset as reset
    from hetero.moving.keeping import keep as keep
    from hetero.ops import plan as plan
    from hetero.ops.functions import *  # noqa: F403
    from hetero.ops.solvers.operators import Poisson as Poisson
    from hetero.pricing.plan import Plan as Plan
    from hetero.profile import Profile as Profile

__version__ = "0.2.0"

if find_spec("hetero.kernels") is None:  # which an installation puts here
    raise ImportError(
        "this folder has hetero's sources, which hide the installed package: "
        "start Python in another folder, or install them by 'pip install -e .' here"
    )

# Of every public name. An operation's function loads that operation alone.
_OPERATIONS = {
    "matvec": "hetero.ops.products.public",
    "matmul": "hetero.ops.products.public",
    "convolve2d": "hetero.ops.convolve2d",
    "solve_cg": "hetero.ops.solvers.cg",
    "solve_poisson": "hetero.ops.solvers.poisson",
    "kmeans": "hetero.ops.kmeans",
    "KMeans": "hetero.ops.kmeans.estimator",
}
_HOMES = {
    "calibrate": "hetero.calibration",
    "clear_memory": "hetero.calling.overview",
    "empty_pinned": "hetero.calling.overview",
    "install": "hetero.accel",
    "keep": "hetero.moving.keeping",
    "machine": "hetero.calling.overview",
    "memory": "hetero.calling.overview",
    "plan": "hetero.ops",
    "Plan": "hetero.pricing.plan",
    "Poisson": "hetero.ops.solvers.operators",
    "Profile": "hetero.profile",
    "reset": "hetero.moving.failures",
    "spec": "hetero.arrays",
    "to_host": "hetero.calling.overview",
    "uninstall": "hetero.accel",
    "use": "hetero.calling.planner",
}


def _named(record: Any) -> bool:
    """Where nobody set up logging a message is printed alone: put the logger's name in front."""
    if not _log.hasHandlers():
        record.msg = f"hetero: {record.msg}"
    return True


_log = load("logging").getLogger("hetero")
_log.addFilter(_named)


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted({"errors", *_HOMES, *_OPERATIONS})
    if name in _OPERATIONS:
        value = getattr(load(_OPERATIONS[name]), name)
    elif name in _HOMES:
        if _HOMES[name] != "hetero.accel":  # which loads them when a call is large enough
            load("hetero.ops.functions")  # every operation is registered before the first plan
        value = getattr(load(_HOMES[name]), name)
    else:
        gone = "was removed in 0.2: CuPy and torch capture CUDA graphs of their own calls"
        text = f"hetero.graph {gone}" if name == "graph" else f"no attribute {name!r} in hetero"
        raise AttributeError(text)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __getattr__("__all__")
