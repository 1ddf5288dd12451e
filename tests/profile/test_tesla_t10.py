"""`hetero explain --profile tesla-t10` decides as the dissertation says (White 2013).

Figures are worked out here from the numbers he prints, without the profile: sections 3.4.1, 3.4.2
(links), 3.5.1 (CPU), 4.6.1, 4.6.2 and 5.1.6 (GPU). His GB is 1024^3 bytes. From which sizes on the
GPU is faster, `tests/test_seeds.py` asks.
"""

from __future__ import annotations

import itertools
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


def calls():
    """(operation, extents, bytes accessed, the CPU's and the card's GB/s, upload, result's bytes);
    4 n^2 bytes are 2 n^2 floats to him where a matrix is multiplied with a vector."""
    for n in (64, 200, 256, 511, 2048, 10000):
        up, rate = upload(4 * n**2), min(max(16384 / n, 2), 8)
        yield "matvec", (n, n), 8 * n**2, rate, 2 * 94, up + upload(4 * n), 4 * n
        yield "matmul", (n, n, n), 8 * n**3, 51, 1504, 2 * up, 4 * n**2
    for n, size in itertools.product((1000, 8192), (3, 15, 16, 256, 513)):
        accessed, up = 8 * n**2 * size**2, upload(4 * n**2) + upload(4 * size**2)
        rate = 3 / math.sqrt(size) - n / 20000 + 2.7
        yield "convolve2d", (n, n, size, size), accessed, rate, min(size, 16) * 94, up, 4 * n**2


@pytest.mark.parametrize(
    ("operation", "dims", "accessed", "cpu_rate", "gpu_rate", "up", "result"), calls()
)
def test_figures(data, operation, dims, accessed, cpu_rate, gpu_rate, up, result):
    """He computes in float32, and results are as large as the image."""
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
    assert cpu["seconds"] == pytest.approx(accessed / GB / cpu_rate, rel=1e-9)
    down, computed = download(result), accessed / GB / gpu_rate
    assert gpu["terms"]["upload"] == pytest.approx(up, rel=1e-9)
    assert gpu["terms"]["download"] == pytest.approx(down, rel=1e-9)
    assert gpu["seconds"] == pytest.approx(up + computed + down, rel=1e-9)
