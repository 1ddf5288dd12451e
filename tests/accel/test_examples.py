"""The examples in the documentation, in small: they print the same with hetero.accel."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "docs" / "examples").glob("*.py"))


def printed(file, *command):
    """The numbers that an example prints, and what it says on the standard error."""
    given = [sys.executable, *command, str(file), "small"]
    environment = {**os.environ, "HETERO_ACCEL_LEAST": "0"}
    ran = subprocess.run(given, capture_output=True, text=True, env=environment, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return list(map(float, re.findall(r"\d\S*", ran.stdout))), ran.stderr


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_example(file):
    pytest.importorskip("sklearn")
    if "skimage" in file.read_text():
        pytest.importorskip("skimage")
    plain, _ = printed(file)
    ours, told = printed(file, "-m", "hetero.accel", "-v")
    assert plain
    assert ours == pytest.approx(plain, rel=1e-6)
    calls = re.search(r"(\d+) calls? taken, (\d+) left alone", told)
    assert sum(map(int, calls.groups())) > 0
