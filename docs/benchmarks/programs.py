"""Whole programs with NumPy, with hetero in its place, with CuPy:

    python docs/benchmarks/programs.py [NAME...] [--quick] [--json]

Each is written once: ``xp`` and ``do`` are what differs. Each variant runs in its own process.
"""

import argparse
import importlib
import inspect
import json
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from statistics import median
from time import perf_counter
from types import SimpleNamespace

import numpy as np

NUMPY, HETERO, KEPT, CUPY = VARIANTS = ("NumPy", "hetero", "hetero, kept", "CuPy")
LATER, SECONDS = 5, 3.0  # the most later runs, and the time after which no other one begins
SMALLER = 16  # what --quick divides extents by
# Of values, by their root mean square; in float32 k-means moves points between clusters.
TOLERANCE = {"float32": 3e-3, "float64": 1e-6}

PROGRAMS = {}  # name -> what runs, dtype and shapes of its data, whether the first of them is kept


def program(dtype, *shapes, reused=False):
    """Add a program; ``reused``: its first array is used again and never written to."""
    return lambda run: PROGRAMS.setdefault(run.__name__, (run, dtype, shapes, reused))[0]


@program("float64", (200_000, 256), (200_000,), reused=True)
def logistic(xp, do, X, y):
    """Logistic regression: 50 steps, 200000 x 256, float64."""
    w = xp.zeros(X.shape[1])
    for _ in range(50):
        r = 1.0 / (1.0 + xp.exp(-do.matmul(X, w))) - y
        w -= 0.01 / len(y) * do.matmul(X.T, r)
    return w


@program("float32", (8192, 8192), (8192, 32), reused=True)
def subspace(xp, do, A, Q):
    """Subspace iteration: 10 steps, 8192 x 8192, 32 vectors, float32."""
    for _ in range(10):
        Q, R = xp.linalg.qr(do.matmul(A, Q))
    return abs(xp.diag(R))


@program("float32", (2048, 2048), (31, 31))
def deblurring(xp, do, image, psf):
    """Richardson-Lucy: 15 steps, image of 2048 x 2048, PSF of 31 x 31, float32."""
    estimate, psf = image, psf / psf.sum()
    for _ in range(15):
        ratio = image / do.convolve2d(estimate, psf, mode="same")
        estimate = estimate * do.convolve2d(ratio, psf[::-1, ::-1], mode="same")
    return estimate


@program("float64", (200, 200), (256, 256), (5, 5))
def small(xp, do, A, image, blur):
    """Small calls: 300 products of 200 x 200 and filters of 256 x 256 by 5 x 5, float64."""
    product, blur = A, blur / blur.sum()
    for _ in range(300):
        product = do.matmul(product, A) * (2.0 / len(A))
        image = do.convolve2d(image, blur, mode="same")
    return xp.concatenate([product.ravel(), image.ravel()])


@program("float64", (512, 512))
def heat(xp, do, A, u):
    """Implicit heat equation: 10 solves by conjugate gradients, CSR, 512 x 512 points, float64."""
    for _ in range(10):
        u, _info = do.solve_cg(A, u, x0=u, rtol=1e-8)
    return u


@program("float64", (1023, 1023))
def potential(xp, do, f):
    """Poisson's equation: 10 solves, 1023 x 1023 points, float64."""
    u = xp.zeros_like(f)
    for _ in range(10):
        u = do.solve_poisson(f + u, spacing=1.0 / (len(f) + 1))
    return u


@program("float32", (1_000_000, 3), reused=True)
def colours(xp, do, X):
    """k-means: 20 iterations, 32 clusters of 1000000 colours, float32."""
    return do.kmeans(X, 32, init=X[:32].copy(), n_init=1, max_iter=20, tol=0.0)[0]


@program("float64", (6000, 6000), (6000,), reused=True)
def power(xp, do, A, x):
    """Power iteration: 60 steps, 6000 x 6000, float64."""
    for _ in range(60):
        x = do.matmul(A, x)
        x = x / xp.linalg.norm(x)
    return x


@program("float32", (4096, 4096), (4096,))
def rewritten(xp, do, A, x):
    """A matrix that is written to before each of 30 products: 4096 x 4096, float32."""
    for _ in range(30):
        A *= 0.999
        x = do.matmul(A, x)
        x = x / xp.linalg.norm(x)
    return x


@program("float32", (1024, 1024), (40, 9, 9), reused=True)
def edges(xp, do, image, bank):
    """Filter bank: 5 rounds of 8 filters of 9 x 9, one image of 1024 x 1024, float32."""
    energy = xp.zeros_like(image)
    for values in bank:
        energy += do.convolve2d(image, values - 0.5, mode="same") ** 2
    return energy


def data_of(name, scale):
    """A program's data, extents above 64 divided by ``scale``."""
    (_, dtype, shapes, _), source = PROGRAMS[name], np.random.default_rng(0)
    data = [source.random([n // scale if n > 64 else n for n in s], dtype) for s in shapes]
    if name != "heat":
        return data
    sparse, n = importlib.import_module("scipy.sparse"), len(data[0])
    line = sparse.diags_array([-10.0, 20.0, -10.0], offsets=[-1, 0, 1], shape=(n, n))
    matrix = sparse.eye_array(n * n) + sparse.kronsum(line, line)
    return [sparse.csr_matrix(matrix), data[0].ravel()]


def computing_by(variant):
    """``xp``, ``do``, and what is done to each of the data before the first run."""
    load = importlib.import_module
    if variant in (HETERO, KEPT):
        return np, load("hetero"), load("hetero").keep if variant == KEPT else lambda one: one
    xp, scipy = (load("cupy"), "cupyx.scipy") if variant == CUPY else (np, "scipy")
    cg, sparse = load(f"{scipy}.sparse.linalg").cg, load(f"{scipy}.sparse")
    rtol_name = "rtol" if "rtol" in inspect.signature(cg).parameters else "tol"  # in older CuPys
    has_sklearn = variant == NUMPY and find_spec("sklearn") is not None
    do = SimpleNamespace(
        matmul=xp.matmul,
        convolve2d=partial(convolved, load(f"{scipy}.signal")),
        solve_cg=lambda A, b, x0, rtol: cg(A, b, x0=x0, **{rtol_name: rtol}),
        solve_poisson=partial(by_sines, xp, load(f"{scipy}.fft")),
        kmeans=load("sklearn.cluster").k_means if has_sklearn else partial(lloyd, xp),
    )
    return xp, do, lambda one: (sparse.csr_matrix if hasattr(one, "tocsr") else xp.asarray)(one)


def convolved(signal, image, values, mode):
    """By the direct sum where the filter is small, else by transforms."""
    return (signal.convolve2d if len(values) <= 5 else signal.fftconvolve)(image, values, mode)


def by_sines(xp, fft, f, spacing):
    """Poisson's equation on a square."""
    n = len(f)
    one = 4.0 / spacing**2 * xp.sin(xp.pi * xp.arange(1, n + 1) / (2 * (n + 1))) ** 2
    return fft.idstn(fft.dstn(f, type=1) / (one[:, None] + one), type=1)


def lloyd(xp, X, k, init, max_iter, **options):
    """k-means as far as `colours` needs it."""
    for _ in range(max_iter):
        labels = ((init**2).sum(axis=1) - 2.0 * (X @ init.T)).argmin(axis=1)
        sums = [xp.bincount(labels, weights=x, minlength=k) for x in X.T]
        init = (xp.stack(sums, axis=1) / xp.bincount(labels, minlength=k)[:, None]).astype(X.dtype)
    return (init,)


def measured(name, variant, scale):
    """Seconds of the first run (with uploads by hand, without imports), of the later ones (their
    median), their number, and a checksum: the root mean square of the result, and some values."""
    (run, *_), (xp, do, prepared) = PROGRAMS[name], computing_by(variant)
    data, results, seconds = data_of(name, scale), [], []
    while len(seconds) < 2 or (len(seconds) <= LATER and sum(seconds[1:]) < SECONDS):
        began = perf_counter()
        data = data if seconds else list(map(prepared, data))
        result = run(xp, do, *data)
        results.append(result if xp is np else xp.asnumpy(result))
        seconds.append(perf_counter() - began)
    values = results[0].astype("float64").ravel()
    some = values[:: len(values) // 16 + 1].tolist()
    times = {"first": seconds[0], "later": median(seconds[1:]), "runs": len(seconds) - 1}
    return {**times, "checksum": [float(np.sqrt(np.mean(values**2))), *some]}


def compare(name, scale):
    """What `measured` gives for each variant in a new process, with same (as NumPy's) and gain
    (NumPy's later seconds over this one's); or failed: why."""
    (_, dtype, _, reused), reference = PROGRAMS[name], None
    possible = {KEPT: reused, CUPY: find_spec("cupy") is not None}
    for variant in [one for one in VARIANTS if possible.get(one, True)]:
        row = {"program": name, "variant": variant, "scale": scale}
        command = [sys.executable, __file__, name, "--measure", variant, str(scale)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            yield row | {"failed": (done.stderr.splitlines() or [str(done.returncode)])[-1]}
            continue
        row |= json.loads(done.stdout.splitlines()[-1])
        reference = row if variant == NUMPY else reference
        if reference is not None:
            close = TOLERANCE[dtype] * reference["checksum"][0]
            same = np.allclose(row["checksum"], reference["checksum"], rtol=0.0, atol=close)
            row |= {"same": bool(same), "gain": reference["later"] / row["later"]}
        yield row


def table(rows):
    """Markdown."""
    yield "| program | variant | first run, s | later runs, s | NumPy / this | result |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        cells = [f"{row[key]:.3g}" if key in row else "" for key in ("first", "later", "gain")]
        result = {True: "same", False: "WRONG", None: "not compared"}[row.get("same")]
        result = f"failed: {row['failed']}" if "failed" in row else result
        yield " | ".join([f"| {row['program']}", row["variant"], *cells, f"{result} |"])


def main():
    """Measure and print; exit code 1 where a result is not NumPy's, or hetero has none."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    text = f"of {', '.join(PROGRAMS)} (default: all)"
    parser.add_argument("name", nargs="*", default=[*PROGRAMS], help=text)
    parser.add_argument("--quick", action="store_true", help="smaller data")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if wrong := set(given.name) - set(PROGRAMS):
        parser.error(f"no program is called {', '.join(wrong)}; there are {', '.join(PROGRAMS)}")
    if given.measure:
        print(json.dumps(measured(given.name[0], given.measure[0], int(given.measure[1]))))
        return 0
    scale = SMALLER if given.quick else 1
    rows = [row for name in given.name for row in compare(name, scale)]
    print(json.dumps(rows, indent=2) if given.json else "\n".join(table(rows)))
    for row in (row for row in rows if "failed" in row):
        print(f"{row['program']} with {row['variant']} failed: {row['failed']}", file=sys.stderr)
    # CuPy need not have all of it.
    known = [row for row in rows if row["variant"] != CUPY or "failed" not in row]
    return 0 if all(row.get("same") for row in known) else 1


if __name__ == "__main__":
    sys.exit(main())
