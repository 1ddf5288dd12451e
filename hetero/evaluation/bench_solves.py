"""`hetero bench cg` and `hetero bench poisson`: whole solves, beside the libraries that are here.

Each row is one system solved by every method on every device, in one process, in turn; peers are
SciPy's and CuPy's conjugate gradients and PyAMG, where they are installed.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from hetero import devices as backends
from hetero.calibration.measure import measure
from hetero.evaluation import left_out
from hetero.evaluation.left_out import leaving_out
from hetero.ops import cg as conjugate_gradient
from hetero.ops import poisson
from hetero.ops.linear_systems.solving import Request
from hetero.runtime import inventory, planner, registry

_DENSE = (512, 1024, 2048, 4096, 8192, 16384)
_GRIDS = (512, 1024, 2048, 4096)
_POISSON = (256, 1024, 4096)
Case = tuple[str, Callable[[], dict[str, Any]]]
_LONGEST = 20.0  # seconds that one solve may be expected to take


def bench(
    operation: str, dtype: str, progress: Callable[[float, str], None] | None = None
) -> list[dict[str, Any]]:
    """Seconds of whole solves, or of one iteration.

    Returns
    -------
    list of dict
        case, what ("iteration" or "solve"), seconds by "method on device" or peer, chosen.
    """
    failed: dict[str, str] = {}
    cases = list((_cg_cases if operation == "cg" else _poisson_cases)(dtype, failed))
    rows = []
    for number, (text, row) in enumerate(cases):
        if progress is not None:
            progress(number / len(cases), text)
        rows.append({"case": text, **row()})
    left_out.warn(failed)
    return rows


def _gpu() -> str | None:
    return next((name for name in backends.proven() if name.startswith("cuda")), None)


def _places() -> list[str]:
    gpu = _gpu()
    return ["cpu", gpu] if gpu else ["cpu"]


def _cg_cases(dtype: str, failed: dict[str, str]) -> Iterator[Case]:
    """Text and row of each system, which is made when its turn comes."""
    for n in _GRIDS:
        for kind in ("matrix-free", "CSR"):
            if kind == "CSR" and n > 2048 and _gpu() is None:
                continue
            text = f"{n}^2 five-point, {kind}, {dtype}"
            yield text, partial(_stencil_row, n, kind, dtype, failed)
    for n in _DENSE if _gpu() else _DENSE[:3]:
        for count in (8, 256):
            text = f"dense {n}, {count} iterations, host to host, {dtype}"
            yield text, partial(_dense_row, n, count, dtype, failed)


def _stencil_row(n: int, kind: str, dtype: str, failed: dict[str, str]) -> dict[str, Any]:
    from hetero.ops.linear_systems.operators import Poisson

    A = Poisson((n, n), dtype=dtype)
    b = np.random.default_rng(0).random(n * n).astype(dtype)
    matrix = A if kind == "matrix-free" else A.tocsr()
    seconds = {f"{m} on {p}": s for p, m, s in _iterations(matrix, b, failed)}
    return {
        "what": "iteration",
        "seconds": {**seconds, **_peer_iterations(A, b, slow=n > 1024)},
        "floor_bytes": 10.0 * b.nbytes,
        "passes": " in ten passes",
    }


def _iterations(A: Any, b: np.ndarray, failed: dict[str, str]) -> Iterator[tuple[str, str, float]]:
    """Seconds of one iteration of every implementation, b on its device."""
    problem = conjugate_gradient.problem(A, b)
    for place in _places():
        info = inventory.devices()[place]
        for implementation in registry.lookup("cg"):
            if implementation.kind != info["kind"] or implementation.excludes(problem, info):
                continue
            seconds = None
            with leaving_out(f"{implementation.method} on {place}", failed):
                seconds = _iteration(implementation, place, problem, A, b)
            if seconds is not None:
                yield place, implementation.method, seconds


def _iteration(implementation: Any, place: str, problem: Any, A: Any, b: np.ndarray) -> float:
    from contextlib import nullcontext

    device = None if place == planner.CPU else backends.get(place)
    used = None if device is None else [device]
    system = conjugate_gradient.System(A, b.dtype, None)
    request = Request(system.on(used)[0], b, np.zeros_like(b), 0.0, 0.0, 0)
    few, many = (4, 24) if device is None else (20, 220)
    owners = []
    with nullcontext() if device is None else device.active():
        if device is not None:
            buffers = [device.allocate(b.nbytes) for _ in range(2)]
            owners = [owner for _, owner in buffers]
            device.upload(b, buffers[0][0])
            request = request._replace(b=buffers[0][0], x=buffers[1][0])

        def run(count: int) -> float:
            if device is None:
                request.x[...] = 0.0
            else:
                device.fill(request.x, b.nbytes)
                device.synchronize()
            start = time.perf_counter()
            implementation.run(used, problem, request._replace(maxiter=count))
            return time.perf_counter() - start

        run(few)
        samples = [(run(many) - run(few)) / (many - few) for _ in range(3)]
    del owners
    return float(np.median(samples))


def _peer_iterations(A: Any, b: np.ndarray, slow: bool) -> dict[str, float]:
    """Seconds of one iteration of SciPy's cg, and of CuPy's, both on CSR."""
    from scipy.sparse.linalg import cg

    matrix = A.tocsr()
    found = {}
    if not slow:
        found["SciPy, CSR"] = _difference(
            lambda count: cg(matrix, b, rtol=0.0, maxiter=count), 2, 8
        )
    if _gpu() is not None:
        try:
            import cupy
            import cupyx.scipy.sparse as sparse
            from cupyx.scipy.sparse.linalg import cg as on_gpu
        except ImportError:
            return found
        there, rhs = sparse.csr_matrix(matrix), cupy.asarray(b)
        never = _never_done(on_gpu)

        def run(count: int) -> None:
            on_gpu(there, rhs, **never, maxiter=count)
            cupy.cuda.Device().synchronize()

        found["CuPy, CSR"] = _difference(run, 20, 120)
    return found


def _never_done(solver: Callable[..., Any]) -> dict[str, float]:
    """Tolerances that no residual meets; CuPy's argument changed its name."""
    names = inspect.signature(solver).parameters
    return {"rtol": 0.0, "atol": 0.0} if "rtol" in names else {"tol": 0.0, "atol": 0.0}


def _difference(run: Callable[[int], object], few: int, many: int) -> float:
    def seconds(count: int) -> float:
        start = time.perf_counter()
        run(count)
        return time.perf_counter() - start

    seconds(few)
    return float(np.median([(seconds(many) - seconds(few)) / (many - few) for _ in range(3)]))


def _dense_row(n: int, count: int, dtype: str, failed: dict[str, str]) -> dict[str, Any]:
    """A whole solve of so many iterations from host to host, transfers included."""
    rng = np.random.default_rng(1)
    A = rng.random((n, n), dtype=np.float32).astype(dtype)
    A += A.T
    A[np.diag_indices(n)] += 4.0 * math.sqrt(n)
    b = rng.random(n).astype(dtype)
    found: dict[str, float] = {}
    chosen = planner.plan(conjugate_gradient.problem(A, b, rtol=0.0, maxiter=count)).chosen
    for place in (None, *_places()):

        def run(place: str | None = place) -> None:
            conjugate_gradient.solve_cg(A, b, rtol=0.0, maxiter=count, device=place)

        name = "automatic" if place is None else f"hetero on {place}"
        with leaving_out(name, failed):
            found[name] = measure(run, budget=1.0, least=3, most=9).seconds
    if _gpu() is not None:
        try:
            import cupy
            from cupyx.scipy.sparse.linalg import cg as on_gpu
        except ImportError:
            pass
        else:

            def by_cupy() -> None:
                there = cupy.asarray(A), cupy.asarray(b)
                cupy.asnumpy(on_gpu(*there, **_never_done(on_gpu), maxiter=count)[0])

            found["CuPy, dense"] = measure(by_cupy, budget=1.0, least=3, most=9).seconds
    return {
        "what": "solve",
        "seconds": found,
        "chosen": f"{chosen.method} on {chosen.device}",
    }


def _poisson_cases(dtype: str, failed: dict[str, str]) -> Iterator[Case]:
    rtol = 1e-8 if dtype == "float64" else 1e-4
    for n in _POISSON:
        text = f"Poisson {n}^2 to {rtol:g}, host to host, {dtype}"
        yield text, partial(_poisson_row, n, rtol, dtype, failed)


def _poisson_row(n: int, rtol: float, dtype: str, failed: dict[str, str]) -> dict[str, Any]:
    f = np.random.default_rng(2).random((n, n)).astype(dtype)
    plan = planner.plan(poisson.problem(f, rtol=rtol))
    found = {"automatic": _solve_seconds(f, rtol)}
    for candidate in plan.candidates:
        expected = candidate.seconds
        if candidate.reason is None and (expected is None or expected < _LONGEST):
            name = f"{candidate.method} on {candidate.device}"
            if candidate.method == "jacobi" and n > 256:
                continue
            with leaving_out(name, failed):
                found[name] = _solve_seconds(
                    f, rtol, device=candidate.device, method=candidate.method
                )
    if n <= 1024 and dtype == "float64":
        found.update(_pyamg(f, rtol))
    return {
        "what": "solve",
        "seconds": found,
        "chosen": f"{plan.chosen.method} on {plan.chosen.device}",
    }


def _solve_seconds(f: np.ndarray, rtol: float, **forced: str) -> float:
    return measure(
        lambda: poisson.solve_poisson(f, rtol=rtol, **forced), budget=1.0, least=2, most=9
    ).seconds


def _pyamg(f: np.ndarray, rtol: float) -> dict[str, float]:
    """Ruge-Stueben multigrid as preconditioner of conjugate gradients, set-up included."""
    try:
        import pyamg
    except ImportError:
        return {}
    from hetero.ops.linear_systems.operators import Poisson

    A = Poisson(f.shape).tocsr()

    def run() -> None:
        pyamg.ruge_stuben_solver(A).solve(f.ravel(), tol=rtol, accel="cg")

    return {"PyAMG RS-CG, set-up included": measure(run, budget=1.0, least=1, most=3).seconds}


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown: seconds, and each over the fastest of all."""
    lines = []
    for row in rows:
        seconds = row["seconds"]
        best = min(seconds.values())
        chosen = f", chosen: {row['chosen']}" if "chosen" in row else ""
        lines += [f"{row['case']} ({row['what']}{chosen})", "", "| | time | times the fastest |"]
        lines.append("|---|---|---|")
        for name, value in sorted(seconds.items(), key=lambda item: item[1]):
            rate = ""
            if "floor_bytes" in row:
                rate = f" ({row['floor_bytes'] / value * 1e-9:.0f} GB/s{row['passes']})"
            lines.append(f"| {name} | {planner.show(value)}{rate} | {value / best:.2f} |")
        lines.append("")
    return "\n".join(lines)
