"""What hetero asks of PyCUDA and of cuda-bindings, on the fake driver: both must behave alike.

Run by test_failing_driver.py. Prints "right".
"""

from __future__ import annotations

import gc
import os
import struct
import threading

import fake_cuda

fake = fake_cuda.Driver()

import numpy as np  # noqa: E402  PyCUDA must find the fake driver loaded

from hetero.devices.cuda import chosen  # noqa: E402
from hetero.devices.cuda.context import Lent  # noqa: E402

driver, name, refused = chosen()
wanted = {"pycuda": "PyCUDA ", "bindings": "cuda-bindings "}[os.environ["HETERO_DRIVER"]]
assert name.startswith(wanted), name
assert refused is None
Context = driver.Context


def in_thread(function) -> None:
    wrong = []

    def run():
        try:
            function()
        except BaseException as error:
            wrong.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if wrong:
        raise wrong[0]


def raised(call, status: int, function: str) -> Exception:
    """What a call raises when the driver's function returns a status."""
    fake.fail(1, function, good=True, status=status)  # PyCUDA asks twice for memory
    try:
        call()
    except driver.Error as error:
        return error
    finally:
        fake.fail(0)
    raise AssertionError(f"{function} failed unseen")


def devices() -> None:
    assert driver.Device.count() == 1
    assert driver.get_driver_version() == 13000
    device, attribute = driver.Device(0), driver.device_attribute
    assert device.name() == "fake device"
    assert device.pci_bus_id() == "0000:00:00.0"
    assert device.total_memory() == 1 << 30
    assert device.compute_capability() == (9, 0)
    assert device.get_attribute(attribute.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN) == 227 << 10


def contexts() -> None:
    assert Context.get_current() is None
    primary = driver.Device(0).retain_primary_context()
    for _ in range(2):
        primary.push()
    assert Context.get_current() == primary
    assert Context.get_device().pci_bus_id() == "0000:00:00.0"
    in_thread(lambda: no_context())
    own = driver.Device(0).make_context()
    assert Context.get_current() == own != primary
    own.detach()
    assert Context.get_current() == primary
    for _ in range(2):
        Context.pop()
    no_context()
    assert fake.live()["context"] == 1
    assert not fake.live()["pushed"]


def no_context() -> None:
    assert Context.get_current() is None
    try:
        Context.pop()
    except driver.LogicError:
        return
    raise AssertionError("nothing is there to be popped")


def a_context_that_another_thread_detaches() -> None:
    """Nothing made in it is given back by itself, and who works in it leaves it.

    PyCUDA's pop refuses, and its get_current leaves the driver's stack as it is.
    """
    device = driver.Device(0)
    for leave in (Context.pop, Context.get_current):
        context = device.retain_primary_context()
        context.push()
        event = driver.Event(2)
        in_thread(context.detach)
        leave()
        assert Context.get_current() is None
        assert not fake.live()["pushed"]
        fake.fail(0)
        del event
        assert not fake.names()


def errors() -> None:
    kinds = {
        2: driver.MemoryError,
        1: driver.LogicError,
        700: driver.LogicError,
        719: driver.LaunchError,
        702: driver.LaunchError,
        100: driver.RuntimeError,
    }
    for status, kind in kinds.items():
        error = raised(lambda: driver.mem_alloc(8), status, "cuMemAlloc_v2")
        assert type(error) is kind, (status, error)
        text = "out of memory" if status == 2 else "planted failure"
        assert str(error).startswith("cuMemAlloc failed: ")
        assert text in str(error)
    bases = {kind.__bases__ for kind in kinds.values()}
    assert bases == {(driver.Error,)}, bases
    calls = {
        "cuCtxSynchronize": Context.synchronize,
        "cuEventRecord": event.record,
        "cuEventQuery": event.query,
        "cuLaunchKernel": lambda: load()._launch_kernel((1, 1, 1), (32, 1, 1), b"", 0, None),
        "cuMemcpyDtoHAsync_v2": lambda: driver.memcpy_dtoh_async(np.ones(2), there, None),
        "cuStreamWaitEvent": lambda: stream.wait_for_event(event),
    }
    for function, call in calls.items():
        assert isinstance(raised(call, 719, function), driver.LaunchError), function


def memory() -> None:
    values = np.random.default_rng(2).random((3, 5))
    for up in (driver.memcpy_htod, lambda to, a: driver.memcpy_htod_async(to, a, stream)):
        for down in (driver.memcpy_dtoh, lambda a, of: driver.memcpy_dtoh_async(a, of, stream)):
            got = np.zeros_like(values)
            up(there, values)
            driver.memcpy_dtod_async(there + 512, there, values.nbytes, stream)
            driver.memset_d8_async(there, 0, 8, None)
            down(got, there + 512)
            assert (got == values).all()
            down(got, there)
            assert got[0, 0] == 0
            assert got[0, 1] == values[0, 1]
            number = np.zeros(())  # whose value is no address
            up(there, values[0, 0, ...])
            down(number, there)
            assert number == values[0, 0]
    free, total = driver.mem_get_info()
    assert total - free == 4096
    before = fake.live()["memory"]
    first, second = driver.mem_alloc(64), driver.mem_alloc(64)
    first.free()
    del second
    assert fake.live()["memory"] == before
    del first
    assert fake.live()["memory"] == before
    pinned = driver.pagelocked_empty(1000, np.uint8)
    pinned[:] = 3
    assert fake.live()["pinned"] == 1
    del pinned
    assert not fake.live()["pinned"]


def what_is_dropped_in_another_thread() -> None:
    things, before = [driver.Event(2), driver.Stream(1)], fake.live()
    in_thread(things.clear)
    after = fake.live()
    assert [before[kind] - after[kind] for kind in ("event", "stream", "pushed")] == [1, 1, 0]


def an_event_in_a_cycle() -> None:
    """Its `Lent` puts it back in a list, whole."""
    home, before = [], fake.live()["event"]
    lent = Lent(home, lambda: driver.Event(2))
    lent_in_cycle = [lent]
    lent_in_cycle.append(lent_in_cycle)
    del lent, lent_in_cycle
    gc.collect()
    (event,) = home
    assert fake.live()["event"] == before + 1
    event.record(stream)
    home.clear()
    del event
    assert fake.live()["event"] == before


def load():
    return driver.module_from_buffer(b"machine code").get_function("kernel")


def launches() -> None:
    kernel = load()
    name = driver.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
    kernel.set_attribute(name, 100 << 10)
    for count, shared_bytes, queue in ((6, 0, None), (40, 64, stream), (0, 0, None)):
        arguments = struct.pack(f"{count}q", *range(7, 7 + count))
        place = (5, 2, 1), (64, 2, 3)

        def launch(queue=queue, arguments=arguments, shared_bytes=shared_bytes, place=place):
            kernel._launch_kernel(*place, arguments, shared_bytes, queue)

        for run in (launch, lambda launch=launch: in_thread(launch)):
            run()
            handle = None if queue is None else queue.handle
            assert fake.launch() == (*place, shared_bytes, handle, arguments)


driver.init()
devices()
contexts()
if os.environ["HETERO_DRIVER"] == "bindings":  # PyCUDA leaves some of that as it is
    a_context_that_another_thread_detaches()
driver.Device(0).retain_primary_context().push()
stream, event, allocation = driver.Stream(1), driver.Event(0), driver.mem_alloc(4096)
there = int(allocation)
assert event.query()
event.record(stream)
event.synchronize()
stream.wait_for_event(event)
assert fake.waits()[-1] == (stream.handle, stream.handle)
assert event.time_since(event) == 1.0
errors()
memory()
if os.environ["HETERO_DRIVER"] == "bindings":
    what_is_dropped_in_another_thread()
an_event_in_a_cycle()
launches()
Context.pop()
print("right")
