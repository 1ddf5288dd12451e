"""Device time of every GPU implementation, side by side in one run, operands on the device.

Input sets are rotated, so that operands do not lie in the cache from one call to the next.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numpy as np

from hetero import devices as backends
from hetero.arrays import HOST, Operand, spec
from hetero.calibration.measure import measure
from hetero.calibration.queue import Queue
from hetero.devices.base import Device
from hetero.evaluation import left_out
from hetero.evaluation.left_out import leaving_out
from hetero.ops import module_of
from hetero.runtime import inventory, planner, registry
from hetero.runtime.problem import Problem

_COLD_BYTES = 200 << 20  # several times the largest cache

_LARGEST_ON_CPU = 2.0e10  # flops of a product
_PEER_SECONDS = 5e-5  # that CuPy and torch take to launch, at most
# Of a multiprocessor, by compute capability: multiply-adds count twice, float64 on tensor cores.
_FLOPS_PER_CLOCK: dict[str, dict[Any, int]] = {
    "float32": {(7, 0): 128, (7, 5): 128, (8, 0): 128, (8, 6): 256, (8, 9): 256, (9, 0): 256},
    "float64": {(7, 0): 64, (8, 0): 128, (9, 0): 256},
}

SQUARE = (512, 1024, 2048, 4096, 8192, 16384)
SHAPES = {
    "matvec": [(n, n) for n in SQUARE]
    + [(1000, 1000), (3001, 3001), (6007, 6007), (12011, 12011)]
    + [(64, 1_000_000), (1_000_000, 64), (16, 262144), (262144, 16)],
    "matmul": [(n, n, n) for n in (256, *SQUARE)]
    + [
        (8192, 64, 8192),
        (64, 8192, 8192),
        (8192, 8192, 64),
        (64, 64, 65536),
        (1000, 1000, 1000),
        (3001, 3001, 3001),
        (32, 4096, 4096),
        (4096, 32, 4096),
    ],
}


def problem_of(operation: str, dims: tuple[int, ...], dtype: str, on: str, order: str) -> Problem:
    """The problem of these dimensions, A in the given order."""
    if operation == "matvec":
        shapes = dims, dims[1:]
    else:
        m, n, k = dims
        shapes = (m, k), (k, n)
    a, b = (
        spec(shape, dtype, on=on, order=order if i == 0 else "C") for i, shape in enumerate(shapes)
    )
    return module_of(operation).problem(a, b)


def _call(
    run: Any, device: Device, problem: Problem, addresses: list[list[int]], number: int
) -> None:
    *inputs, output = addresses[number % len(addresses)]
    run(device, problem, inputs, output)


def _peers(problem: Problem, addresses: list[list[int]]) -> dict[str, Any]:
    """The same product by CuPy and torch on the same memory, ``call(number)`` each.

    None on other devices than the first: both would compute on theirs.
    """
    operands = (*problem.inputs, problem.output)
    calls: dict[str, Any] = {}
    if problem.device != "cuda:0":
        return calls
    try:
        import cupy

        cupy.empty(1)
    except Exception:  # not installed, or not working here
        return calls

    def view(address: int, operand: Operand) -> Any:
        memory = cupy.cuda.UnownedMemory(address, operand.nbytes, None)
        pointer = cupy.cuda.MemoryPointer(memory, 0)
        return cupy.ndarray(operand.shape, operand.dtype, pointer, operand.strides)

    sets = [[view(a, o) for a, o in zip(one, operands, strict=True)] for one in addresses]

    def by_cupy(number: int) -> None:
        A, B, C = sets[number % len(sets)]
        cupy.matmul(A, B, out=C)

    calls["cupy"] = by_cupy
    try:
        import torch

        tensors = [[torch.as_tensor(array, device="cuda") for array in one] for one in sets]
    except Exception:  # likewise
        return calls
    torch.backends.cuda.matmul.allow_tf32 = False
    function = torch.mv if problem.operation == "matvec" else torch.mm

    def by_torch(number: int) -> None:
        A, B, C = tensors[number % len(tensors)]
        function(A, B, out=C)

    calls["torch"] = by_torch
    return calls


def _flops_roof(device: Any, dtype: str) -> float | None:
    """FLOP/s of all multiprocessors at the highest clock, None where not known."""
    per_clock = _FLOPS_PER_CLOCK[dtype].get(device.capability)
    return per_clock and per_clock * device.multiprocessors * device.clock_rate


def bench(
    operation: str,
    dtype: str,
    *,
    device_name: str = "cuda:0",
    order: str = "C",
    progress: Callable[[float, str], None] | None = None,
) -> list[dict[str, Any]]:
    """Device time of each method for the standard shapes of an operation.

    Returns
    -------
    list of dict
        dims, dtype, order, seconds by method and by peer (CuPy, torch), the method that
        ``device=`` alone chooses, floor (seconds that the bytes take at copy bandwidth), roof
        (FLOP/s), flops, bytes.
    """
    backends.believed(device_name)
    device = backends.get(device_name)
    info = inventory.devices()[device_name]
    rows = []
    failed: dict[str, str] = {}
    with device.active():
        if progress is not None:
            progress(0.0, f"filling the memory of {device_name}")
        queue = Queue(device)
        bandwidth = queue.copy_bandwidth()
        pools = [device.allocate(3 << 30) for _ in range(3)]
        noise = np.random.default_rng(0).random(1 << 24).astype(dtype) - np.asarray(0.5, dtype)
        for buffer, _ in pools:
            for offset in range(0, 3 << 30, noise.nbytes):
                if offset + noise.nbytes <= 3 << 30:
                    device.upload(noise, buffer + offset)
        for number, dims in enumerate(SHAPES[operation]):
            if progress is not None:
                shape = "x".join(map(str, dims))
                progress(number / len(SHAPES[operation]), f"{operation} {shape}, {dtype}")
            problem = problem_of(operation, dims, dtype, device_name, order)
            operands = (*problem.inputs, problem.output)
            footprint = sum(o.nbytes for o in operands)
            sets = max(1, min(256, -(-_COLD_BYTES // footprint)))
            steps = [-(-o.nbytes // 256) * 256 for o in operands]
            if any(step * sets > 3 << 30 for step in steps):
                continue
            seconds = {}
            for implementation in registry.lookup(operation):
                if implementation.kind != device.kind or implementation.excludes(problem, info):
                    continue

                run = implementation.run
                assert run is not None
                addresses = [
                    [p[0] + step * i for p, step in zip(pools, steps, strict=True)]
                    for i in range(sets)
                ]
                call = partial(_call, run, device, problem, addresses)
                count = max(sets, 10 if footprint < 1 << 28 else 3)
                name = f"{implementation.method} on {device_name}"
                with leaving_out(name, failed), device.active():  # whose errors are ours
                    seconds[implementation.method] = queue.seconds(call, count)
            if not seconds:
                continue
            peers = {
                name: queue.seconds(call, count, 3, _PEER_SECONDS)
                for name, call in _peers(problem, addresses).items()
            }
            work = registry.lookup(operation)[0].work(problem, info)
            rows.append(
                {
                    "operation": operation,
                    "dims": dims,
                    "dtype": dtype,
                    "order": order,
                    "seconds": seconds,
                    "peers": peers,
                    "roof": _flops_roof(device, dtype),
                    "chosen": planner.plan(problem, device_name).chosen.method,
                    "floor": footprint / bandwidth,
                    "copy_bandwidth": bandwidth,
                    "flops": work.flops,
                    "bytes": footprint,
                }
            )
    left_out.warn(failed)
    return rows


def bench_on_cpu(
    operation: str,
    dtype: str,
    order: str = "C",
    progress: Callable[[float, str], None] | None = None,
) -> list[dict[str, Any]]:
    """The same shapes with operands on the host: a call of hetero's beside NumPy's own.

    Without a GPU both are the same BLAS, so the difference is what hetero's look-up takes.

    Returns
    -------
    list of dict
        case, what, seconds by caller, chosen.
    """
    ours, numpys = module_of(operation).call, getattr(np, operation)
    draw = np.random.default_rng(0)
    rows = []
    shapes = [(32,) * len(SHAPES[operation][0]), *SHAPES[operation]]
    for number, dims in enumerate(shapes):
        if progress is not None:
            progress(number / len(shapes), f"{operation} {'x'.join(map(str, dims))}, {dtype}")
        problem = problem_of(operation, dims, dtype, HOST, order)
        if 2.0 * prod(dims) > _LARGEST_ON_CPU:
            continue
        A, B = (
            draw.random(o.shape[::-1] if i == 0 and order == "F" else o.shape, dtype)
            for i, o in enumerate(problem.inputs)
        )
        A = A.T if order == "F" else A
        plan = planner.plan(problem)
        calls = {
            "automatic": partial(ours, A, B),
            f"NumPy {operation}": partial(numpys, A, B),
        }
        rows.append(
            {
                "case": f"{operation} {'x'.join(map(str, dims))}, operands on host, {dtype}",
                "what": "call",
                "seconds": {
                    name: measure(call, budget=0.1, least=3, most=200).seconds
                    for name, call in calls.items()
                },
                "chosen": f"{plan.chosen.method} on {plan.chosen.device}",
            }
        )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table, with the geometric means below."""
    rows = [row for row in rows if {"tiled", row["chosen"]} <= row["seconds"].keys()]
    if not rows:
        return "no shape could be measured"
    first = rows[0]
    is_matvec = first["operation"] == "matvec"
    unit, scale = ("GB/s", 1e-9) if is_matvec else ("TFLOP/s", 1e-12)
    roof = "copy bandwidth" if is_matvec else "peak"
    names = [
        f"{'m x k' if is_matvec else 'm x n x k'}",
        *("own, us", f"own, {unit}", f"of {roof}", "cuBLAS, us", f"cuBLAS, {unit}"),
        *("own / cuBLAS", "own / CuPy", "own / torch", "chosen", "best / chosen"),
    ]
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    means: dict[str, list[float]] = {"cuBLAS": [], "CuPy": [], "torch": [], "best": []}
    for row in rows:
        own, library = row["seconds"]["tiled"], row["seconds"].get("library")
        amount = row["bytes"] if is_matvec else row["flops"]
        best = min(row["seconds"].values())
        if is_matvec:
            share = row["floor"] / own
        else:
            share = row["roof"] and amount / own / row["roof"]
        cells = ["x".join(map(str, row["dims"])), f"{own * 1e6:.1f}", f"{amount / own * scale:.1f}"]
        cells.append(f"{share:.2f}" if share else "-")
        cells += (
            [f"{library * 1e6:.1f}", f"{amount / library * scale:.1f}"] if library else ["-", "-"]
        )
        for name, seconds in (
            ("cuBLAS", library),
            ("CuPy", row["peers"].get("cupy")),
            ("torch", row["peers"].get("torch")),
        ):
            if seconds:
                means[name].append(seconds / own)
            cells.append(f"{seconds / own:.2f}" if seconds else "-")
        means["best"].append(best / row["seconds"][row["chosen"]])
        cells += [row["chosen"], f"{means['best'][-1]:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    lines.append("")
    for name, ratios in means.items():
        if ratios:
            text = "best / chosen" if name == "best" else f"own / {name}"
            lines.append(f"{text}, geometric mean: {np.exp(np.mean(np.log(ratios))):.3f}")
    return "\n".join(lines)
