"""CUDA C kernels for matrix-vector and matrix-matrix products, and how to launch them.

The kernels are written in a dialect that compiles as CUDA C and, behind another `prelude`, as
OpenCL C 1.2. A plan (`matvec`, `matmul`) picks the variant, the macros, the grid and the arguments
for one problem and one device; it needs neither the data nor the device.

>>> steps = matvec(m=512, k=512, batch=1, dtype="float32", a_strides=(0, 512, 1),
...                x_strides=(0, 1), y_strides=(0, 1), multiprocessors=132, alignment=16)
>>> [launch.kernel for launch in steps.launches]
['matvec_rows']
"""

from .common.launch import Launch, Steps
from .common.sources import prelude, source
from .matmul.plan_matmul import matmul
from .matvec.plan_matvec import matvec

__all__ = ["Launch", "Steps", "matmul", "matvec", "prelude", "source"]
