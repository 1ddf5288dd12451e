"""Device time of every GPU implementation, side by side in one run, operands on the device.

Input sets are rotated, so that operands do not lie in the cache from one call to the next.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from hetero import devices as backends
from hetero import inventory, planner, registry
from hetero.arrays import spec
from hetero.calibration.queue import Queue
from hetero.devices.base import Device
from hetero.ops import module_of
from hetero.problem import Problem

_COLD_BYTES = 200 << 20  # several times the largest cache

SQUARE = (512, 1024, 2048, 4096, 8192, 16384)
SHAPES = {
    "matvec": [(n, n) for n in SQUARE]
    + [(64, 65536), (65536, 64), (1000, 1000), (3001, 3001), (16, 262144), (262144, 16)],
    "matmul": [(n, n, n) for n in (256, *SQUARE[:-1])]
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


def bench(
    operation: str, dtype: str, *, device_name: str = "cuda:0", order: str = "C"
) -> list[dict[str, Any]]:
    """Device time of each method for the standard shapes of an operation.

    Returns
    -------
    list of dict
        dims, dtype, order, seconds by method, the method that ``device=`` alone chooses, floor
        (seconds that the bytes take at copy bandwidth), flops, bytes.
    """
    device = backends.get(device_name)
    info = inventory.devices()[device_name]
    rows = []
    with device.active():
        queue = Queue(device)
        bandwidth = queue.copy_bandwidth()
        pools = [device.allocate(3 << 30) for _ in range(3)]
        noise = np.random.default_rng(0).random(1 << 24).astype(dtype) - np.asarray(0.5, dtype)
        for buffer, _ in pools:
            for offset in range(0, 3 << 30, noise.nbytes):
                if offset + noise.nbytes <= 3 << 30:
                    device.upload(noise, buffer + offset)
        for dims in SHAPES[operation]:
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
                seconds[implementation.method] = queue.seconds(call, count)
            work = registry.lookup(operation)[0].work(problem, info)
            rows.append(
                {
                    "operation": operation,
                    "dims": dims,
                    "dtype": dtype,
                    "order": order,
                    "seconds": seconds,
                    "chosen": planner.plan(problem, device_name).chosen.method,
                    "floor": footprint / bandwidth,
                    "copy_bandwidth": bandwidth,
                    "flops": work.flops,
                    "bytes": footprint,
                }
            )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table, with the geometric means below."""
    first = rows[0]
    is_matvec = first["operation"] == "matvec"
    unit, scale = ("GB/s", 1e-9) if is_matvec else ("TFLOP/s", 1e-12)
    lines = [
        f"| {'m x k' if is_matvec else 'm x n x k'} | own, us | own, {unit} | cuBLAS, us | "
        f"cuBLAS, {unit} | own / cuBLAS | chosen | best / chosen |"
        + (" of copy bandwidth |" if is_matvec else ""),
        "|---" * (8 + is_matvec) + "|",
    ]
    ratios, choices = [], []
    for row in rows:
        own, library = row["seconds"]["tiled"], row["seconds"].get("library")
        amount = (row["bytes"] if is_matvec else row["flops"]) * scale
        best = min(row["seconds"].values())
        choices.append(best / row["seconds"][row["chosen"]])
        cells = ["x".join(map(str, row["dims"])), f"{own * 1e6:.1f}", f"{amount / own:.1f}"]
        if library:
            ratios.append(library / own)
            cells += [f"{library * 1e6:.1f}", f"{amount / library:.1f}", f"{library / own:.2f}"]
        else:
            cells += ["-", "-", "-"]
        cells += [row["chosen"], f"{choices[-1]:.2f}"]
        if is_matvec:
            cells.append(f"{row['floor'] / own:.2f}")
        lines.append("| " + " | ".join(cells) + " |")
    lines.append("")
    if ratios:
        lines.append(f"own / cuBLAS, geometric mean: {np.exp(np.mean(np.log(ratios))):.3f}")
    lines.append(f"best / chosen, geometric mean: {np.exp(np.mean(np.log(choices))):.3f}")
    return "\n".join(lines)
