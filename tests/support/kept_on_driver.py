"""Copies of operands on a CUDA device: in its pool, given up when it is short, back when they die.

Run by test_failing_driver.py. Kernels do nothing there, so the right result is written behind them.
"""

from __future__ import annotations

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
x = rng.random(N)
matrices = [hetero.keep(rng.random((N, N))) for _ in range(3)]  # 2 MB each
driver.room(1 << 30)
for A in matrices:
    for _ in range(2):
        product(A)
assert on_device() == [True] * 3
assert held() == 6 * MB, hetero.memory()

# The pool asks for the room of the copy that was used the longest ago itself; nobody is told of it.
storage = next(iter(kept.find(matrices[0]).held))
product(matrices[0])
driver.room(8 * MB)
B = rng.random((N, N // 2))
with hetero.use(device="cuda"):
    hetero.matmul(rng.random((N // 2, N)), B)  # 1 MB, twice, and the result
big = rng.random((N, N))
with hetero.use(device="cuda"):
    np.testing.assert_allclose(hetero.matvec(big, x), big @ x, rtol=1e-9)
assert on_device() == [True, False, True], on_device()
assert not messages.texts, messages.texts
driver.room(1 << 30)

product(matrices[1])  # comes back
assert on_device() == [True] * 3

del A, matrices[0]
assert held() == 4 * MB
matrices.clear()
assert held() == 0
assert not storage.copied()
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
