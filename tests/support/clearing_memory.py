"""What a CUDA context holds beyond a call, counted and given back; run by test_failing_driver.py.

Kernels do nothing there, so the right result is written behind them.
"""

from __future__ import annotations

import gc

import failing_driver
import numpy as np
from failing_driver import driver, fresh, install

import hetero
from hetero import devices

install()
fresh()
assert hetero.memory() == {"cuda:0": {}}
hetero.clear_memory()
assert not devices.get("cuda:0").states, "no context is opened for that"

for name, (call, method) in failing_driver.calls().items():
    with hetero.use(device="cpu"):
        failing_driver.answer = np.asarray(call()).copy()
    for _ in range(2):
        with hetero.use(device="cuda", method=method):
            call()
    gc.collect()
    held = hetero.memory()["cuda:0"]
    assert "arrays and running calls" not in held, (name, held)
    assert held["free in the pool"], name
    hetero.clear_memory("cuda:0")
    gc.collect()
    assert hetero.memory() == {"cuda:0": {}}, (name, hetero.memory())
    assert not driver.live()["memory"], name
    assert not driver.live()["pushed"], name

# What a caller holds is counted, and stays.
device = devices.get("cuda:0")
made, _ = device.new_array((1000,), np.dtype("f8"))
assert hetero.memory()["cuda:0"] == {"arrays and running calls": 8192}
hetero.clear_memory()
assert hetero.memory()["cuda:0"] == {"arrays and running calls": 8192}
assert driver.live()["memory"] == 1
del made
for host in (np.random.random((30, 20)), np.random.random((30, 20)).T, np.ones((30, 0))):
    copied = device.array_of(host)
    assert copied.strides == host.strides or not host.size
    np.testing.assert_array_equal(hetero.to_host(copied), host)
del copied
hetero.clear_memory()
assert not driver.live()["memory"]

# A device that runs short drops what is kept before a call is told.
image, filter = np.ones((300, 300)), np.ones((40, 40))
with hetero.use(device="cuda", method="fft"):
    failing_driver.answer = None
    hetero.convolve2d(image, filter)
with device.active():
    assert device.memory_held()["transforms' work areas"]
    driver.room(1 << 20)
    device.allocate(1 << 19)
    assert "transforms' work areas" not in device.memory_held()
fresh()
print("right")
