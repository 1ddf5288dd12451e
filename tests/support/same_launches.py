"""What a launch gets is what was asked for, and what a remembered call launches is, byte for byte,
what the call before it launched.

Run by test_failing_driver.py. Kernels of the fake driver do nothing there. Prints "right".
"""

from __future__ import annotations

from functools import partial
from itertools import product

import failing_driver
import numpy as np
from failing_driver import driver

import hetero
from hetero import devices
from hetero.calling import execution

failing_driver.install(computing=False)
failing_driver.fresh()
device, rng = devices.get("cuda:0"), np.random.default_rng(1)
execute, general = execution.execute, []  # one for each call that was not remembered
execution.execute = lambda *given: general.append(1) or execute(*given)


def there(*shape, dtype, order="C"):
    return device.array_of(np.asarray(rng.random(shape), dtype, order=order))


def launched(call):
    """How many launches there are, and the last one."""
    driver.fail(0)
    call()
    return driver.names().count("cuLaunchKernel"), driver.launch()


def launches(function, *operands, **placed) -> int:
    call = partial(function, *operands, device="cuda", **placed)
    first = launched(call)
    assert general
    general.clear()
    for _ in range(2):
        assert launched(call) == first
    assert not general
    return first[0]


with device.active():
    kernel = device.driver.module_from_buffer(b"machine code").get_function("kernel")
    for count, stream in ((40, device.new_stream()), (0, None)):
        arguments, place = np.arange(count).tobytes(), ((5, 2, 1), (64, 2, 3))
        kernel._launch_kernel(*place, arguments, 64, stream and stream.raw)
        assert driver.launch() == (*place, 64, stream and stream.handle, arguments)
    number, (buffer, _owner) = np.zeros(()), device.allocate(8)  # its value is no address
    device.enqueue("upload", np.array(3.5), buffer)
    device.enqueue("download", number, buffer)
    assert number == 3.5
    shapes = (512, 512, 512), (40, 24, 5000), (37, 41, 43), (2, 300, 70)
    for dtype, (m, n, k), (of_A, of_B) in product(("f4", "f8"), shapes, ("CC", "FC", "CF")):
        A, B = there(m, k, dtype=dtype, order=of_A), there(k, n, dtype=dtype, order=of_B)
        count = launches(hetero.matmul, A, B, method="tiled")
        assert count == 1 + (k == 5000), "in parts"
        if of_B == "C":
            launches(hetero.matvec, A, there(k, dtype=dtype), method="tiled")
    for dtype, size, shape in product(("f4", "f8"), (1, 3, 9, 15), ((64, 64), (37, 41))):
        image, taps = there(*shape, dtype=dtype), rng.random((size, size)).astype(dtype)
        assert launches(hetero.convolve2d, image, taps, "same", method="direct") == 1
print("right")
