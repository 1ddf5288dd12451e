"""Calls to the driver fail once, and from then on: run by test_failing_driver.py.

    failing_driver.py [operation ...]

Kernels of the fake driver do nothing, so each implementation writes the right result behind them.
What is checked is all that happens around: whichever call fails, the result is right, one warning
tells of it, the context stack is as before, and no memory is lost.
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import logging
import sys
import types
import warnings

import fake_cuda

driver = fake_cuda.Driver()

import fakes  # noqa: E402  PyCUDA must find the fake driver loaded
import numpy as np  # noqa: E402
from scipy import sparse  # noqa: E402

import hetero  # noqa: E402
import hetero.ops.functions  # noqa: E402
from hetero import devices, profile, registry  # noqa: E402
from hetero.devices.base import Device  # noqa: E402
from hetero.devices.cuda import compiler  # noqa: E402
from hetero.devices.cuda import libraries as cuda_libraries  # noqa: E402
from hetero.errors import DeviceError  # noqa: E402
from hetero.ops.solvers.systems import CONVERGED, Outcome  # noqa: E402
from hetero.profile import inventory  # noqa: E402

rng = np.random.default_rng(3)
FREEING = {"cuMemFree_v2", "cuMemFreeHost", "cuModuleUnload", "cuEventDestroy_v2"}
FREEING |= {"cuStreamDestroy_v2", "cuDevicePrimaryCtxRelease_v2"}
answer = None  # of the solve that is under way


messages: list[str] = []  # hetero's warnings, which go nowhere else
logging.getLogger("hetero").addFilter(lambda record: messages.append(record.getMessage()))


def really(implementation):
    """An implementation that goes all the way of its launches, then has the right result."""
    run = implementation.run
    if implementation.blocks == registry.ALWAYS:  # others compute its blocks
        return implementation

    def call(used, problem, arguments) -> None:
        run(used, problem, arguments)
        compute = fakes.convolve if problem.operation == "convolve2d" else fakes.compute
        compute([types.SimpleNamespace(log=[])], problem, arguments)

    def solve(used, problem, arguments):
        limited = arguments.options._replace(maxiter=min(arguments.options.maxiter, 3))
        run(used, problem, arguments._replace(options=limited))
        x = arguments.output
        if not isinstance(x, np.ndarray):
            x = fakes.view(x, answer.shape, answer.dtype, answer.strides)
        x[...] = answer.reshape(x.shape)
        return Outcome(CONVERGED, 3, 0.0)

    given = solve if implementation.operation in ("cg", "poisson") else call
    return dataclasses.replace(implementation, run=given, prepare=None)


def libraries() -> None:
    """cuBLAS and cuFFT that do nothing, and fail as the driver does."""

    def function(name, result=None):
        def call(*arguments):
            if driver.gate(name):
                raise DeviceError(f"{name}: planted failure")
            return result

        return call

    cublas = {"create": 1, "dgemm": None, "dgemm_strided_batched": None}
    cufft = {"create": 1, "make_plan_many64": 4096, "set_work_area": None}
    cufft |= dict.fromkeys(("set_auto_allocation", "exec_d2z", "exec_z2d", "destroy"))
    for library, results in (("cublas", cublas), ("cufft", cufft)):
        found = types.SimpleNamespace(version=lambda: "1.1.1")
        for name, result in results.items():
            setattr(found, name, function(f"{library}_{name}", result))
        setattr(cuda_libraries, library, lambda found=found: found)


def install(computing: bool = True) -> None:
    """Libraries, compiler and profile for the fake driver; methods that write right results."""
    probe = Device.probe

    def trusting(device) -> None:  # of kernels that do nothing
        try:
            probe(device)
        except DeviceError as error:
            if "wrong values" not in str(error):
                raise

    libraries()
    devices.kinds.remove("opencl")
    Device.probe = trusting
    compiler._compile = lambda text, arch, options: b"machine code"
    for operation, entries in registry._implementations.items():
        registry._implementations[operation] = [
            really(i) if computing and i.kind == "cuda" and i.run else i for i in entries
        ]
    profile.set_current(profile.shipped("conservative"))


def fresh() -> None:
    """Devices as in a new process."""
    for device in (devices.found or {}).values():
        device.close()
    devices.found = None
    devices.available()
    forget()
    assert not any(driver.live().values()), driver.live()


def forget() -> None:
    devices.health.clear()
    devices.health["cuda:0"].is_proved = True  # kernels that do nothing would not be
    inventory.changed()
    messages.clear()


def drop() -> None:
    """Let go of what is kept on devices for later calls; free memory is as the driver gives it."""
    states = [s for device in (devices.found or {}).values() for s in device.states.values()]
    for state in states:
        state.storage.drop()
    gc.collect()
    for state in states:
        for size, addresses in state.pool._free.items():
            for address in addresses:
                ctypes.memset(address, 0x3F, size)


def sweep(name, call, method, cold: bool, good: bool) -> int:
    """Let the k-th call to the driver fail, for some k of each function; how many there are."""
    global answer
    forget()
    own = method not in ("library", "tiled", "fused")
    with hetero.use(device="cpu", method=method if own else None):
        answer = expected = np.asarray(call()).copy()
    ready(call, method, False)  # PyCUDA asks for some things once in a process
    ready(call, method, cold)
    driver.fail(0)
    with hetero.use(device="cuda", method=method):
        call()
    names = driver.names()
    drop()
    gc.freeze()  # what is loaded by now is not looked at again
    ks = some(names)
    for k in ks:
        if cold:
            ready(call, method, cold)
        forget()
        inventory.devices()
        (device,) = devices.available().values()
        driver.fail(k, good=good)
        with (
            hetero.use(device="cuda", method=method),
            warnings.catch_warnings(record=True) as noise,
        ):
            warnings.simplefilter("always")
            result = np.asarray(call())
        failures, failed = driver.failures, driver.failed
        driver.fail(0)
        where = f"{name}, {'cold' if cold else 'warm'}, call {k} ({failed}), for good: {good}"
        assert failures, where
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-7, err_msg=where)
        assert not noise, (where, [str(w.message) for w in noise])
        assert len(messages) == (failed not in FREEING), (where, messages)
        del result
        if good:
            driver.unstack(device.held is None)
        drop()
        pools = [state.pool for state in device.states.values()]
        assert all(pool.nbytes == pool.unused() for pool in pools), where
        assert not driver.live()["pushed"], where
    return len(ks)


def ready(call, method, cold: bool) -> None:
    """New devices; used once, unless cold."""
    drop()
    fresh()
    if not cold:
        with hetero.use(device="cuda", method=method):
            call()
        drop()
    inventory.changed()
    inventory.devices()


def some(names: list[str]) -> list[int]:
    """The first, the second and the last call of each function."""
    where: dict[str, list[int]] = {}
    for k, name in enumerate(names, 1):
        where.setdefault(name, []).append(k)
    return sorted({k for ks in where.values() for k in (*ks[:2], ks[-1])})


def calls():
    """Name -> a call that gives an array, on host operands."""
    A, B, v = rng.random((40, 50)), rng.random((50, 30)), rng.random(50)
    stack = rng.random((3, 40, 50))
    square, other = rng.random((40, 40)), rng.random((40, 40))
    deep = rng.random((4, 3000)), rng.random((3000, 5))
    image, filter = rng.random((40, 50)), rng.random((5, 4))
    f = rng.random((33, 31))
    poisson = hetero.Poisson((20, 20))
    rhs = rng.random(400)
    dense = square @ square.T + 40 * np.eye(40)
    line = sparse.diags([-1.0, 2.0, -1.0], [-1, 0, 1], (20, 20))
    csr = sparse.csr_matrix(sparse.kronsum(line, line))

    def in_place():
        A = square.copy()
        return hetero.matmul(A, other, out=A)

    def overlapping():
        whole = np.concatenate([square, other])
        return hetero.matmul(whole[:40], other, out=whole[20:60])

    def strided():
        out = np.zeros((80, 60))
        hetero.matmul(A, B, out=out[::2, ::-2])
        return out

    def staying():
        with hetero.use(results="device"):
            return hetero.to_host(hetero.matmul(hetero.matmul(A, B), B.T))

    def in_place_vector():
        x = other[0].copy()
        return hetero.matvec(square, x, out=x)

    separable = np.outer(filter[:, 0], filter[0])
    found = {
        "matmul": (lambda: hetero.matmul(A, B), "tiled"),
        "matmul in parts": (lambda: hetero.matmul(*deep), "tiled"),
        "matmul out=A": (in_place, "tiled"),
        "matmul out overlaps A": (overlapping, "tiled"),
        "matmul strided out": (strided, "tiled"),
        "matmul staying": (staying, "tiled"),
        "matmul library": (lambda: hetero.matmul(A, B), "library"),
        "matmul library, a batch": (lambda: hetero.matmul(stack, B), "library"),
        "matvec": (lambda: hetero.matvec(A, v), "tiled"),
        "matvec out=x": (in_place_vector, "tiled"),
        "solve_cg dense": (lambda: hetero.solve_cg(dense, rhs[:40], rtol=1e-10)[0], "fused"),
        "solve_cg csr": (lambda: hetero.solve_cg(csr, rhs, rtol=1e-10)[0], "fused"),
        "solve_cg stencil": (lambda: hetero.solve_cg(poisson, rhs, rtol=1e-10)[0], "fused"),
    }
    for method in ("direct", "fft", "separable"):
        found[f"convolve2d {method}"] = lambda: hetero.convolve2d(image, separable), method
    large = rng.random((400, 300))
    found["convolve2d fft, tiles"] = lambda: hetero.convolve2d(large, separable), "fft"
    for method in ("multigrid", "jacobi", "dst"):
        found[f"solve_poisson {method}"] = lambda: hetero.solve_poisson(f, rtol=1e-6), method
    return found


def main(*operations: str) -> None:
    install()
    total = 0
    for name, (call, method) in calls().items():
        if operations and name.split()[0] not in operations:
            continue
        for cold in (True, False):
            # What stays on a device is lost with it.
            for good in (False,) if "staying" in name else (False, True):
                total += sweep(name, call, method, cold, good)
        print(name, total, flush=True)
    fresh()
    print("whole", total)


if __name__ == "__main__":
    main(*sys.argv[1:])
