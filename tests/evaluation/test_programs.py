"""docs/benchmarks/programs.py: each variant in a process of its own, and whether all agree."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "docs" / "benchmarks" / "programs.py"


def test_two_programs_in_every_variant():
    command = [sys.executable, SCRIPT, "power", "potential", "--quick", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [row for row in json.loads(done.stdout) if row["variant"] != "CuPy"]
    assert [(row["program"], row["variant"]) for row in rows] == [
        *(("power", variant) for variant in ("NumPy", "hetero", "hetero, kept")),
        *(("potential", variant) for variant in ("NumPy", "hetero")),
    ]
    for row in rows:
        assert row["same"] is True
        assert min(row["first"], row["later"], row["gain"]) > 0.0
    assert rows[0]["gain"] == 1.0


def test_an_unknown_program_is_refused():
    done = subprocess.run([sys.executable, SCRIPT, "sorting"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "sorting; there are logistic, " in done.stderr
