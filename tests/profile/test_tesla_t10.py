"""`hetero explain --profile tesla-t10` decides as the dissertation says (White 2013).

Figures are worked out here from the numbers he prints, without the profile: sections 3.4.1, 3.4.2
(links), 3.5.1 (CPU), 4.6.1, 4.6.2 and 5.1.6 (GPU). His GB is 1024^3 bytes.
"""

from __future__ import annotations

import json
import math

import pytest

from hetero.cli import main

GB = 1024.0**3
KB, MB = 1024.0, 1024.0**2


def upload(nbytes):
    """Section 3.4.1."""
    if nbytes < 256 * KB:
        per_gb, constant = 0.525, 0.014e-3
    elif nbytes < MB:
        per_gb, constant = 3.2e-3, 0.061e-3
    else:
        per_gb, constant = 3.2e-3, 0.19e-3
    return nbytes / GB / 3.5 + nbytes / GB * per_gb + constant


def download(nbytes):
    """Section 3.4.2."""
    per_gb, constant = (0.210, 0.02e-3) if nbytes < MB else (6.9e-3, 0.21e-3)
    return nbytes / GB / 3.1 + nbytes / GB * per_gb + constant


@pytest.fixture
def explain(capsys):
    def run(*arguments):
        # He computes in float32, and results are as large as the image.
        words = ["explain", *map(str, arguments), "--dtype", "float32", "--profile", "tesla-t10"]
        words += ["--json", *(("--mode", "same") if arguments[0] == "convolve2d" else ())]
        assert main(words) == 0
        found = json.loads(capsys.readouterr().out)
        # What moves while it computes is not his.
        rows = {
            row["device"]: row
            for row in found["candidates"]
            if row["reason"] is None and row["method"] != "streamed"
        }
        assert set(rows) == {"cpu", "cuda:0"}
        cheapest = min(rows, key=lambda device: rows[device]["seconds"])
        assert found["chosen"]["device"] == cheapest
        return found["chosen"]["device"], rows["cpu"], rows["cuda:0"]

    return run


# -- What he states ------------------------------------------------------------------------------


# Operation, its dimensions at a size, sizes, the last one that the CPU computes.
CROSSOVERS = [
    ("matvec", lambda n: (n, n), (512, 1024, 2048, 4096, 8192, 16384), 2048),  # section 4.6.1
    ("matmul", lambda n: (n, n, n), (8, 16, 32, 64, 128, 256, 512, 4096, 16384), 64),  # 4.6.2
    ("convolve2d", lambda n: (n, n, 3, 3), (16, 32, 64, 128, 256, 512, 4096), 64),  # 5.1.6: FS = 3
    ("convolve2d", lambda n: (n, n, n, n), (4, 8, 10, 11, 12, 13, 16, 64), 11),  # 5.1.6: FS ~ n
    ("convolve2d", lambda n: (n, n, 63, 63), (1024, 8192), 0),  # figures 5.22 and 5.23
    ("convolve2d", lambda n: (n, n, 513, 513), (1024, 8192), 0),
]


@pytest.mark.parametrize(("operation", "dims", "sizes", "last_on_cpu"), CROSSOVERS)
def test_crossovers(explain, operation, dims, sizes, last_on_cpu):
    for n in sizes:
        device = "cpu" if n <= last_on_cpu else "cuda:0"
        assert explain(operation, *dims(n))[0] == device, n


# -- The figures behind it -----------------------------------------------------------------------

SIZES = [64, 200, 256, 511, 2048, 10000]


def matvec(n):
    """Bytes accessed in GB; the CPU's and the card's GB/s; 4 n^2 bytes for 2 n^2 floats there."""
    return 8 * n**2 / GB, min(max(16384 / n, 2), 8), 2 * 94, upload(4 * n**2) + upload(4 * n), 4 * n


def matmul(n):
    return 8 * n**3 / GB, 51, 1504, 2 * upload(4 * n**2), 4 * n**2


def filtered(n, filter_size):
    accessed, moved = 8 * n**2 * filter_size**2 / GB, upload(4 * n**2) + upload(4 * filter_size**2)
    rate = 3 / math.sqrt(filter_size) - n / 20000 + 2.7
    return accessed, rate, min(filter_size, 16) * 94, moved, 4 * n**2


CALLS = [("matvec", (n, n), matvec(n)) for n in SIZES]
CALLS += [("matmul", (n, n, n), matmul(n)) for n in SIZES]
CALLS += [
    ("convolve2d", (n, n, size, size), filtered(n, size))
    for n in (1000, 8192)
    for size in (3, 15, 16, 256, 513)
]


@pytest.mark.parametrize(("operation", "dims", "figures"), CALLS)
def test_figures(explain, operation, dims, figures):
    accessed, cpu_rate, gpu_rate, up, result = figures
    _, cpu, gpu = explain(operation, *dims)
    assert cpu["seconds"] == pytest.approx(accessed / cpu_rate, rel=1e-9)
    down, computed = download(result), accessed / gpu_rate
    assert gpu["terms"]["upload"] == pytest.approx(up, rel=1e-9)
    assert gpu["terms"]["download"] == pytest.approx(down, rel=1e-9)
    assert gpu["seconds"] == pytest.approx(up + computed + down, rel=1e-9)


# -- Conjugate gradients: section 5.2, figures 5.24 and 5.25 -------------------------------------

CG_SIZES = [512, 1024, 2048, 4096, 8192, 16384]


def cg_by_cpu(n, count):
    """Section 3.5.1: 8 n^2 bytes for Mv, and 8 for each of 5 n multiplications of vectors."""
    return count * (8 * n**2 + 40 * n) / GB / min(max(16384 / n, 2), 8)


def cg_hybrid(n, count):
    """Section 5.2: the matrix once; p there and A p back in each iteration."""
    mv = 8 * n**2 / GB / 188  # section 4.6.1: 4 n^2 bytes for 2 n^2 floats, at 94 GB/s
    vectors = 40 * n / GB / min(max(16384 / n, 2), 8)
    return upload(4 * n**2) + count * (upload(4 * n) + mv + download(4 * n) + vectors)


def cg_by_gpu(n, count):
    """All on the card: as much more an iteration as makes 15.99, his speedup over CUBLAS."""
    around = upload(4 * n**2) + upload(4 * n) + download(4 * n)
    return around + count * ((8 * n**2 + 40 * n) / GB / 188 + 0.806e-3)


@pytest.fixture
def solves(data):
    def run(n, count):
        words = ("--dtype", "float32", "--profile", "tesla-t10", "--iterations", count)
        told = data("explain", "solve_cg", n, *words)
        rows = {row["method"]: row["seconds"] for row in told["candidates"] if not row["reason"]}
        assert set(rows) == {"blas", "fused", "hybrid"}
        return told["chosen"]["method"], rows

    return run


@pytest.mark.parametrize("count", [8, 256])
@pytest.mark.parametrize("n", [*CG_SIZES, 700, 3000])
def test_cg_figures(solves, n, count):
    chosen, rows = solves(n, count)
    assert rows["blas"] == pytest.approx(cg_by_cpu(n, count), rel=1e-9)
    assert rows["hybrid"] == pytest.approx(cg_hybrid(n, count), rel=1e-9)
    assert rows["fused"] == pytest.approx(cg_by_gpu(n, count), rel=1e-9)
    assert chosen == "hybrid"  # the least time for all sizes and iterations, says section 5.2
