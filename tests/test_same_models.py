"""The same measurements give the same models as before calibration was one loop.

The figures are those of the calibration that it replaced, by the same fake clock; at the time all
of it was the same byte for byte, links and host included.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# Place and operation -> number of models, digest of their knots, mean logarithm of their seconds.
BEFORE = {
    "quick": {
        "cpu cg": (6, "68e9cca6", 15.73825),
        "cpu convolve2d": (10, "c333cba1", 12.75886),
        "cpu matmul": (2, "cbae8348", -8.71668),
        "cpu matvec": (4, "30b092f5", -9.61808),
        "cpu poisson": (8, "11853d84", 15.73825),
        "cuda:0 cg": (2, "10eaeda9", 18.4333),
        "cuda:0 convolve2d": (8, "070482be", 16.32643),
        "cuda:0 matmul": (32, "6348490b", -10.5936),
        "cuda:0 matvec": (16, "324ba95f", -10.97964),
        "cuda:0 poisson": (8, "55145122", 18.4333),
        "cuda:1 cg": (2, "0c24032f", 18.4333),
        "cuda:1 convolve2d": (8, "c377f00d", 16.32643),
        "cuda:1 matmul": (32, "511c7b53", -10.5936),
        "cuda:1 matvec": (16, "d26ccc55", -10.97964),
        "cuda:1 poisson": (8, "a90c98eb", 18.4333),
        "cuda:0 download": (2, "cbea8ade", -0.0211),
        "cuda:0 upload": (2, "cbea8ade", -0.05901),
        "cuda:1 download": (2, "cbea8ade", -0.0211),
        "cuda:1 upload": (2, "cbea8ade", -0.05901),
        "cuda:0 dispatch": (1, "5731147f", -11.74505),
        "cuda:1 dispatch": (1, "5731147f", -11.74505),
        "cpu pack": (1, "fc684245", -7.0385),
    },
    "full": {
        "cpu cg": (10, "3ce51faf", -9.86279),
        "cpu convolve2d": (10, "00fd6a16", -7.72688),
        "cpu matmul": (2, "679fef57", -7.79172),
        "cpu matvec": (4, "30b092f5", -9.61844),
        "cpu poisson": (16, "7d35274c", -10.91494),
        "cuda*2 cg": (6, "d2a00aae", -12.02191),
        "cuda*2 poisson": (8, "cf0f6aab", -12.02291),
        "cuda:0 cg": (10, "ad409760", -11.35982),
        "cuda:0 convolve2d": (8, "2e1fc4ff", -9.18353),
        "cuda:0 matmul": (32, "59a1c24d", -10.68062),
        "cuda:0 matvec": (16, "f46e9695", -10.98483),
        "cuda:0 poisson": (16, "875365ae", -11.87652),
        "cuda:1 cg": (10, "da8601da", -11.35982),
        "cuda:1 convolve2d": (8, "e2285327", -9.18353),
        "cuda:1 matmul": (32, "e96029e3", -10.68062),
        "cuda:1 matvec": (16, "dc8d3ab5", -10.98483),
        "cuda:1 poisson": (16, "bfea45f3", -11.87652),
        "cuda:0 download": (2, "cbea8ade", -0.0211),
        "cuda:0 upload": (2, "cbea8ade", -0.05901),
        "cuda:1 download": (2, "cbea8ade", -0.0211),
        "cuda:1 upload": (2, "cbea8ade", -0.05901),
        "cuda:0 dispatch": (1, "5731147f", -11.74505),
        "cuda:1 dispatch": (1, "5731147f", -11.74505),
        "cpu pack": (1, "fc684245", -7.0385),
    },
}


@pytest.mark.parametrize("budget", BEFORE)
def test_models_are_the_same_as_before(budget, tmp_path):
    """In a process of its own, whose clock and devices are fake."""
    script = Path(__file__).with_name("fake_clock.py")
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, str(script), budget, "--summary"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "leaves out" not in done.stderr
    assert set(found) >= set(BEFORE[budget])
    for name, (number, knots, mean) in BEFORE[budget].items():
        assert found[name] == [number, knots, pytest.approx(mean, abs=1e-4)], name
