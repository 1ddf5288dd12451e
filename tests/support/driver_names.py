"""What hetero asks of PyCUDA and of cuda-bindings, on the fake driver: both must behave alike.

Run by test_failing_driver.py. Prints "right".
"""

from __future__ import annotations

import os
import struct
from functools import partial

import fake_cuda

fake = fake_cuda.Driver()

import numpy as np  # noqa: E402  PyCUDA must find the fake driver loaded
import pytest  # noqa: E402
from fakes import in_threads  # noqa: E402

from hetero.devices.cuda import chosen  # noqa: E402
from hetero.devices.cuda.driver import given  # noqa: E402

driver, name, refused = chosen()
wanted = {"pycuda": "PyCUDA ", "bindings": "cuda-bindings "}[os.environ["HETERO_DRIVER"]]
assert name.startswith(wanted), name
assert refused is None
Context = driver.Context


def contexts() -> None:
    assert Context.get_current() is None
    primary = driver.Device(0).retain_primary_context()
    for _ in range(2):
        primary.push()
    assert Context.get_current() == primary
    in_threads(no_context)
    for _ in range(2):
        Context.pop()
    no_context()
    assert fake.live()["context"] == 1
    assert not fake.live()["pushed"]


def no_context() -> None:
    assert Context.get_current() is None
    with pytest.raises(driver.Error):
        Context.pop()


def a_context_that_another_thread_detaches() -> None:
    """Who works in it leaves it.

    PyCUDA's pop refuses, and its get_current leaves the driver's stack as it is.
    """
    for leave in (Context.pop, Context.get_current):
        context = driver.Device(0).retain_primary_context()
        context.push()
        in_threads(context.detach)
        leave()
        assert Context.get_current() is None
        assert not fake.live()["pushed"]


def errors() -> None:
    calls = {
        "cuLaunchKernel": lambda: load()._launch_kernel((1, 1, 1), (32, 1, 1), b"", 0, None),
        "cuMemcpyDtoH_v2": lambda: driver.memcpy_dtoh(np.ones(2), there),
        "cuStreamCreate": lambda: driver.Stream(1),
    }
    for function, call in calls.items():
        for status, text in ((2, "out of memory"), (719, "planted failure")):
            fake.fail(1, function, status=status)
            with pytest.raises(driver.Error, match=f"{function.split('_')[0]} failed: .*{text}"):
                call()
    fake.fail(0)


def memory() -> None:
    values, got = np.random.default_rng(2).random((3, 5)), np.zeros((3, 5))
    driver.memcpy_htod(there, values)
    driver.memcpy_dtoh(got, there)
    assert (got == values).all()
    number = np.zeros(())  # whose value is no address
    driver.memcpy_htod(there, values[0, 0, ...])
    driver.memcpy_dtoh(number, there)
    assert number == values[0, 0]


def load():
    return driver.module_from_buffer(b"machine code").get_function("kernel")


def launches() -> None:
    kernel = load()
    name = driver.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
    kernel.set_attribute(name, 100 << 10)
    for count, shared_bytes, queue in ((6, 0, None), (40, 64, stream), (0, 0, None)):
        arguments = struct.pack(f"{count}q", *range(7, 7 + count))
        handle, place = queue and queue.handle, ((5, 2, 1), (64, 2, 3))
        launch = partial(kernel._launch_kernel, *place, arguments, shared_bytes, queue)
        for run in (launch, partial(in_threads, launch)):
            run()
            assert fake.launch() == (*place, shared_bytes, handle, arguments)


driver.init()
assert driver.Device.count() == 1
contexts()
if os.environ["HETERO_DRIVER"] == "bindings":  # PyCUDA leaves some of that as it is
    a_context_that_another_thread_detaches()
driver.Device(0).retain_primary_context().push()
stream, there = driver.Stream(1), given("cuMemAlloc_v2", 4096)
errors()
memory()
launches()
Context.pop()
print("right")
