"""What a prepared call launches is, byte for byte, what the general way launches."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from hetero import registry
from hetero.arrays import HOST, spec
from hetero.devices.base import Device
from hetero.devices.cuda.device import CudaDevice
from hetero.devices.storage import Storage
from hetero.kernels import Target
from hetero.ops.convolve2d import device as direct_device
from hetero.ops.convolve2d.filters import Filter, FilterOptions
from hetero.ops.convolve2d.problem import described, window_of
from hetero.registry import Arguments

IMAGE, B, OUT, SCRATCH = (number << 20 for number in (16, 32, 64, 128))


class Recorder:
    """A CudaDevice whose kernels write down what they are launched with."""

    kind, is_cuda = "cuda", True
    target = Target(132, 1024, True, 227 << 10, (9, 0))
    driver = None
    launch, prepared, _prepared = CudaDevice.launch, CudaDevice.prepared, CudaDevice._prepared
    run_launches, null = Device.run_launches, Device.null

    def __init__(self):
        self.launched = []
        self.allowed = {}
        self.kept = Storage()

    def build(self, text, kernel, defines):
        key = (text, kernel, defines)

        def launch(grid, block, arguments, shared_bytes, stream):
            if shared_bytes > 48 << 10:
                assert self.allowed[key] >= shared_bytes
            self.launched.append((key, grid, block, bytes(arguments), shared_bytes, stream))

        return SimpleNamespace(_launch_kernel=launch, key=key)

    def allow(self, kernel, shared_bytes):
        self.allowed[kernel.key] = shared_bytes

    def state(self):
        return SimpleNamespace(pool=SimpleNamespace(allocate=self.scratch))

    def scratch(self, nbytes):
        return SimpleNamespace(address=SCRATCH)

    def allocate(self, nbytes):
        return SCRATCH, None

    def upload(self, source, target, offset=0): ...

    def storage(self):
        return self.kept


def both_ways(general, prepare, *addresses):
    """Check that they launch the same; return what."""
    device = Recorder()
    general(device)
    expected, device.launched = device.launched, []
    run = prepare(device)
    assert not device.launched
    for _ in range(2):
        device.launched.clear()
        run(*addresses)
        assert device.launched == expected
    return expected


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("order", ["CC", "FC", "CF"])
@pytest.mark.parametrize("shape", [(512, 512, 512), (40, 24, 5000), (37, 41, 43), (1, 300, 70)])
def test_products(shape, order, dtype):
    m, n, k = shape
    for operation, second in (("matmul", (k, n)), ("matvec", (k,))):
        first = spec((m, k), dtype, on="cuda:0", order=order[0])
        other = spec(second, dtype, on="cuda:0", order=order[1])
        problem = registry.operation(operation).problem(first, other)
        (method,) = (
            i for i in registry.lookup(problem.operation) if (i.kind, i.method) == ("cuda", "tiled")
        )
        launched = both_ways(
            lambda device, i=method, p=problem: i.run((device,), p, Arguments((IMAGE, B), OUT)),
            partial(method.prepare, problem=problem, aligned=16, options=None),
            *(IMAGE, B, OUT),
        )
        if operation == "matmul":
            assert len(launched) == 1 + (k == 5000)  # in parts


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [1, 3, 9, 15])
@pytest.mark.parametrize("image", [(64, 64), (37, 41)])
def test_direct_convolutions(image, size, dtype):
    window = window_of(image, (size, size), "same")
    first = spec(image, dtype, on="cuda:0").operand()
    taps = spec((size, size), dtype, on=HOST).operand()
    problem = described(first, taps, np.dtype(dtype), window)
    filter = np.random.default_rng(size).random((size, size)).astype(dtype)
    options = FilterOptions(Filter(filter), 0.0)
    launched = both_ways(
        partial(direct_device.direct, problem=problem, image=IMAGE, options=options, out=OUT),
        partial(direct_device.prepared_direct, problem=problem, options=options, aligned=16),
        *(IMAGE, IMAGE, OUT),
    )
    assert len(launched) == 1
