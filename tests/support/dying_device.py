"""A process whose CUDA device fails from the k-th call on, from its discovery to the exit.

    dying_device.py [k ...]

Run by test_failing_driver.py. Without a k it prints how many calls there are.
"""

from __future__ import annotations

import os
import sys

import failing_driver
import numpy as np
from failing_driver import driver

import hetero
from hetero import devices
from hetero.devices.base import Device

failing_driver.install()
Device.probe = lambda device: None
A, B = np.random.default_rng(5).random((2, 60, 60))


def program() -> bool:
    right = True
    for _ in range(3):
        out = A.copy()
        hetero.matmul(out, B, out=out, device="cuda" if devices.available() else None)
        right &= np.allclose(out, A @ B)
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
