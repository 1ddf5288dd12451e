"""What `hetero bench`, `verify` and `demo` ask of the products.

On a GPU, every implementation on operands that lie there, and CuPy and torch on the same memory;
sets of operands rotate, so that they do not lie in the cache from one call to the next. On the CPU
both hetero and NumPy call one BLAS: the difference is what hetero's look-up takes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import log2, prod
from typing import Any

import numpy as np

from hetero import devices, registry
from hetero.arrays import Operand, spec
from hetero.calling import planner
from hetero.host import cpu
from hetero.ops.benchmark import (
    Benchmark,
    BenchTable,
    Comparison,
    TimedCall,
    Trial,
    compared,
    from_host_by_cupy,
    library,
    name_of,
    rotating,
)
from hetero.ops.products.calls import host_call
from hetero.pricing.plan import CPU, Plan
from hetero.profile import inventory
from hetero.registry import Arguments, Operation
from hetero.registry.problem import DEVICE_DTYPES, Problem

Shapes = tuple[tuple[int, ...], ...]

OPTIONS = ("device", "order")
SQUARE = (512, 1024, 2048, 4096, 8192, 16384)
_SMALL = 32  # extent of the smallest product on the CPU
_LARGEST_ON_CPU = 2.0e10  # flops
_COLD_BYTES = 200 << 20  # several times the largest cache
_POOL = 3 << 30  # bytes for all sets of one operand
# Of a multiprocessor, by compute capability: multiply-adds count twice, float64 on tensor cores.
_FLOPS_PER_CLOCK: dict[str, dict[Any, int]] = {
    "float32": {(7, 0): 128, (7, 5): 128, (8, 0): 128, (8, 6): 256, (8, 9): 256, (9, 0): 256},
    "float64": {(7, 0): 64, (8, 0): 128, (9, 0): 256},
}


def random_trial(
    draw: random.Random,
    on: str,
    largest: int,
    second: Callable[[int, Callable[[], int]], tuple[int, ...]],
) -> Trial:
    """Extents log-uniform up to ``largest``, any dtype, every third matrix by columns.

    ``second(k, size)`` gives the shape of B for A of shape (m, k), further extents by ``size()``.
    """
    dtype = draw.choice(DEVICE_DTYPES)

    def size() -> int:
        return max(2, round(2.0 ** draw.uniform(2, log2(largest))))

    m, k = size(), size()
    a = spec((m, k), dtype, on=on, order=draw.choice("CCF"))
    b = spec(second(k, size), dtype, on=on, order=draw.choice("CCF"))
    return Trial((a, b))


def demonstrated(
    operation: Operation,
    dims: Sequence[tuple[int, ...]],
    shapes_of: Callable[[tuple[int, ...]], Shapes],
) -> Iterator[Benchmark]:
    """Rows of demo: NumPy's product, and CuPy's of copies on a GPU."""
    for each in dims:
        first, second = shapes_of(each)
        case = f"{operation.function} {_joined(first)} by {_joined(second)}, float32"
        yield Benchmark(case, partial(from_host, operation, (first, second)))


def from_host(
    operation: Operation,
    shapes: Shapes,
    dtype: str = "float32",
    order: str = "C",
    *,
    numpy: bool = True,
    cupy: bool = True,
    longest: float = 0.0,
) -> Comparison:
    """A product of random matrices on the host, beside NumPy's and CuPy's; see `compared`."""
    rng, (first, second) = np.random.default_rng(0), shapes
    A = rng.random(first[::-1], dtype).T if order == "F" else rng.random(first, dtype)
    operands = A, rng.random(second, dtype)
    peers = _numpy(operation, operands) if numpy else {}
    peers |= from_host_by_cupy(by_cupy, *operands) if cupy else {}
    return compared(operation, operands, {}, peers, longest=longest)


def _numpy(operation: Operation, operands: tuple[Any, ...]) -> dict[str, Any]:
    peer = getattr(np, operation.function)
    threads = cpu.describe()["blas_threads"]
    name = f"NumPy {operation.function}, BLAS threads: {threads}"
    return {name: lambda turn: peer(*operands)}


def by_cupy(cupy: Any, A: Any, B: Any) -> Any:
    """CuPy's product, which has no ``matvec``."""
    return A @ B


def remembered(
    plan: Plan, operands: tuple[Any, ...], options: Mapping[str, Any]
) -> Callable[[], object] | None:
    """A repeated call of a shape, as ``run()``; None where operands lie on a device."""
    if plan.problem.device is not None:
        return None
    return partial(host_call(plan, getattr(np, plan.problem.function)), *operands)


def benchmarks(
    operation: Operation,
    dims: Sequence[tuple[int, ...]],
    shapes_of: Callable[[tuple[int, ...]], Shapes],
    dtype: str,
    device: str,
    order: str,
    sizes: Sequence[tuple[int, ...]] | None = None,
) -> Iterator[Benchmark]:
    """A row for each of the dimensions, or of ``sizes`` in their place, A in the given order."""
    if device == CPU:
        usual = ((_SMALL,) * len(dims[0]), *dims)
        for each in sizes or [each for each in usual if 2.0 * prod(each) <= _LARGEST_ON_CPU]:
            case = f"{operation.name} {_joined(each)}, operands on host, {dtype}"
            make = partial(from_host, operation, shapes_of(each), dtype, order, cupy=False)
            yield Benchmark(case, make, budget=0.1, most=200)
        return
    devices.believed(device)
    pools: list[Any] = []
    for each in sizes or dims:
        first, second = shapes_of(each)
        a, b = spec(first, dtype, on=device, order=order), spec(second, dtype, on=device)
        problem = operation.problem(a, b)
        info = inventory.devices()[device]
        operands = (*problem.inputs, problem.output)
        if any(_room(o) * _sets(operands) > _POOL for o in operands):
            continue
        facts = {
            "operation": operation.name,
            "dims": each,
            "dtype": dtype,
            "order": order,
            "roof": _flops_roof(devices.get(device), dtype),
            "flops": registry.lookup(operation.name)[0].work(problem, info).flops,
            "bytes": sum(o.nbytes for o in operands),
        }
        case = f"{operation.name} {_joined(each)}, operands on {device}, {dtype}"
        make = partial(_on_device, problem, devices.get(device), pools)
        yield Benchmark(case, make, facts=facts, device=device)


def _joined(dims: tuple[int, ...]) -> str:
    return "x".join(map(str, dims))


def _room(operand: Operand) -> int:
    return -(-operand.nbytes // 256) * 256


def _sets(operands: tuple[Operand, ...]) -> int:
    return max(1, min(256, -(-_COLD_BYTES // sum(o.nbytes for o in operands))))


def _on_device(problem: Problem, device: Any, pools: list[Any]) -> Comparison:
    """Every implementation on the memory of ``pools``, which the first row allocates and fills."""
    if not pools:
        pools.extend(device.allocate(_POOL) for _ in range(3))
        dtype = np.dtype(problem.dtype)
        noise = np.random.default_rng(0).random(1 << 24).astype(dtype) - dtype.type(0.5)
        for buffer, _ in pools:
            for offset in range(0, _POOL - noise.nbytes + 1, noise.nbytes):
                device.upload(noise, buffer + offset)
    operands = (*problem.inputs, problem.output)
    sets = _sets(operands)
    addresses = [
        [buffer + _room(o) * turn for (buffer, _), o in zip(pools, operands, strict=True)]
        for turn in range(sets)
    ]
    info = inventory.devices()[device.name]

    def run(row: registry.Implementation, *places: int) -> None:
        row.run((device,), problem, Arguments(places[:-1], places[-1]))

    calls = {
        f"{row.method} on {device.name}": rotating(partial(run, row), addresses)
        for row in registry.lookup(problem.operation)
        if row.kind == device.kind and not row.obstacle(problem, info)
    }
    small = sum(o.nbytes for o in operands) < 1 << 28
    return Comparison(
        calls,
        _peers(problem, addresses),
        name_of(planner.plan(problem, device.name).chosen),
        count=max(sets, 10 if small else 3),
    )


def _flops_roof(device: Any, dtype: str) -> float | None:
    """FLOP/s of all multiprocessors at the highest clock, None where not known."""
    per_clock = _FLOPS_PER_CLOCK[dtype].get(device.capability)
    return per_clock and per_clock * device.multiprocessors * device.clock_rate


def _peers(problem: Problem, addresses: list[list[int]]) -> dict[str, TimedCall]:
    """The same product by CuPy and torch on the same memory.

    None on other devices than the first: both would compute on theirs.
    """
    operands = (*problem.inputs, problem.output)
    calls: dict[str, TimedCall] = {}
    if problem.device != "cuda:0" or (cupy := library("cupy")) is None:
        return calls

    def view(address: int, operand: Operand) -> Any:
        memory = cupy.cuda.UnownedMemory(address, operand.nbytes, None)
        pointer = cupy.cuda.MemoryPointer(memory, 0)
        return cupy.ndarray(operand.shape, operand.dtype, pointer, operand.strides)

    sets = [[view(a, o) for a, o in zip(one, operands, strict=True)] for one in addresses]
    calls["CuPy"] = rotating(lambda A, B, C: cupy.matmul(A, B, out=C), sets)
    torch = library("torch")
    if torch is not None and torch.cuda.is_available():
        tensors = [[torch.as_tensor(array, device="cuda") for array in one] for one in sets]
        torch.backends.cuda.matmul.allow_tf32 = False
        product = torch.mv if len(problem.inputs[1].shape) == 1 else torch.mm
        calls["torch"] = rotating(lambda A, B, C: product(A, B, out=C), tensors)
    return calls


def columns(rows: Sequence[Mapping[str, Any]], dims: str, by_bytes: bool) -> BenchTable | None:
    """Own kernels against cuBLAS, CuPy and torch: a line for each row on a GPU; None on the CPU.

    ``dims`` says what the extents are called. What limits the kernels is reading the matrix, or
    arithmetic.
    """
    unit, scale, limit = (
        ("GB/s", 1e-9, "copy bandwidth") if by_bytes else ("TFLOP/s", 1e-12, "peak")
    )
    if any("dims" not in row for row in rows):
        return None
    head = [dims, "own, us", f"own, {unit}", f"of {limit}", "cuBLAS, us", f"cuBLAS, {unit}"]
    head += ["own / cuBLAS", "own / CuPy", "own / torch", "chosen", "best / chosen"]
    ratios: dict[str, list[float]] = {name: [] for name in (*head[6:9], head[10])}
    cells = []
    for row in rows:
        seconds, chosen = row["seconds"], row["chosen"]
        by_name = {name.partition(" on ")[0]: each for name, each in seconds.items()}
        own, *others = (by_name.get(name) for name in ("tiled", "library", "CuPy", "torch"))
        if own is None or chosen not in seconds:
            continue
        amount, most = row["flops"], row["roof"]
        if by_bytes:
            amount, most = row["bytes"], row["copy_bandwidth"]
        best = min(each for name, each in seconds.items() if name not in row["peers"])
        gains = [*(other and other / own for other in others), best / seconds[chosen]]
        for name, gain in zip(ratios, gains, strict=True):
            ratios[name] += [gain] if gain else []
        line = [_joined(row["dims"]), f"{own * 1e6:.1f}", f"{amount / own * scale:.1f}"]
        line.append(f"{amount / own / most:.2f}" if most else "-")
        cublas = others[0]
        line += [f"{cublas * 1e6:.1f}", f"{amount / cublas * scale:.1f}"] if cublas else "--"
        *beside, last = (f"{gain:.2f}" if gain else "-" for gain in gains)
        cells.append([*line, *beside, chosen.partition(" ")[0], last])
    return BenchTable(head, cells, ratios)
