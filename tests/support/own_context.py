"""Arrays in a context of PyCUDA's own, beside the primary one; run by test_failing_driver.py."""

from __future__ import annotations

import failing_driver
import numpy as np
import pycuda.autoinit
from fakes import in_threads
from pycuda import gpuarray

import hetero
from hetero import devices

failing_driver.install(computing=False)
device, own = devices.get("cuda:0"), pycuda.autoinit.context
a = np.random.default_rng(1).random((40, 40))
A = gpuarray.to_gpu(a)


def host_call() -> None:
    hetero.matmul(a, a, device="cuda")


for options in ({"device": "cuda"}, {"method": "tiled"}, {"device": "cpu"}):
    for _ in range(3):  # planned, then remembered
        assert type(hetero.matmul(A, A, **options)) is gpuarray.GPUArray
host_call()
assert [*device.states] == [own]
in_threads(host_call)
assert len(device.states) == 2, "a thread without one works in the primary context"
pinned = hetero.empty_pinned((1000,))
with device.active():
    assert device.is_pinned(pinned)
    device.wait(device.record())
assert pycuda.autoinit.context.get_current() == own
hetero.clear_memory()
np.testing.assert_array_equal(hetero.to_host(A), a)
assert not failing_driver.messages, failing_driver.messages
print("right")
