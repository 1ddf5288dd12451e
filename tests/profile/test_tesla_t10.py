"""`hetero explain --profile tesla-t10` decides as the dissertation says (White 2013).

Figures are worked out here from the numbers he prints, without the profile: sections 3.4.1, 3.4.2
(links), 3.5.1 (CPU), 4.6.1, 4.6.2 and 5.1.6 (GPU). His GB is 1024^3 bytes. From which sizes on the
GPU is faster, `tests/test_seeds.py` asks.
"""

from __future__ import annotations

import math

import pytest

GB = 1024.0**3
KB, MB = 1024.0, 1024.0**2


def upload(nbytes):
    """Section 3.4.1."""
    per_gb = 0.525 if nbytes < 256 * KB else 3.2e-3
    constant = 0.014e-3 if nbytes < 256 * KB else 0.061e-3 if nbytes < MB else 0.19e-3
    return nbytes / GB / 3.5 + nbytes / GB * per_gb + constant


def download(nbytes):
    """Section 3.4.2."""
    per_gb, constant = (0.210, 0.02e-3) if nbytes < MB else (6.9e-3, 0.21e-3)
    return nbytes / GB / 3.1 + nbytes / GB * per_gb + constant


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
def test_figures(data, operation, dims, figures):
    """He computes in float32, and results are as large as the image."""
    accessed, cpu_rate, gpu_rate, up, result = figures
    words = ["--dtype", "float32", "--profile", "tesla-t10"]
    words += ["--mode", "same"] if operation == "convolve2d" else []
    found = data("explain", operation, *dims, *words)
    rows = {
        row["device"]: row
        for row in found["candidates"]
        if row["reason"] is None and row["method"] != "streamed"  # which is not his
    }
    assert set(rows) == {"cpu", "cuda:0"}
    assert found["chosen"]["device"] == min(rows, key=lambda device: rows[device]["seconds"])
    cpu, gpu = rows["cpu"], rows["cuda:0"]
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


@pytest.mark.parametrize("count", [8, 256])
@pytest.mark.parametrize("n", [*CG_SIZES, 700, 3000])
def test_cg_figures(data, n, count):
    words = ("--dtype", "float32", "--profile", "tesla-t10", "--iterations", count)
    told = data("explain", "solve_cg", n, *words)
    rows = {row["method"]: row["seconds"] for row in told["candidates"] if not row["reason"]}
    assert set(rows) == {"blas", "fused", "hybrid"}
    assert rows["blas"] == pytest.approx(cg_by_cpu(n, count), rel=1e-9)
    assert rows["hybrid"] == pytest.approx(cg_hybrid(n, count), rel=1e-9)
    assert rows["fused"] == pytest.approx(cg_by_gpu(n, count), rel=1e-9)
    # The least time for all sizes and iterations, says section 5.2.
    assert told["chosen"]["method"] == "hybrid"
