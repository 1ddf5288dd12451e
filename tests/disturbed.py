"""Calibrations while other processes keep the same cores busy, and what plans then promise.

    python tests/disturbed.py --busy 3 --runs 2 --cores 0,1 --report FILE

Calls are measured on these cores while nothing else runs there. Then a fresh process calibrates, as
often as there are runs, and the seconds that its profile predicts are compared with the measured
ones. Between the runs they are measured again, and the least counts. Exit code 1 where a prediction
is off by more than a factor of `FAR`, or a chosen method takes more than `WORSE` times as long as
the best one. A run takes 2 to 8 minutes.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

FAR, WORSE = 4.0, 1.3
_BUDGET, _MOST = 0.25, 15  # seconds and calls of one method
_SLOW = 30.0  # times the fastest method, by conservative constants: not measured
_BUSY = "while True: pass"


class Call(NamedTuple):
    """A call by its dimensions, as in `hetero explain`; measured ``at`` smaller ones where its own
    would take more than 20 s."""

    function: str
    dims: tuple[int, ...]
    dtype: str
    at: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.function} {'x'.join(map(str, self.dims))} {self.dtype}"


_DIMS = {
    "matmul": [(100,) * 3, (700,) * 3, (1500, 90, 1100), (2048,) * 3],
    "matvec": [(200, 300), (1500, 1500), (5000, 4000), (8192, 8192)],
    "convolve2d": [(150, 150, 3, 3), (900, 700, 7, 7), (2000, 2000, 15, 15), (5000, 5000, 5, 5)],
    "solve_cg": [(60, 70), (300, 300), (1500, 1500)],
    "solve_poisson": [(63, 100), (500, 399), (2047, 2047)],
    "kmeans": [(1500, 4, 8), (20000, 32, 20), (150000, 16, 40)],
}
CALLS = [
    *(Call(f, dims, t) for f, all in _DIMS.items() for dims in all for t in ("float32", "float64")),
    *(Call("matmul", (8192,) * 3, t, (2500,) * 3) for t in ("float32", "float64")),
]


def made(call: Call, dims: tuple[int, ...]):
    """The operands and options of a call, of random numbers."""
    import numpy as np

    import hetero

    draw = np.random.default_rng(0)
    if call.function == "solve_cg":
        A = hetero.Poisson(dims, dtype=call.dtype)
        return (A, draw.random(math.prod(dims)).astype(call.dtype)), {"maxiter": 50, "rtol": 1e-12}
    if call.function == "kmeans":
        n, d, k = dims
        X = draw.random((n, d)).astype(call.dtype)
        return (X, k), {"init": X[:k].copy(), "max_iter": 10, "n_init": 1}
    shapes = {
        "matmul": lambda m, n, k: [(m, k), (k, n)],
        "matvec": lambda m, k: [(m, k), (k,)],
        "convolve2d": lambda h, w, fh, fw: [(h, w), (fh, fw)],
        "solve_poisson": lambda *shape: [shape],
    }[call.function](*dims)
    return tuple(draw.random(shape).astype(call.dtype) for shape in shapes), {}


def planned(call: Call, dims: tuple[int, ...]) -> dict[str, float]:
    """Predicted seconds by method on the CPU, the chosen one first."""
    import hetero

    operands, options = made(call, dims)
    plan = hetero.plan(call.function, *operands, device="cpu", **options)
    return {c.method: c.seconds for c in plan.candidates if c.reason is None and c.seconds}


def measured(call: Call, before: dict[str, float] | None = None) -> dict[str, float]:
    """Least seconds of each method that is not far slower than another, also ``before``."""
    import hetero

    dims = call.at or call.dims
    operands, options = made(call, dims)
    prices = before or planned(call, dims)
    found: dict[str, float] = {}
    for method in (m for m, s in prices.items() if s <= _SLOW * min(prices.values())):
        took: list[float] = []
        begin = time.perf_counter()
        while len(took) < 2 or (len(took) < _MOST and time.perf_counter() - begin < _BUDGET):
            start = time.perf_counter()
            getattr(hetero, call.function)(*operands, device="cpu", method=method, **options)
            took.append(time.perf_counter() - start)
        seconds = min(took) * math.prod(call.dims) / math.prod(dims)
        found[method] = min(seconds, before[method]) if before else seconds
    return found


def calibrated(path: Path, busy: int) -> tuple[float, str]:
    """Seconds that a calibration took beside busy processes, and what it said of them."""
    others = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(busy)]
    command = [sys.executable, "-m", "hetero", "calibrate", "--device", "cpu", "--path", str(path)]
    begin = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        for other in others:
            other.kill()
            other.wait()
    said = [line for line in done.stderr.splitlines() if "trusted" in line or "other work" in line]
    return time.perf_counter() - begin, " / ".join(said)


def compared(path: Path, quiet: dict[Call, dict[str, float]]) -> tuple[list[str], int]:
    """A table of one profile's predictions, and how many are beyond the bounds."""
    from hetero import profile

    profile.set_current(profile.read(path))
    lines, bad = ["predicted/quiet  chosen/best  quiet seconds  call, chosen method, best"], 0
    for call, seconds in quiet.items():
        prices = planned(call, call.dims)
        chosen, best = next(iter(prices)), min(seconds, key=seconds.__getitem__)
        took = seconds.get(chosen, math.inf)
        ratio, loss = prices[chosen] / took, took / seconds[best]
        wrong = not (1.0 / FAR <= ratio <= FAR and loss <= WORSE)
        bad += wrong
        lines.append(
            f"{ratio:15.2f} {loss:12.2f} {took:14.3g}  {call}: {chosen}, {best}{' !' * wrong}"
        )
    return lines, bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--busy", type=int, default=3, help="processes that keep the cores busy")
    parser.add_argument("--runs", type=int, default=1, help="calibrations")
    parser.add_argument("--cores", default="0,1", help="the cores to use, by number")
    parser.add_argument("--report", type=Path, help="file to write")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))  # ends what keeps the cores busy, too
    os.sched_setaffinity(0, set(map(int, given.cores.split(","))))
    with tempfile.TemporaryDirectory() as folder:
        home = {"XDG_CACHE_HOME": folder, "HETERO_PROFILE": f"{folder}/none.json"}
        os.environ.update(home, CUDA_VISIBLE_DEVICES="")
        subprocess.run([sys.executable, "-m", "hetero", "compile"], check=True)
        quiet = {call: measured(call) for call in CALLS}
        made_in, load = [], os.getloadavg()
        for number in range(given.runs):
            made_in.append(calibrated(Path(folder) / f"{number}.json", given.busy))
            quiet = {call: measured(call, before) for call, before in quiet.items()}
        lines, bad = [f"{given.busy} busy processes on cores {given.cores}; load before {load}"], 0
        for number, (took, said) in enumerate(made_in):
            table, beyond = compared(Path(folder) / f"{number}.json", quiet)
            bad += beyond
            lines += ["", f"run {number}: calibrated in {took:.0f} s: {said}", *table]
    lines += ["", f"{bad} of {given.runs * len(CALLS)} calls beyond the bounds"]
    text = "\n".join(lines)
    print(text)
    if given.report:
        given.report.write_text(f"{text}\n")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
