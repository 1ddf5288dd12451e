"""docs/benchmarks/programs.py: each variant in a process of its own, and whether all agree."""

from __future__ import annotations

import json
from pathlib import Path

import processes

SCRIPT = Path(__file__).parents[2] / "docs" / "benchmarks" / "programs.py"


def test_two_programs_in_every_variant():
    done = processes.python(SCRIPT, "power", "potential", "--quick", "--json")
    rows = [row for row in json.loads(done.stdout) if row["variant"] != "CuPy"]
    assert [(row["program"], row["variant"]) for row in rows] == [
        *(("power", variant) for variant in ("NumPy", "hetero", "hetero, kept")),
        *(("potential", variant) for variant in ("NumPy", "hetero")),
    ]
    for row in rows:
        assert row["same"] is True
        assert min(row["first"], row["later"], row["gain"]) > 0.0
    assert rows[0]["gain"] == 1.0
