"""`hetero bench programs`: whole programs with NumPy, with hetero in its place, with CuPy.

Each is written once: ``xp`` and ``do`` are what differs. Each variant runs in its own process.
"""

from __future__ import annotations

import inspect
import json
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np

from hetero.evaluation import report
from hetero.imports import in_child, load
from hetero.moving.keeping import keep
from hetero.ops import functions
from hetero.ops.benchmark import library
from hetero.times import readable

NUMPY, HETERO, KEPT, CUPY = VARIANTS = ("NumPy", "hetero", "hetero, kept", "CuPy")
LATER, SECONDS = 5, 3.0  # the most later runs, and the time after which no other one begins
SMALLER = 16  # what --quick divides extents by
# Of values, by their root mean square; in float32 k-means moves points between clusters.
TOLERANCE = {"float32": 3e-3, "float64": 1e-6}
_CHILD = "import json; from hetero.evaluation import programs as p; print(json.dumps(p.measured{}))"


def _logistic(xp: Any, do: Any, X: Any, y: Any) -> Any:
    """Logistic regression: 50 steps, 200000 x 256, float64."""
    w = xp.zeros(X.shape[1])
    for _ in range(50):
        r = 1.0 / (1.0 + xp.exp(-do.matmul(X, w))) - y
        w -= 0.01 / len(y) * do.matmul(X.T, r)
    return w


def _subspace(xp: Any, do: Any, A: Any, Q: Any) -> Any:
    """Subspace iteration: 10 steps, 8192 x 8192, 32 vectors, float32."""
    for _ in range(10):
        Q, R = xp.linalg.qr(do.matmul(A, Q))
    return abs(xp.diag(R))


def _deblurring(xp: Any, do: Any, image: Any, psf: Any) -> Any:
    """Richardson-Lucy: 15 steps, image of 2048 x 2048, PSF of 31 x 31, float32."""
    estimate, psf = image, psf / psf.sum()
    for _ in range(15):
        ratio = image / do.convolve2d(estimate, psf, mode="same")
        estimate = estimate * do.convolve2d(ratio, psf[::-1, ::-1], mode="same")
    return estimate


def _small(xp: Any, do: Any, A: Any, image: Any, blur: Any) -> Any:
    """Small calls: 300 products of 200 x 200 and filters of 256 x 256 by 5 x 5, float64."""
    product, blur = A, blur / blur.sum()
    for _ in range(300):
        product = do.matmul(product, A) * (2.0 / len(A))
        image = do.convolve2d(image, blur, mode="same")
    return xp.concatenate([product.ravel(), image.ravel()])


def _heat(xp: Any, do: Any, A: Any, u: Any) -> Any:
    """Implicit heat equation: 10 solves by conjugate gradients, CSR, 512 x 512 points, float64."""
    for _ in range(10):
        u, _info = do.solve_cg(A, u, x0=u, rtol=1e-8)
    return u


def _potential(xp: Any, do: Any, f: Any) -> Any:
    """Poisson's equation: 10 solves, 1023 x 1023 points, float64."""
    u = xp.zeros_like(f)
    for _ in range(10):
        u = do.solve_poisson(f + u, spacing=1.0 / (len(f) + 1))
    return u


def _colours(xp: Any, do: Any, X: Any) -> Any:
    """k-means: 20 iterations, 32 clusters of 1000000 colours, float32."""
    return do.kmeans(X, 32, init=X[:32].copy(), n_init=1, max_iter=20, tol=0.0)[0]


def _power(xp: Any, do: Any, A: Any, x: Any) -> Any:
    """Power iteration: 60 steps, 6000 x 6000, float64."""
    for _ in range(60):
        x = do.matmul(A, x)
        x = x / xp.linalg.norm(x)
    return x


def _rewritten(xp: Any, do: Any, A: Any, x: Any) -> Any:
    """A matrix that is written to before each of 30 products: 4096 x 4096, float32."""
    for _ in range(30):
        A *= 0.999
        x = do.matmul(A, x)
        x = x / xp.linalg.norm(x)
    return x


def _edges(xp: Any, do: Any, image: Any, bank: Any) -> Any:
    """Filter bank: 5 rounds of 8 filters of 9 x 9, one image of 1024 x 1024, float32."""
    energy = xp.zeros_like(image)
    for values in bank:
        energy += do.convolve2d(image, values - 0.5, mode="same") ** 2
    return energy


def _heat_matrix(n: int) -> Any:
    """An implicit step on n x n points, in CSR."""
    sparse = load("scipy.sparse")
    line = sparse.diags_array([-10.0, 20.0, -10.0], offsets=[-1, 0, 1], shape=(n, n))
    return sparse.csr_matrix(sparse.eye_array(n * n) + sparse.kronsum(line, line))


# By name: what runs, the dtype and the shapes of its random data, whether the first of them is used
# again and never written to.
PROGRAMS: dict[str, tuple[Callable[..., Any], str, list[Any], bool]] = {
    "logistic": (_logistic, "float64", [(200_000, 256), (200_000,)], True),
    "subspace": (_subspace, "float32", [(8192, 8192), (8192, 32)], True),
    "deblurring": (_deblurring, "float32", [(2048, 2048), (31, 31)], False),
    "small": (_small, "float64", [(200, 200), (256, 256), (5, 5)], False),
    "heat": (_heat, "float64", [(512, 512)], False),
    "potential": (_potential, "float64", [(1023, 1023)], False),
    "colours": (_colours, "float32", [(1_000_000, 3)], True),
    "power": (_power, "float64", [(6000, 6000), (6000,)], True),
    "rewritten": (_rewritten, "float32", [(4096, 4096), (4096,)], False),
    "edges": (_edges, "float32", [(1024, 1024), (40, 9, 9)], True),
}


def _data(name: str, scale: int) -> list[Any]:
    """A program's data, extents above 64 divided by ``scale``."""
    (_, dtype, shapes, _), source = PROGRAMS[name], np.random.default_rng(0)
    data = [source.random([n // scale if n > 64 else n for n in s], dtype) for s in shapes]
    return [_heat_matrix(len(data[0])), data[0].ravel()] if name == "heat" else data


def _computing_by(variant: str) -> tuple[Any, Any, Callable[[Any], Any]]:
    """``xp``, ``do``, and what is done to each of the data before the first run."""
    if variant in (HETERO, KEPT):
        return np, functions, keep if variant == KEPT else lambda one: one
    xp, scipy = (load("cupy"), "cupyx.scipy") if variant == CUPY else (np, "scipy")
    cg, sparse = load(f"{scipy}.sparse.linalg").cg, load(f"{scipy}.sparse")
    rtol_name = "rtol" if "rtol" in inspect.signature(cg).parameters else "tol"  # in older CuPys
    sklearn = library("sklearn.cluster") if variant == NUMPY else None
    do = SimpleNamespace(
        matmul=xp.matmul,
        convolve2d=partial(_convolved, load(f"{scipy}.signal")),
        solve_cg=lambda A, b, x0, rtol: cg(A, b, x0=x0, **{rtol_name: rtol}),
        solve_poisson=partial(_by_sines, xp, load(f"{scipy}.fft")),
        kmeans=sklearn.k_means if sklearn else partial(_lloyd, xp),
    )
    return xp, do, lambda one: (sparse.csr_matrix if hasattr(one, "tocsr") else xp.asarray)(one)


def _convolved(signal: Any, image: Any, values: Any, mode: str) -> Any:
    """By the direct sum where the filter is small, else by transforms."""
    return (signal.convolve2d if len(values) <= 5 else signal.fftconvolve)(image, values, mode)


def _by_sines(xp: Any, fft: Any, f: Any, spacing: float) -> Any:
    n = len(f)
    one = 4.0 / spacing**2 * xp.sin(xp.pi * xp.arange(1, n + 1) / (2 * (n + 1))) ** 2
    return fft.idstn(fft.dstn(f, type=1) / (one[:, None] + one), type=1)


def _lloyd(xp: Any, X: Any, k: int, init: Any, max_iter: int, **options: Any) -> tuple[Any]:
    for _ in range(max_iter):
        labels = ((init**2).sum(axis=1) - 2.0 * (X @ init.T)).argmin(axis=1)
        sums = [xp.bincount(labels, weights=x, minlength=k) for x in X.T]
        init = (xp.stack(sums, axis=1) / xp.bincount(labels, minlength=k)[:, None]).astype(X.dtype)
    return (init,)


def compare(names: Sequence[str], scale: int = 1, progress: Any = None) -> list[dict[str, Any]]:
    """Seconds of each variant of programs, their extents divided by ``scale``.

    A dict for each has program, variant, scale, and failed (why), or what `measured` gives with
    same (as NumPy's) and gain (NumPy's later seconds over this one's).
    """
    rows: list[dict[str, Any]] = []
    here = [variant for variant in VARIANTS if variant != CUPY or library("cupy") is not None]
    for number, name in enumerate(names):
        (_, dtype, _, reused), reference = PROGRAMS[name], len(rows)
        for variant in here if reused else [one for one in here if one != KEPT]:
            if progress is not None:
                progress(number / len(names), f"{name}: {variant}")
            row = {"program": name, "variant": variant, "scale": scale}
            rows.append(row := row | _in_process(name, variant, scale))
            if "failed" not in row and "failed" not in (other := rows[reference]):
                close = TOLERANCE[dtype] * other["checksum"][0]
                same = np.allclose(row["checksum"], other["checksum"], rtol=0.0, atol=close)
                row |= {"same": bool(same), "gain": other["later"] / row["later"]}
    return rows


def _in_process(name: str, variant: str, scale: int) -> dict[str, Any]:
    """What `measured` gives in a new process, or the last line that it wrote as failed."""
    command = in_child(_CHILD.format((name, variant, scale)))
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        return {"failed": (done.stderr.splitlines() or [f"exit code {done.returncode}"])[-1]}
    return json.loads(done.stdout.splitlines()[-1])


def measured(name: str, variant: str, scale: int) -> dict[str, Any]:
    """Seconds of the first run (with uploads by hand, without imports), of the later ones (their
    median), their number, and a checksum: the root mean square of the result, and some values."""
    (run, *_), (xp, do, prepared) = PROGRAMS[name], _computing_by(variant)
    data, results, seconds = _data(name, scale), list[Any](), list[float]()
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


def text(rows: list[dict[str, Any]]) -> str:
    """What `compare` gives, in Markdown."""
    lines = {f"{row['program']}: {PROGRAMS[row['program']][0].__doc__}": None for row in rows}
    results, cells = {True: "same", False: "WRONG", None: "not compared"}, []
    for row in rows:
        cells.append([row["program"], row["variant"], "", "", "", f"failed: {row.get('failed')}"])
        if "failed" not in row:
            gain = f"{row['gain']:.2f}" if "gain" in row else ""
            seconds = readable(row["first"]), readable(row["later"])
            cells[-1][2:] = [*seconds, gain, results[row.get("same")]]
    head = ("program", "variant", "first run", "later runs", "NumPy / this", "result")
    scale = f"Extents are divided by {rows[0]['scale']}.\n"
    return "\n".join([*lines, scale, *report.markdown(head, cells)])
