"""Do hetero's loops and NumPy's BLAS hold each other up? Times calls alone, and in company.

    python tests/together.py              loops right after products, products right after loops
    python tests/together.py --products   products of several sizes, back to back and after pauses
    python tests/together.py --busy       beside two busy processes on two cores, against SciPy

Prints medians and tails, microseconds, and whether they keep within what is asked of 16 cores (of 2
cores for ``--busy``). ``--json FILE`` stores the seconds as well. Nothing else may run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable

import numpy as np

import hetero

warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
A = rng.random((600, 600), dtype=np.float32)
image, taps = rng.random((724, 1118), dtype=np.float32), rng.random((6, 6), dtype=np.float32)
stencil, rhs = hetero.Poisson((40, 40)), rng.random(1600)
f = rng.random((700, 500))
found: dict[str, list[float]] = {}


def product():
    return A @ A


def convolution():
    return hetero.convolve2d(image, taps, device="cpu", method="direct")


def small_cg():
    return hetero.solve_cg(stencil, rhs, rtol=1e-6, device="cpu")


def multigrid():
    return hetero.solve_poisson(f, device="cpu", method="multigrid", rtol=1e-6)


def tails(name: str, seconds: list[float]) -> list[float]:
    """Median, P90, P95, P99 and the worst, printed and kept."""
    found[name] = seconds = sorted(seconds)
    values = [seconds[int(share * (len(seconds) - 1))] for share in (0.5, 0.9, 0.95, 0.99, 1.0)]
    print(f"{name:40s}", *(f"{1e6 * value:9.0f}" for value in values), flush=True)
    return values


def times(
    call: Callable[[], object], before: Callable[[], object] | None, number: int
) -> list[float]:
    """Seconds of a call, each time right after another one."""
    call()
    call()
    seconds = []
    for _ in range(number):
        if before is not None:
            before()
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
    return seconds


def verdict(what: str, figure: float, bar: float) -> None:
    print(f"    {what}: {figure:.2f}, at most {bar} {'ok' if figure <= bar else 'MISSED'}")


def together() -> None:
    """Loops right after a product, and a product right after a loop."""
    for name, call, number, median, p99 in (
        ("convolve2d direct 724x1118, 6x6", convolution, 200, 1.4, 2.5),
        ("multigrid 700x500", multigrid, 60, 1.4, 2.5),
        ("cg 40x40", small_cg, 100, 1.2, None),
    ):
        alone = tails(f"{name}, alone", times(call, None, number))
        after = tails(f"{name}, after a product", times(call, product, number))
        verdict("median, of alone", after[0] / alone[0], median)
        if p99 is not None:
            verdict("P99, of the median alone", after[3] / alone[0], p99)
            verdict("P99, of alone", after[3] / alone[3], p99)
    alone = tails("product 600x600, alone", times(product, None, 200))
    for name, call in (("convolve2d", convolution), ("cg", small_cg)):
        after = tails(f"product 600x600, after {name}", times(product, call, 200))
        verdict("median, of alone", after[0] / alone[0], 1.1)
        verdict("P95, of alone", after[2] / alone[2], 1.5)


def products() -> None:
    """What an early sleep of BLAS's threads costs products: after a pause they must be woken."""
    convolution()  # from here on they sleep early
    for n in (64, 128, 256, 600, 1024, 2048):
        B = rng.random((n, n), dtype=np.float32)
        number = 400 if n < 600 else 100 if n < 2048 else 20
        for pause in (0.0, 50e-6, 1e-3):

            def wait(pause: float = pause) -> None:
                until = time.perf_counter() + pause
                while time.perf_counter() < until:
                    pass

            name = f"product {n}x{n}, after {1e6 * pause:.0f} us"
            tails(name, times(lambda B=B: B @ B, wait if pause else None, number))
    G = rng.random((2000, 2000))
    x = rng.random(2000)
    tails("matvec 2000x2000 float64", times(lambda: G @ x, None, 200))


def busy() -> None:
    """Each call beside SciPy's, on two cores that two other processes want as well."""
    import scipy.fft
    import scipy.signal
    import scipy.sparse
    import scipy.sparse.linalg

    cores = sorted(os.sched_getaffinity(0))[:2]
    system = stencil.tocsr()
    B, x = rng.random((1000, 1000)), rng.random(1000)
    G = rng.random((500, 500))

    def dst() -> object:
        """The same equations as `hetero.solve_poisson`'s, by two transforms."""
        values = scipy.fft.dstn(f, type=1)
        eigenvalues = [2 - 2 * np.cos(np.pi * np.arange(1, n + 1) / (n + 1)) for n in f.shape]
        return scipy.fft.idstn(values / np.add.outer(*eigenvalues), type=1)

    pairs = [
        ("matmul 500", lambda: hetero.matmul(G, G), lambda: G @ G),
        ("matvec 1000", lambda: hetero.matvec(B, x), lambda: B @ x),
        (
            "convolve2d 724x1118, 6x6",
            lambda: hetero.convolve2d(image, taps, mode="same"),
            lambda: scipy.signal.convolve2d(image, taps, mode="same"),
        ),
        (
            "convolve2d 724x1118, 6x6, by transforms",
            lambda: hetero.convolve2d(image, taps, mode="same"),
            lambda: scipy.signal.fftconvolve(image, taps, mode="same"),
        ),
        ("solve_poisson 700x500", lambda: hetero.solve_poisson(f), dst),
        (
            "solve_cg 40x40",
            lambda: hetero.solve_cg(system, rhs, rtol=1e-6),
            lambda: scipy.sparse.linalg.cg(system, rhs, rtol=1e-6),
        ),
    ]
    for _, ours, theirs in pairs:  # all is compiled before the cores are taken
        ours(), theirs()
    spin = "import os; os.sched_setaffinity(0, {%d})\nwhile True: pass"
    others = [subprocess.Popen([sys.executable, "-c", spin % core]) for core in cores]
    try:
        for task in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(task), cores)
        for name, ours, theirs in pairs:
            seconds: tuple[list[float], list[float]] = ([], [])
            for _ in range(40):
                for call, kept in zip((ours, theirs), seconds, strict=True):
                    begin = time.perf_counter()
                    call()
                    kept.append(time.perf_counter() - begin)
            here = tails(f"{name}, hetero", seconds[0])
            there = tails(f"{name}, SciPy", seconds[1])
            verdict("median, of SciPy's", here[0] / there[0], 1.5)
    finally:
        for other in others:
            other.kill()
            other.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--products", action="store_true")
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    print(f"{'':40s}", *(f"{x:>9s}" for x in ("median", "P90", "P95", "P99", "worst")), " us")
    (products if arguments.products else busy if arguments.busy else together)()
    import numba

    print(f"{numba.threading_layer()}, {numba.get_num_threads()} threads, {os.cpu_count()} cores")
    print({key: value for key, value in hetero.machine()["cpu"].items() if "blas" in key})
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(found, file)


if __name__ == "__main__":
    main()
