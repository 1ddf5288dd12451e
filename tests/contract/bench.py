"""The benchmark contract: calls and programs timed with two checkouts in turn, in one job.

    python tests/contract/bench.py OTHER [--gpu] [--pair] [--pairs 5] [--rows TEXT]

``OTHER`` is the Python of an environment with the other checkout of hetero, or ``CuPy`` or
``NumPy`` for what these take (no promise then). Each run is a process of its own, in the order
A B B A ...; a row's figure is the median of the pairs' ratios. A change may lose 3 % on a row and
nothing in the geometric mean: then, and where a row fails, the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

ROW, MEAN = 1.03, 1.0
SECONDS = 1.5  # of calls in a process
PROGRAMS = Path(__file__).parents[2] / "docs" / "benchmarks"

import numpy as np  # noqa: E402  # a script that is slow to start is no matter here

ROWS = {}  # name -> (where, function that gives calls: hetero's, and the peer's)


def row(name, where="cpu"):
    """Add a row; ``where``: "cpu", "gpu" or "pair"."""
    return lambda function: ROWS.setdefault(name, (where, function))[1]


def random(*shape, dtype="f8"):
    """The same numbers in each process."""
    return np.random.default_rng(0).random(shape, dtype)


def poisson_by_sines(f, spacing):
    """Four lines of `scipy.fft`."""
    from scipy.fft import dstn, idstn

    n = len(f)
    line = 4.0 / spacing**2 * np.sin(np.pi * np.arange(1, n + 1) / (2 * (n + 1))) ** 2
    return idstn(dstn(f, 1, workers=-1) / (line[:, None] + line), 1, workers=-1)


def five_point(n):
    """The matrix of an n x n grid."""
    import scipy.sparse as sp

    line = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n))
    return sp.csr_array(sp.kronsum(line, line))


def products(n, k=None, m=None, dtype="f4", place=lambda x: x, **how):
    """Calls of a product."""
    import hetero

    A, B = place(random(m or n, k or n, dtype=dtype)), place(random(k or n, n, dtype=dtype))
    return lambda: hetero.matmul(A, B, **how), lambda: A @ B


def device(x):
    """An array on the GPU."""
    import cupy

    return cupy.asarray(x)


def convolutions(n, f, dtype="f4", place=lambda x: x, **how):
    """Calls of a filter."""
    import hetero

    image, taps = place(random(n, n, dtype=dtype)), place(random(f, f, dtype=dtype))

    def peer():
        if isinstance(image, np.ndarray):
            from scipy.signal import fftconvolve
        else:
            from cupyx.scipy.signal import fftconvolve
        return fftconvolve(image, taps, "same")

    return lambda: hetero.convolve2d(image, taps, "same", **how), peer


def grids(n, dtype="f8", place=lambda x: x, **how):
    """Calls of a Poisson solve."""
    import hetero

    f = place(random(n, n, dtype=dtype))
    peer = (lambda: poisson_by_sines(f, 1 / n)) if isinstance(f, np.ndarray) else None
    return lambda: hetero.solve_poisson(f, spacing=1 / (n + 1), **how), peer


def clusters(n, d, k, dtype="f4", **how):
    """Calls of k-means, ten iterations."""
    import hetero

    X = random(n, d, dtype=dtype)
    options = {"init": X[:k].copy(), "n_init": 1, "max_iter": 10, "tol": 0.0}

    def peer():
        import sklearn.cluster

        return sklearn.cluster.k_means(X, k, **options)

    return lambda: hetero.kmeans(X, k, **options, **how), peer


def solves(A, n, steps, place=lambda x: x, **how):
    """Calls of conjugate gradients with a number of iterations."""
    import hetero

    b = place(random(n))
    given = {"rtol": 0.0, "maxiter": steps}
    if not hasattr(A, "tocsr"):
        return lambda: hetero.solve_cg(A, b, **given, **how), None

    def peer():
        from scipy.sparse.linalg import cg

        return cg(A, b, **given)

    return lambda: hetero.solve_cg(A, b, **given, **how), peer


def _rows():
    """All of them."""
    for n in (64, 1000):
        row(f"matmul {n} f4")(lambda n=n: products(n))
    row("matvec 1000 f8")(lambda: products(1, 1000, 1000, "f8"))
    for n, f in ((64, 3), (512, 3), (2048, 15), (2048, 63)):
        row(f"convolve2d {n} by {f} f8")(lambda n=n, f=f: convolutions(n, f, "f8"))
    row("kmeans 100000 x 32, k 64 f4")(lambda: clusters(100_000, 32, 64))
    row("kmeans 300 x 4, k 3 f8")(lambda: clusters(300, 4, 3, "f8"))
    row("cg csr 512^2, 100 steps")(lambda: solves(five_point(512), 512**2, 100))
    row("cg csr 10^2, 10 steps")(lambda: solves(five_point(10), 100, 10))
    row("cg grid 512^2, 100 steps")(lambda: solves(_grid(512), 512**2, 100))
    for n in (31, 511, 2047, 2048):
        row(f"poisson {n} f8")(lambda n=n: grids(n))
    for n in (2048, 4096, 8192, 16384):
        row(f"matmul {n} f4 from NumPy", "gpu")(lambda n=n: products(n))
    for n in (2048, 8192):
        row(f"convolve2d {n} by 31 f4 from NumPy", "gpu")(lambda n=n: convolutions(n, 31))
    for n in (1023, 4096, 8192):
        row(f"poisson {n} from NumPy", "gpu")(lambda n=n: grids(n))
    row("kmeans 1000000 x 128, k 256 from NumPy", "gpu")(lambda: clusters(1_000_000, 128, 256))
    for dtype in ("f4", "f8"):
        for n in (512, 1000, 2048, 4096, 8192):
            row(f"matmul {n} {dtype} on the device", "gpu")(
                lambda n=n, dtype=dtype: products(n, dtype=dtype, place=device)
            )
            row(f"matvec {n} {dtype} on the device", "gpu")(
                lambda n=n, dtype=dtype: products(1, n, n, dtype, device)
            )
        row(f"matmul 20000 x 500 x 300 {dtype} on the device", "gpu")(
            lambda dtype=dtype: products(300, 500, 20000, dtype, device)
        )
        for n, f in ((512, 5), (4096, 3), (4096, 9), (4096, 31), (4096, 63), (4096, 201)):
            row(f"convolve2d {n} by {f} {dtype} on the device", "gpu")(
                lambda n=n, f=f, dtype=dtype: convolutions(n, f, dtype, device)
            )
    for n in (512, 1024, 4096):
        row(f"cg grid {n}^2, 300 steps on the device", "gpu")(
            lambda n=n: solves(_grid(n), n * n, 300, device)
        )
        row(f"poisson {n} on the device", "gpu")(lambda n=n: grids(n, place=device))
    row("cg csr 1024^2, 300 steps", "gpu")(lambda: solves(five_point(1024), 1024**2, 300))
    both = {"device": "cuda:*"}
    for n in (8192, 16384):
        row(f"matmul {n} f4, two GPUs", "pair")(lambda n=n: products(n, **both))
    row("convolve2d 16384 by 31 f4, two GPUs", "pair")(lambda: convolutions(16384, 31, **both))
    for n in (512, 2048, 8192):
        row(f"cg grid {n}^2, 300 steps, two GPUs", "pair")(
            lambda n=n: solves(_grid(n), n * n, 300, **both)
        )
    row("poisson 8192, two GPUs", "pair")(lambda: grids(8192, **both))


def _grid(n):
    import hetero

    return hetero.Poisson((n, n))


def first_call(name):
    """Seconds of an operation's first call in a process, hetero's import included."""
    image, taps, A = random(64, 64), random(3, 3), five_point(10)
    began = time.perf_counter()
    import hetero

    call = {
        "matmul": lambda: hetero.matmul(image, image),
        "convolve2d": lambda: hetero.convolve2d(image, taps),
        "solve_cg": lambda: hetero.solve_cg(A, random(100)),
        "solve_poisson": lambda: hetero.solve_poisson(image),
        "kmeans": lambda: hetero.kmeans(image, 3, random_state=0),
    }[name]
    call()
    return time.perf_counter() - began


FIRST = ("matmul", "convolve2d", "solve_cg", "solve_poisson", "kmeans")
NAMES = ("logistic", "subspace", "deblurring", "small", "heat", "potential", "colours", "power")
NAMES = (*NAMES, "rewritten", "edges")


def timed(name, variant):
    """Seconds of a row in this process, the median of its calls."""
    kind, _, rest = name.partition(": ")
    if kind == "first":
        return first_call(rest)
    if kind == "program":
        sys.path.insert(0, str(PROGRAMS))
        import programs

        scale = 1 if _gpus() else 2
        return programs.measured(rest, variant, scale)["later"]
    _, make = ROWS[name]
    own, peer = make()
    call = own if variant == "hetero" else peer
    if call is None:
        return None
    finish = _finisher(call())
    finish()
    call()
    finish()
    seconds, began = [], time.perf_counter()
    while len(seconds) < 3 or (time.perf_counter() - began < SECONDS and len(seconds) < 5000):
        at = time.perf_counter()
        call()
        finish()
        seconds.append(time.perf_counter() - at)
    return median(seconds)


def _finisher(result):
    """What waits for a device's result."""
    first = result[0] if isinstance(result, tuple) else result
    if isinstance(first, np.ndarray) or not hasattr(first, "device"):
        return lambda: None
    return first.device.synchronize


def _gpus():
    return Path("/dev/nvidia0").exists()


def in_process(python, name, variant):
    """Seconds of a row in a process of its own."""
    given = [python, __file__, variant, "--row", name]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(given, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"{name} with {python}: {done.stderr.strip().splitlines()[-1:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main():
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--pair", action="store_true")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--rows", default="")
    parser.add_argument("--row")
    asked = parser.parse_args()
    _rows()
    if asked.row:
        print(json.dumps(timed(asked.row, asked.other)))
        return 0
    where = {"pair"} if asked.pair else {"gpu"} if asked.gpu else {"cpu"}
    names = [name for name, (place, _) in ROWS.items() if place in where]
    if not asked.pair:
        names += [f"first: {name}" for name in FIRST] + [f"program: {name}" for name in NAMES]
    is_peer = asked.other in ("NumPy", "CuPy")
    python, variant = (sys.executable, asked.other) if is_peer else (asked.other, "hetero")
    ratios, failed = {}, []
    for name in (name for name in names if asked.rows in name):
        found = []
        try:
            if name.startswith("first"):  # which leaves bytecode
                in_process(sys.executable, name, "hetero"), in_process(python, name, variant)
            for number in range(asked.pairs):
                order = [(sys.executable, "hetero"), (python, variant)]
                order = order[:: -1 if number % 2 else 1]
                pair = {key: in_process(key[0], name, key[1]) for key in order}
                found.append((pair[sys.executable, "hetero"], pair[python, variant]))
        except (RuntimeError, KeyError) as error:
            print(f"{name}: failed: {error}", flush=True)
            failed.append(name)
            continue
        if any(None in pair for pair in found):
            continue
        ratios[name] = median(own / other for own, other in found)
        own, other = (median(side) for side in zip(*found, strict=True))
        print(f"{name:48} {own:10.3e} s, {other:10.3e} s: {ratios[name]:.3f}", flush=True)
    mean = math.exp(sum(map(math.log, ratios.values())) / max(len(ratios), 1))
    slower = [name for name, ratio in ratios.items() if ratio > ROW]
    print(f"{len(ratios)} rows, geometric mean {mean:.4f}; above {ROW}: {slower or 'none'}")
    return int(bool(failed) or (not is_peer and (bool(slower) or mean > MEAN)))


if __name__ == "__main__":
    sys.exit(main())
