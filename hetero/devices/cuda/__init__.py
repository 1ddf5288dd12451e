"""CUDA devices through PyCUDA, or through `cuda-bindings` where that is not installed (`driver`).

The primary context is retained, never made current at import, pushed around each use and popped
after it, so that CuPy, torch, numba and cuBLAS share it and nothing is left on the stack at exit.
A thread that has a PyCUDA context of its own on the device (``pycuda.autoinit``) is served in that
one, because its arrays live there. Work goes to the legacy default stream, unless it is given one
made by `CudaDevice.new_stream`, which the legacy stream neither waits for nor holds up.

`device` has the device, whose parts are `context`, its contexts and what belongs to each; `memory`,
device memory and pinned host memory; `compiler`, its kernels; `copies`, what its copies from and to
the host take. `bindings` has PyCUDA's names on `cuda-bindings`.
"""

from hetero.devices.cuda.driver import find

__all__ = ["find"]
