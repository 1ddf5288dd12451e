"""Kernels, a folder a family: their sources, and the plans that say how to launch them.

The kernels are written in a dialect that compiles as CUDA C and, behind another prelude, as
OpenCL C 1.2. A plan (such as `plan_matvec`) picks the variant, the macros, the grid and the
arguments for one problem and one device; it needs neither the data nor the device. Each family's
README.md tells its idea and what was tried; `hetero.kernels.cpu` holds the loops of the CPU.

>>> launch_plan = plan_matvec(m=512, k=512, batch=1, dtype="float32", a_strides=(0, 512, 1),
...                     x_strides=(0, 1), y_strides=(0, 1), target=Target(132), alignment=16)
>>> [launch.kernel for launch in launch_plan.launches]
['matvec_rows']
"""

from .common.launch import Launch, LaunchPlan, Target, kernel_text, source
from .matmul.plan import plan_matmul
from .matmul.plan_tensor import LEAST_DEPTH, plan_tensor
from .matvec.plan import plan_matvec

__all__ = [
    "LEAST_DEPTH",
    "Launch",
    "LaunchPlan",
    "Target",
    "kernel_text",
    "plan_matmul",
    "plan_matvec",
    "plan_tensor",
    "source",
]
