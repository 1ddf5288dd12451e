"""Ranks of an `mpirun` that run short of memory, and what they keep of a communicator."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from test_ranks import launch

from hetero import errors
from hetero.mpi import ranks


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    file = tmp_path_factory.mktemp("inside") / "found.json"
    code, output = launch(4, Path(__file__).with_name("inside.py"), file, file.parent)
    assert code == 0, output
    return json.loads(file.read_text("utf-8"))


def test_use_blocks_name_a_method_of_another_operation(found):
    assert found["planned"] == [True] * 4


def test_what_fails_on_one_rank_is_raised_by_all(found):
    cases = found["short_of_memory"]
    said = str(("ValueError", "rank 3 raised MemoryError: no room"))
    for case in cases:
        assert len(case) >= 5
        for name, (tried, raised, after) in case.items():
            assert tried > 10, name
            assert (raised, after) == ([said], None), name


def test_what_a_communicator_keeps_is_freed_with_it(found):
    assert found["freed"] == [True] * 4


def test_without_mpi4py_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)
    with pytest.raises(errors.PackageMissing, match="pip install mpi4py"):
        ranks.ranks_of()
