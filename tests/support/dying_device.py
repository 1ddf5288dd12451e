"""A process whose CUDA device fails from the k-th call on, from its discovery to the exit.

    dying_device.py [k ...]

Run by test_failing_driver.py. Without a k it prints how many calls there are.
"""

from __future__ import annotations

import os
import sys

import fake_cuda

driver = fake_cuda.Driver()

import numpy as np  # noqa: E402

import hetero  # noqa: E402
from hetero import devices, profile  # noqa: E402
from hetero.devices.base import Device  # noqa: E402
from hetero.devices.cuda import compiler  # noqa: E402

devices.kinds.remove("opencl")
Device.probe = lambda device: None
compiler._compile = lambda text, arch, options: b"machine code"
profile.set_current(profile.shipped("conservative"))
rng = np.random.default_rng(5)
A, B = rng.random((60, 60)), rng.random((60, 60))


def program() -> bool:
    right = True
    for _ in range(3):
        place = "cuda" if devices.available() else None
        out = A.copy()
        hetero.matmul(out, B, out=out, device=place)
        if driver.failures or place is None:
            right &= bool(np.allclose(out, A @ B))
    str(hetero.machine())
    return right


if not sys.argv[1:]:
    program()
    print(driver.calls)
for k in map(int, sys.argv[1:]):
    if not os.fork():
        driver.fail(k, good=True)
        print("right" if program() and driver.failures else "wrong")
        sys.exit()
    code = os.waitstatus_to_exitcode(os.wait()[1])
    print(f"-- {k} ended with {code}", file=sys.stderr, flush=True)
