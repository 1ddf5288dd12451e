"""What a CUDA context holds beyond a call, copies of operands too: counted, given up when it is
short, back when they die. Run by test_failing_driver.py.

Kernels do nothing there, so the right result is written behind them. Prints "right".
"""

from __future__ import annotations

import gc

import failing_driver
import numpy as np
from failing_driver import driver, fresh, install, messages

import hetero
from hetero import devices
from hetero.arrays import kept

rng = np.random.default_rng(8)
MB = 1 << 20
KEPT = "kept operands"
N = 512


def held() -> int:
    return hetero.memory()["cuda:0"].get(KEPT, 0)


def product(A) -> None:
    with hetero.use(device="cuda"):
        np.testing.assert_allclose(hetero.matvec(A, x), np.asarray(A) @ x, rtol=1e-9)


def on_device() -> list[bool]:
    return [bool(kept.find(A).copies) for A in matrices]


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
    sizes = hetero.memory()["cuda:0"]
    assert "arrays and running calls" not in sizes, (name, sizes)
    assert sizes["free in the pool"], name
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

# Copies of operands that do not change are in the pool. That which was used the longest ago makes
# room; nobody is told of it.
fresh()
x = rng.random(N)
matrices = [hetero.keep(rng.random((N, N))) for _ in range(3)]  # 2 MB each
driver.room(1 << 30)
for A in (*matrices, *matrices, matrices[0]):
    product(A)
assert on_device() == [True] * 3
assert held() == 6 * MB, hetero.memory()
driver.room(8 * MB)
with hetero.use(device="cuda"):
    hetero.matmul(rng.random((N // 2, N)), rng.random((N, N // 2)))  # 1 MB, twice, and the result
product(rng.random((N, N)))
assert on_device() == [True, False, True], on_device()
assert not messages, messages
device = devices.get("cuda:0")
with device.active():  # also outside of calls, which would be tried once more
    driver.room(5 * MB)
    device.allocate(3 * MB // 2)
assert on_device() == [True, False, False], on_device()
driver.room(1 << 30)
del A
matrices.clear()
assert held() == 0
hetero.clear_memory()
assert not sum(hetero.memory()["cuda:0"].values()), hetero.memory()

# A context that is given up takes its copies with it.
failing_driver.drop()
fresh()
A = hetero.keep(rng.random((N, N)))
product(A)
devices.get("cuda:0").give_up()
assert kept.find(A).copies == ()
product(A)
assert kept.find(A).copies == ("cuda:0",)
print("right")
