"""A CUDA device without room: blocks, the CPU, one warning, and the device stays.

Run by test_failing_driver.py. Kernels do nothing there, so the right result is written behind them.
"""

from __future__ import annotations

import failing_driver
import numpy as np
from failing_driver import driver, fresh, install, messages
from scipy import signal

import hetero
from hetero import devices
from hetero.calling import execution

rng = np.random.default_rng(6)
MB = 1 << 20
ran: list[str] = []


def watch() -> None:
    """Note the operands of all that ran on the device to its end."""
    whole, blocks = execution.on_device, execution.by_host

    def run(device, implementation, problem, call):
        made = whole(device, implementation, problem, call)
        ran.append("whole")
        return made

    def run_blocks(used, *others):
        made = blocks(used, *others)
        if used:
            ran.append("blocks")
        return made

    execution.on_device, execution.by_host = run, run_blocks


def called(room: int, call, in_blocks: bool, expected) -> None:
    fresh()
    ran.clear()
    driver.room(room)
    with hetero.use(device="cuda"):
        result = call()
    np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-12)
    assert ran == ["blocks"] * in_blocks, ran
    assert len(messages.texts) == (not in_blocks), messages.texts
    assert devices.disabled("cuda:0") is None
    assert devices.health["cuda:0"].failure is None
    for _ in range(2):  # neither a failure nor said again
        with hetero.use(device="cuda"):
            call()
    assert len(messages.texts) == (not in_blocks), messages.texts
    assert devices.disabled("cuda:0") is None
    driver.room(1 << 30)
    ran.clear()
    with hetero.use(device="cuda"):
        call()
    assert ran == ["whole"], "with room again the device does the whole"


install()
watch()
stack, B = rng.random((8, 150, 150)), rng.random((150, 150))
each = rng.random((8, 150, 150))
A, wide = rng.random((700, 150)), rng.random((150, 700))
v = rng.random(150)
image, filter = rng.random((500, 300)), np.outer(rng.random(5), rng.random(4))
low = image[:60]


def in_place():
    A = stack.copy()
    return hetero.matmul(A, B, out=A)


def overlapping():
    whole = np.concatenate([stack, stack])
    return hetero.matmul(whole[:8], each, out=whole[3:11])


called(2 * MB, lambda: hetero.matmul(stack, B), True, stack @ B)
called(2 * MB, lambda: hetero.matmul(stack, each), True, stack @ each)
called(2 * MB, in_place, True, stack @ B)
called(2 * MB, overlapping, True, stack @ each)
called(3 * MB, lambda: hetero.matmul(A, wide), True, A @ wide)
called(3 * MB, lambda: hetero.matmul(wide.T, A.T), True, wide.T @ A.T)
large = rng.random((1500, 150))
called(3 * MB // 2, lambda: hetero.matvec(large, v), False, large @ v)
for mode in ("full", "same", "valid"):
    right = signal.convolve2d(image, filter, mode)
    called(2 * MB, lambda mode=mode: hetero.convolve2d(image, filter, mode), True, right)
called(1000, lambda: hetero.matmul(stack[:2], B), False, stack[:2] @ B)
called(1000, lambda: hetero.convolve2d(low, filter), False, signal.convolve2d(low, filter))

# Memory that is kept for later calls makes room for others.
fresh()
driver.room(4 * MB)
with hetero.use(device="cuda"):
    hetero.matmul(stack[:6], B)
    ran.clear()
    hetero.matmul(A, wide[:, :200])
assert len(ran) == 1, ran
assert not messages.texts, messages.texts
driver.room(1 << 30)
failing_driver.drop()
fresh()
print("right")
