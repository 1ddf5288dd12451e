"""`hetero demo`: calibrate quickly, run real products of all sizes, show what was chosen."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from hetero import devices as backends
from hetero import terminal
from hetero.arrays import HOST, spec
from hetero.calibration.calibrate import measure_machine
from hetero.evaluation import demo_picture, report
from hetero.evaluation.left_out import leaving_out
from hetero.evaluation.verify import Operands, measure_candidates, summary
from hetero.ops import module_of
from hetero.ops.poisson import solve_poisson
from hetero.runtime import overview, planner, profile
from hetero.runtime.planner import show as readable
from hetero.runtime.problem import Problem

_SQUARE = (16, 64, 256, 1024, 4096, 8192)
_SLOW = 3e9  # flops from which on OpenCL on the CPU is left out: it would take seconds
_LONG = ((100000, 16), (16, 100000), (4096, 64))


def demo(
    *,
    largest: int | None = None,
    picture: str | None = None,
    progress: Callable[[float, str], None] | None = None,
    show: Callable[[str], None] = print,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Run the demonstration; the profile measured for it is used here and not stored.

    Parameters
    ----------
    largest : int, optional
        Largest extent of the products.
    picture : str, optional
        PGM file to save the filtered photograph in.
    progress, show : callable

    Returns
    -------
    (calls, summary)
        A dict for each call: shape, where the operands lie, chosen device and method, predicted
        and measured seconds, the best alternative; and the figures of chosen over best.
    """
    start = time.perf_counter()
    tell = progress or (lambda fraction, text: None)
    tell(0.0, "trying the devices")
    here = overview.summary()
    show(here)
    quick = measure_machine(True, None, terminal.part(progress, 0.0, 0.5))
    constants = profile.parse(profile.encode(quick))
    profile.set_current(constants)
    show(f"calibrated in {time.perf_counter() - start:.1f} s (hetero calibrate stores it)\n")
    infos = {name: device.describe() for name, device in backends.proven().items()}
    gpus = [name for name, info in infos.items() if not info.get("is_host_cpu")]
    largest = largest or (8192 if gpus else 4096)
    places = [HOST, *(name for name in gpus[:1] if name.startswith("cuda"))]
    head = (
        f"{'call':<34} {'operands on':<11} {'chosen':<18} {'predicted':>10} {'measured':>10}   "
        "best alternative"
    )
    show(head)
    rows = []
    failed: dict[str, str] = {}
    calls = _calls(largest)
    for turn, place in enumerate(places):
        operands = Operands(place)
        for number, (operation, first, second) in enumerate(calls):
            call = f"{operation} {'x'.join(map(str, first))} {'x'.join(map(str, second))}"
            tell(0.5 + 0.35 * (turn + number / len(calls)) / len(places), call)
            problem = module_of(operation).problem(
                spec(first, "float32", on=place), spec(second, "float32", on=place)
            )
            also = tuple(
                (name, "tiled")
                for name, info in infos.items()
                if info.get("is_host_cpu") and _work(problem) < _SLOW and name not in failed
            )
            row = measure_candidates(problem, operands, budget=0.02, longest=5.0, also=also[:1])
            if row is None:
                continue
            for (name, method), reason in row.failed.items():
                if failed.setdefault(name, reason) is reason:
                    show(f"{method} on {name} is left out: {reason}")
            others = {name: s for name, s in row.measured.items() if name != row.chosen}
            best = min(others, key=lambda name: others[name]) if others else None
            rows.append((row, _as_dict(call, place, row, best)))
            alternative = (
                f"{best[1]} on {best[0]} {readable(others[best])}" if best else "none here"
            )
            show(
                f"{call:<34} {place:<11} {row.chosen[1] + ' on ' + row.chosen[0]:<18} "
                f"{readable(row.predicted[row.chosen]):>10} "
                f"{readable(row.measured[row.chosen]):>10}   {alternative}"
            )
    found = summary([row for row, _ in rows])
    show("")
    if rows:
        show(report.chosen_over_best(found["chosen_over_best"]) + f", {found['problems']} calls")
        show(f"\nwhy, for the last one:\n{planner.plan(rows[-1][0].problem)}")
    tell(0.85, "Poisson's equation")
    solve = _poisson(2048 if gpus else 512, show)
    tell(0.95, "a photograph")
    filtered = demo_picture.filter_picture(show, picture)
    show(f"\n{time.perf_counter() - start:.0f} s in all")
    return [entry for _, entry in rows], {**found, "poisson": solve, "picture": filtered}


def _poisson(n: int, show: Callable[[str], None]) -> dict[str, Any]:
    """Solve -div grad u = f on the unit square by the chosen method and by the others."""
    f, exact, h = poisson_example(n)
    u, info = solve_poisson(f, spacing=h, return_info=True)  # the first one compiles
    times, failed = {}, {}
    for candidate in info["plan"].candidates:
        if candidate.reason is None and (candidate.seconds is None or candidate.seconds < 2.0):
            placed = {"device": candidate.device, "method": candidate.method}
            name = f"{candidate.method} on {candidate.device}"
            with leaving_out(name, failed):
                solve_poisson(f, spacing=h, **placed)
                start = time.perf_counter()
                solve_poisson(f, spacing=h, **placed)
                times[name] = time.perf_counter() - start
    chosen = f"{info['method']} on {info['device']}"
    show(f"\nPoisson's equation on {n} x {n} points to 1e-8: {info['plan']}")
    for name, reason in failed.items():
        show(f"{name} is left out: {reason}")
    show("measured: " + ", ".join(f"{name} {readable(t)}" for name, t in times.items()))
    show(
        f"{chosen}: relative residual {info['residual'] / np.linalg.norm(f):.1e}, "
        f"error against the exact solution {abs(u - exact).max():.1e} "
        f"({abs(u - exact).max() / h**2:.0f} h^2; the discretisation is of second order)"
    )
    return {"points": n * n, "chosen": chosen, "measured": times, "residual": info["residual"]}


def poisson_example(n: int) -> tuple[np.ndarray, np.ndarray, float]:
    """(f, u, spacing) with -div grad u = f on n x n points of the unit square, u = 0 around it.

    u = g(y) g(x) with g(t) = t (1 - t) exp(3 t). Unlike a product of sines it is no eigenvector of
    the discrete operator, with which conjugate gradients would be done after a single step.
    """
    h = 1.0 / (n + 1)
    t = h * np.arange(1, n + 1)
    g, curvature = t * (1.0 - t) * np.exp(3.0 * t), np.exp(3.0 * t) * (4.0 - 3.0 * t - 9.0 * t * t)
    return -np.outer(curvature, g) - np.outer(g, curvature), np.outer(g, g), h


def _work(problem: Problem) -> float:
    return 2.0 * prod(problem.dims)


def _calls(largest: int) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    sizes = [n for n in _SQUARE if n <= largest]
    calls: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = []
    calls += [("matvec", (n, n), (n,)) for n in sizes]
    calls += [("matvec", shape, shape[1:]) for shape in _LONG]
    calls += [("matmul", (n, n), (n, n)) for n in sizes]
    calls += [("matmul", shape, shape[::-1]) for shape in _LONG[1:]]
    return calls


def _as_dict(call: str, place: str, row: Any, best: tuple[str, str] | None) -> dict[str, Any]:
    return {
        "call": call,
        "operands_on": place,
        "device": row.chosen[0],
        "method": row.chosen[1],
        "predicted": row.predicted[row.chosen],
        "measured": row.measured[row.chosen],
        "best_alternative": best
        and {
            "device": best[0],
            "method": best[1],
            "measured": row.measured[best],
        },
    }
