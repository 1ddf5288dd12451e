"""Do hetero's loops and NumPy's BLAS hold each other up? Times calls alone, and in company.

    python tests/together.py              loops right after products, products right after loops
    python tests/together.py --products   products of several sizes, back to back and after pauses
    python tests/together.py --busy       beside two busy processes on two cores, against SciPy
    python tests/together.py --turns 0 10   both, a process for each `HETERO_BLAS_TIMEOUT`
    python tests/together.py --sleep 0.2 0.7 3   likewise, a process for each number of milliseconds
                                                 of work from which on BLAS sleeps, by this
                                                 machine's profile else

The processes of ``--turns`` and ``--sleep`` take turns of a fraction of a second, so that what the
host does beside hits all alike. Prints medians and tails, microseconds, and whether they keep
within what is asked of 16 cores (of 2 cores for ``--busy``). ``--json FILE`` stores the seconds as
well. Nothing else may run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable

import numpy as np

import hetero
from hetero import profile

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


def waiting(pause: float) -> Callable[[], None] | None:
    """A function that keeps the calling thread busy for so many seconds; None for none."""

    def wait() -> None:
        until = time.perf_counter() + pause
        while time.perf_counter() < until:
            pass

    return wait if pause else None


def products() -> None:
    """What an early sleep of BLAS's threads costs products: after a pause they must be woken."""
    convolution()  # from here on they sleep while loops run
    for n in (64, 128, 256, 600, 1024, 2048):
        B = rng.random((n, n), dtype=np.float32)
        number = 400 if n < 600 else 100 if n < 2048 else 20
        for pause in (0.0, 50e-6, 1e-3):
            name = f"product {n}x{n}, after {1e6 * pause:.0f} us"
            tails(name, times(lambda B=B: B @ B, waiting(pause), number))
    G = rng.random((2000, 2000))
    x = rng.random(2000)
    tails("matvec 2000x2000 float64", times(lambda: G @ x, None, 200))


def scenarios() -> dict[str, tuple[Callable[[], object], Callable[[], object] | None, int]]:
    """Name -> call, what is done before it, how often in one turn."""
    B, C = (rng.random((n, n), dtype=np.float32) for n in (128, 256))
    G, x = rng.random((2000, 2000)), rng.random(2000)
    found = {
        "convolve2d, alone": (convolution, None, 12),
        "convolve2d, after a product": (convolution, product, 12),
        "multigrid, alone": (multigrid, None, 2),
        "multigrid, after a product": (multigrid, product, 2),
        "cg, alone": (small_cg, None, 4),
        "cg, after a product": (small_cg, product, 4),
        "product, alone": (product, None, 12),
        "product, after convolve2d": (product, convolution, 12),
        "product, after cg": (product, small_cg, 6),
        "product, after 1 ms": (product, waiting(1e-3), 8),
        "matvec 2000x2000 float64, alone": (lambda: G @ x, None, 12),
    }
    for n, call in ((128, lambda: B @ B), (256, lambda: C @ C)):
        for pause in (0.0, 50e-6, 200e-6, 1e-3):
            name = f"product {n}x{n}, after {1e6 * pause:.0f} us"
            found[name] = call, waiting(pause), 16
    return found


def serve() -> None:
    """One turn of all scenarios for each line of the input."""
    every = scenarios()
    for call, _, _ in every.values():
        call()
    print("ready", flush=True)
    for _ in sys.stdin:
        found = {name: times(*each) for name, each in every.items()}
        print(json.dumps(found), flush=True)


def timeouts(exponents: list[str]) -> dict[str, dict[str, str]]:
    """Environments of processes with different timeouts."""
    return {exponent: {"HETERO_BLAS_TIMEOUT": exponent} for exponent in exponents}


def profiles(milliseconds: list[str], folder: str) -> dict[str, dict[str, str]]:
    """Environments of processes with this machine's profile but for when BLAS sleeps."""
    data = profile.current().data
    found = {}
    for number in milliseconds:
        path = os.path.join(folder, f"{number}.json")
        host = {**data["host"], "blas_sleep": 1e-3 * float(number)}
        profile.parse(profile.encode({**data, "host": host})).save(path)
        found[f"{number} ms"] = {"HETERO_PROFILE": path}
    return found


def turns(environments: dict[str, dict[str, str]], seconds: float) -> None:
    """Processes with different environments, in turn."""
    command = [sys.executable, __file__, "--serve"]
    pipes: dict[str, int | bool] = {"stdin": -1, "stdout": -1, "text": True}
    servers, names = {}, list(environments)
    for name, changes in environments.items():  # one after the other: the first one compiles
        servers[name] = subprocess.Popen(command, env={**os.environ, **changes}, **pipes)
        while servers[name].stdout.readline().strip() != "ready":
            if servers[name].poll() is not None:
                raise SystemExit(f"the process of {name} ended")
    taken: dict[str, dict[str, list[float]]] = {}
    end, number = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        first = number % len(names)
        for one in names[first:] + names[:first]:
            print("go", file=servers[one].stdin, flush=True)
            for name, found in json.loads(servers[one].stdout.readline()).items():
                taken.setdefault(name, {}).setdefault(one, []).extend(found)
            time.sleep(0.15)  # its idle threads go to sleep
        number += 1
    for server in servers.values():
        server.stdin.close()
        server.wait(10)
    for name, by_process in taken.items():
        for one, found in by_process.items():
            here = tails(f"{name}, {one}", found)
            what, _, after = name.partition(", after ")
            if after and f"{what}, alone" in taken:
                alone = sorted(taken[f"{what}, alone"][one])
                ratios = [
                    here[at] / alone[int(share * (len(alone) - 1))]
                    for at, share in ((0, 0.5), (2, 0.95), (3, 0.99))
                ]
                print("    median, P95, P99, of alone:", *(f"{ratio:.2f}" for ratio in ratios))


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
    parser.add_argument("--turns", nargs="+", metavar="EXPONENT")
    parser.add_argument("--sleep", nargs="+", metavar="MILLISECONDS")
    parser.add_argument("--seconds", type=float, default=30.0, help="of --turns and --sleep")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    if arguments.serve:
        return serve()
    print(f"{'':40s}", *(f"{x:>9s}" for x in ("median", "P90", "P95", "P99", "worst")), " us")
    if arguments.turns:
        turns(timeouts(arguments.turns), arguments.seconds)
    elif arguments.sleep:
        with tempfile.TemporaryDirectory() as folder:
            turns(profiles(arguments.sleep, folder), arguments.seconds)
    else:
        (products if arguments.products else busy if arguments.busy else together)()
        import numba

        layer, number = numba.threading_layer(), numba.get_num_threads()
        print(f"{layer}, {number} threads, {os.cpu_count()} cores")
        print(
            {
                key: value
                for key, value in hetero.machine()["cpu"].items()
                if key.startswith(("blas", "loop"))
            }
        )
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(found, file)


if __name__ == "__main__":
    main()
