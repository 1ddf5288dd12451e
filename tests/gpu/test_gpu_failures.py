"""A real GPU that runs out of memory, and one whose context a kernel has destroyed."""

from __future__ import annotations

import processes
import pytest

pytestmark = pytest.mark.gpu

BEGIN = """
import numpy as np, hetero
from hetero import devices
from hetero.devices.cuda import driver
from hetero.errors import DeviceMemoryError
rng = np.random.default_rng(1)
device = devices.get("cuda:0")
a = rng.random((300, 300), np.float32)
assert np.allclose(hetero.matmul(a, a, device="cuda:0"), a @ a, rtol=1e-4)
"""

SHORT = """
held = []

def leave(nbytes):
    # Everything but so many bytes is somebody else's.
    size = driver.free_memory() - nbytes
    while size > 1 << 20:
        try:
            held.append(driver.given("cuMemAlloc_v2", size))
            size = driver.free_memory() - nbytes
        except DeviceMemoryError:
            size -= 32 << 20

def tried(call, expected):
    found = call()
    assert np.allclose(found, expected, rtol=1e-3), abs(found - expected).max()
    assert not devices.health["cuda:0"].failure and devices.disabled("cuda:0") is None

stack, b = rng.random((64, 512, 512), np.float32), rng.random((512, 512), np.float32)
image, filter = rng.random((4000, 4000), np.float32), rng.random((3, 3), np.float32)
blurred = hetero.convolve2d(image, filter, "same", device="cpu")
with device.active():
    device.trim()
    leave(48 << 20)
    tried(lambda: hetero.matmul(stack, b, device="cuda:0"), stack @ b)
    tried(lambda: hetero.convolve2d(image, filter, "same", device="cuda:0"), blurred)
    assert not devices.troubles(), devices.troubles()  # it was done there, in pieces
    leave(2 << 20)
    tried(lambda: hetero.matmul(stack, b, device="cuda:0"), stack @ b)
    while held:
        driver.call("cuMemFree_v2", held.pop())
    devices.health["cuda:0"].was_short = False
    tried(lambda: hetero.matmul(stack, b, device="cuda:0"), stack @ b)
    assert not devices.troubles(), devices.troubles()
print("right")
"""

DEAD = """
x = a.copy()
with device.active():
    kernel = device.build("probe.cu", "probe", (("BLOCK", 64),))
    device.launch(kernel, 2, 64, [16, 16, 2])  # an address where nothing is
for _ in range(4):
    assert np.allclose(hetero.matmul(a, a, out=x, device="cuda:0"), a @ a, rtol=1e-4)
    x = a.copy()
    hetero.matmul(x, a, out=x, device="cuda:0")
    assert np.allclose(x, a @ a, rtol=1e-4)
assert "set_aside" in hetero.machine()["devices"]["cuda:0"]
"""

# The driver refuses all work until the process ends: the CPU goes on, and the reason is told.
RESET = """
hetero.reset("cuda:0")
for _ in range(3):
    assert np.allclose(hetero.matmul(a, a), a @ a, rtol=1e-4)
try:
    hetero.matmul(a, a, device="cuda:0")
    raise SystemExit("the driver has mended: let reset use it, and say so")
except hetero.errors.DeviceNotAvailable as error:
    assert "illegal memory access" in str(error)
assert "illegal memory access" in hetero.machine()["broken"]["cuda:0"]
"""


@pytest.mark.alone
def test_out_of_memory_is_done_in_pieces_and_the_device_stays():
    done = processes.python("-c", BEGIN + SHORT)
    assert done.stdout.split()[-1:] == ["right"]


@pytest.mark.parametrize("parts", [(DEAD,), (DEAD, RESET)], ids=["dead", "reset"])
def test_a_device_that_fails_is_two_warnings(parts):
    done = processes.python("-c", "".join([BEGIN, *parts]))
    lines = [line for line in done.stderr.splitlines() if line.startswith("hetero: cuda:0")]
    assert len(lines) == 2, done.stderr
    assert "PyCUDA" not in done.stderr, done.stderr
