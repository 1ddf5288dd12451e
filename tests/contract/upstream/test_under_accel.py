"""A selection of the tests that ``make upstream`` runs while hetero.accel is installed."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import under_accel


def test_selection():
    pytest.importorskip("sklearn")
    command = [sys.executable, under_accel.__file__, "--selection"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=550)
    assert ran.returncode == 0, ran.stdout[-3000:]
    within, after = map(int, re.findall(r"(\d+) passed.* in ", ran.stdout))
    taken, left = map(int, re.search(r"(\d+) calls taken, (\d+) left", ran.stdout).groups())
    assert within > after > 90
    assert taken > 50
    assert left > 1000
    assert len(under_accel.DIFFERENT) <= 10
