"""A CUDA device that fails twice is set aside, and `hetero.reset` takes it back, context and all.

Run by test_failing_driver.py.
"""

from __future__ import annotations

import numpy as np
from failing_driver import driver, fresh, install, messages

import hetero
from hetero import devices

install()
fresh()
rng = np.random.default_rng(8)
A, B = rng.random((50, 50)), rng.random((50, 50))


def product() -> bool:
    with hetero.use(device="cuda"):
        made = hetero.matmul(A, B)
    return bool(np.allclose(made, A @ B))


assert product()
device = devices.get("cuda:0")
first = device.contexts.held
driver.fail(1, good=True)  # as after a kernel that read where nothing is
for _ in range(4):
    assert product()
assert driver.failures
assert len(messages.texts) == 2, messages.texts
assert "hetero.reset('cuda:0')" in messages.texts[1]
here = hetero.machine()["devices"]["cuda:0"]
assert "failing twice" in here["set_aside"]
assert "planted failure" in str(hetero.machine())

before = driver.failures
hetero.reset("cuda:0")  # the driver still refuses
assert np.allclose(hetero.matmul(A, B), A @ B)
assert driver.failures > before
assert "planted failure" in str(hetero.machine())
assert "planted failure" in devices.broken()["cuda:0"]

driver.fail(0)
driver.unstack(device.contexts.held is None)
hetero.reset()
assert "set_aside" not in hetero.machine()["devices"]["cuda:0"]
assert product()
assert driver.calls > 5, "the device did it"
assert device.contexts.held != first, "in a new context"
assert len(messages.texts) == 2, messages.texts
print("right")
