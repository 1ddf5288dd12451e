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
