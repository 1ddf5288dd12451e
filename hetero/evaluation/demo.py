"""`hetero demo`: real calls timed, and the same by other libraries."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from hetero import devices as backends
from hetero import profile, registry, terminal
from hetero.calibration.calibrate import measure_machine
from hetero.calibration.candidates import timed
from hetero.calling import overview, planner
from hetero.errors import DeviceError
from hetero.ops import benchmark
from hetero.ops.benchmark import Benchmark, Comparison
from hetero.pricing.plan import CPU
from hetero.times import readable

_LARGEST, _LARGEST_ON_GPU = 2048, 8192  # extents
_BUDGET = 0.1  # seconds of each call, about
_OWN = "automatic"


def demo(
    *,
    largest: int | None = None,
    picture: str | None = None,
    progress: Callable[[float, str], None] | None = None,
    show: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Run the demonstration, by the stored profile of this machine if there is one.

    Else the machine is measured quickly, for this process alone. Nothing is watched between calls:
    each moves its operands and its result, as the plan of a first call and the other libraries do.
    ``picture`` names a PGM file for the filtered photograph; that of few colours is next to it.

    Gives for each call what it is, device and method, predicted and measured seconds, iterations
    where there are some; ``libraries``, name -> seconds, iterations, and how far the result is from
    hetero's, as a share of the largest number; what ``failed``, and why; and what is ``missing``,
    with the package that brings it.
    """
    start = time.perf_counter()
    tell = progress or (lambda fraction, text: None)
    tell(0.0, "trying the devices")
    show(overview.summary())
    if (stored := profile.survey()) and stored[0].obstacle is None:
        profile.set_current(None)  # but for this file's, one may be set
        show(f"by the profile {stored[0].path}")
    else:
        quick = measure_machine(True, None, terminal.part(progress, 0.0, 0.6))
        profile.set_current(profile.parse(profile.encode(quick)))
        took = readable(time.perf_counter() - start)
        show(f"calibrated in {took}, for this run alone ('hetero calibrate' does it better, once)")
    gpu = any(not d.describe().get("is_host_cpu") for d in backends.proven().values())
    size = largest or (_LARGEST_ON_GPU if gpu else _LARGEST)
    cases = [
        (operation, case)
        for operation in registry.operations()
        for case in benchmark.of(operation, "demonstrated", lambda size: ())(size)
    ]
    rows, plan = [], None
    for number, (operation, case) in enumerate(cases):
        tell(0.6 + 0.4 * number / len(cases), case.case)
        results, failed = dict[str, Any](), dict[str, str]()
        with planner.use(watch=False):
            compared = case.make()
            row = _measured(case, compared, results, failed)
        lines = [f"  failed: {failed[_OWN]}"] if row is None else _lines(row)
        show("\n".join(["", case.case, *lines]))
        if row is None:
            continue
        rows.append(row)
        save = benchmark.of(operation, "pictured_result")
        is_last = all(other is not operation for other, _ in cases[number + 1 :])
        if picture is not None and save is not None and is_last:
            show(f"  its picture is in {save(results[_OWN], picture)}")
        if plan is None or len(compared.plan.candidates) > len(plan.candidates):
            plan = compared.plan
    show("\n" + "\n".join(_overview(rows)))
    if plan is not None:
        show(f"\nhow one of them was chosen, as hetero.plan and 'hetero explain' print it:\n{plan}")
    show(f"\n{readable(time.perf_counter() - start)} in all")
    return rows


def _measured(
    case: Benchmark, compared: Comparison, results: dict[str, Any], failed: dict[str, str]
) -> dict[str, Any] | None:
    """One call, timed in turn with the same by other libraries; None where it fails."""
    calls = {**compared.calls, **compared.peers}

    def run(name: str) -> None:
        try:
            results[name] = calls[name](0)
        except Exception as error:  # of any kind, in another library
            if name not in compared.peers:
                raise
            raise DeviceError(f"{type(error).__name__}: {error}") from error  # which is left out

    runs = {name: partial(run, name) for name in calls}
    seconds = timed(runs, budget=_BUDGET, failed=failed, chosen=_OWN, spinning=frozenset(calls))
    if _OWN not in seconds:
        return None
    chosen, own = compared.plan.chosen, _values(results[_OWN])
    row = {"call": case.case, "device": chosen.device, "method": chosen.method}
    row |= {"predicted": chosen.seconds, **_figures(seconds[_OWN], results[_OWN]), "libraries": {}}
    for name in compared.peers.keys() & seconds:
        far = np.abs(_values(results[name]) - own).max() / np.abs(own).max()
        found = _figures(seconds[name], results[name])
        row["libraries"][name] = {**found, "difference": float(far)}
    return {**row, "failed": failed, "missing": dict(compared.missing)}


def _values(result: Any) -> np.ndarray:
    return np.ravel(result[0] if isinstance(result, tuple) else result)


def _figures(seconds: float, result: Any) -> dict[str, Any]:
    """Seconds, and the number of iterations of a result that tells it."""
    found = {"measured": seconds}
    if isinstance(result, tuple):
        made = result[-1]
        found["iterations"] = int(made["iterations"] if isinstance(made, Mapping) else made)
    return found


def _lines(row: dict[str, Any]) -> list[str]:
    """What is printed below a call."""
    name = f"hetero: {row['method']} on {row['device']}"
    known = row["predicted"]
    lines = [_line(name, row, "" if known is None else f"predicted {readable(known)}")]
    for name, one in sorted(row["libraries"].items(), key=lambda item: item[1]["measured"]):
        same = f"differ by {one['difference']:.0e}" if one["difference"] else "equal"
        text = f"hetero {gained(one['measured'] / row['measured'])}, results {same}"
        lines.append(_line(name, one, text))
    lines += [f"  {name:<36} {'-':>9}  failed: {why}" for name, why in row["failed"].items()]
    lines += [
        f"  {name:<36} {'-':>9}  not installed: pip install {package}"
        for name, package in row["missing"].items()
    ]
    others = *row["libraries"], *row["failed"]
    if row["device"] != CPU and not any(name.startswith("CuPy") for name in others):
        lines.append("  no other library was compared on a GPU")
    return lines


def _line(name: str, one: Mapping[str, Any], text: str) -> str:
    made = f"{one['iterations']} iterations, " if "iterations" in one else ""
    return f"  {name:<36} {readable(one['measured']):>9}  {made}{text}"


def gained(ratio: float) -> str:
    """In words how hetero compares with what takes that many times as long."""
    if ratio >= 1.0:
        return f"{_digits(ratio)} times as fast"
    return f"takes {_digits(1.0 / ratio)} times as long"


def _digits(ratio: float) -> str:
    return f"{ratio:#.3g}".rstrip(".")


def _overview(rows: list[dict[str, Any]]) -> list[str]:
    """Each call compared with the fastest other library, the largest gain first."""
    compared = []
    for row in rows:
        if row["libraries"]:
            name, one = min(row["libraries"].items(), key=lambda item: item[1]["measured"])
            times = f"{readable(row['measured']):>9}  {readable(one['measured']):>9}  {name:<33}"
            call = row["call"].partition(":")[0]
            compared.append((one["measured"] / row["measured"], f"{times}  {call}"))
    compared.sort(key=lambda item: -item[0])
    head = f"{'times as fast':<15}{'hetero':>9}  {'fastest other library':<44}  call"
    return [head, *(f"{_digits(ratio):>13}  {text}" for ratio, text in compared)]
