"""The same measurements give the same models, by a fake clock.

Who changes what is measured, or how it is fitted, sees here what else that changes, and puts the
new figures in.
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
        "cpu cg": (10, "115b54ca", -9.07938),
        "cpu convolve2d": (6, "6db288bc", -7.13554),
        "cpu matmul": (2, "a2c8aa74", -7.65997),
        "cpu matvec": (4, "41fbcee7", -9.7887),
        "cpu poisson": (12, "dea5baea", -11.20017),
        "cuda:0 cg": (12, "e901ab03", -11.03247),
        "cuda:0 convolve2d": (6, "9366c9a4", -9.51603),
        "cuda:0 matmul": (32, "4269310a", -9.94941),
        "cuda:0 matvec": (8, "559b095e", -10.8513),
        "cuda:0 poisson": (10, "09da3bfa", -12.16543),
        "cuda:1 cg": (12, "d23723b2", -11.03247),
        "cuda:1 convolve2d": (6, "9dbdea99", -9.51603),
        "cuda:1 matmul": (32, "f75bdfd7", -9.94941),
        "cuda:1 matvec": (8, "97788e17", -10.8513),
        "cuda:1 poisson": (10, "b8c21b0b", -12.16543),
        "cuda:0 download": (2, "cbea8ade", -0.0211),
        "cuda:0 upload": (2, "cbea8ade", -0.05901),
        "cuda:1 download": (2, "cbea8ade", -0.0211),
        "cuda:1 upload": (2, "cbea8ade", -0.05901),
        "cuda:0 dispatch": (1, "5731147f", -11.74505),
        "cuda:1 dispatch": (1, "5731147f", -11.74505),
        "cpu pack": (1, "fc684245", -7.0385),
        "cpu kmeans": (6, "db06e82b", -10.04047),
        "cuda:0 kmeans": (6, "567d40ba", -12.0404),
        "cuda:1 kmeans": (6, "1d3551cd", -12.0404),
    },
    "full": {
        "cpu cg": (10, "935f0448", -9.62098),
        "cpu convolve2d": (6, "430c013d", -6.91619),
        "cpu matmul": (2, "32bc7abb", -7.36494),
        "cpu matvec": (4, "2a3dbe0d", -9.15544),
        "cpu poisson": (12, "8cb07ccf", -11.15688),
        "cuda*2 cg": (10, "b6f09957", -12.91247),
        "cuda*2 poisson": (6, "9db27d30", -13.12282),
        "cuda*2 download": (2, "cbea8ade", 0.11535),
        "cuda*2 upload": (2, "cbea8ade", 0.07691),
        "cuda:0 cg": (12, "3b01e931", -11.28903),
        "cuda:0 convolve2d": (6, "8b0c0787", -9.12462),
        "cuda:0 matmul": (32, "c5a4bc32", -9.13748),
        "cuda:0 matvec": (8, "439c18b6", -10.94276),
        "cuda:0 poisson": (10, "6f10b69b", -12.10549),
        "cuda:1 cg": (12, "9b08c376", -11.28903),
        "cuda:1 convolve2d": (6, "f9332989", -9.12462),
        "cuda:1 matmul": (32, "da26c010", -9.13748),
        "cuda:1 matvec": (8, "565f921a", -10.94276),
        "cuda:1 poisson": (10, "3014dd81", -12.10549),
        "cuda:0 download": (2, "cbea8ade", -0.0211),
        "cuda:0 upload": (2, "cbea8ade", -0.05901),
        "cuda:1 download": (2, "cbea8ade", -0.0211),
        "cuda:1 upload": (2, "cbea8ade", -0.05901),
        "cuda:0 dispatch": (1, "5731147f", -11.74505),
        "cuda:1 dispatch": (1, "5731147f", -11.74505),
        "cpu pack": (1, "fc684245", -7.0385),
        "cpu kmeans": (6, "35044cf5", -10.01967),
        "cuda:0 kmeans": (6, "42d1e21a", -12.02635),
        "cuda:1 kmeans": (6, "0e74a756", -12.02635),
        "cuda*2 kmeans": (6, "4a63c884", -14.07336),
    },
}


@pytest.mark.parametrize("budget", BEFORE)
def test_models_are_the_same_as_before(budget, tmp_path):
    """In a process of its own, whose clock and devices are fake."""
    script = Path(__file__).parents[1] / "support" / "fake_clock.py"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, str(script), budget, "--summary"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "leaves out" not in done.stderr
    assert set(found) >= set(BEFORE[budget])
    for name, (number, knots, mean) in BEFORE[budget].items():
        expected = [number, knots, pytest.approx(mean, abs=1e-4)]
        where = f"if that is meant, it goes into BEFORE[{budget!r}]"
        assert found[name] == expected, f"{name}: {found[name]}; {where}"
