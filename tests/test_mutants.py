"""The mutants that `make mutants` plants, and what it says of tests that do not see them."""

from __future__ import annotations

import subprocess
import sys

import mutants
from mutations import mutations

SOURCE = b'''"""With 1 < 2 in its docstring."""
import threading

lock = threading.Lock()


def first(values: tuple = (1, 2), *, least=None):
    """Takes 1 and 2."""
    if not values or least is not None and len(values) <= 3:
        raise ValueError(f"got {len(values) + 1}")
    key = (values[0], least)
    with lock:
        return max(key[0], -1)
'''


def test_what_is_planted():
    found = {m.change for m in mutations(SOURCE)}
    assert {
        "is not -> is",
        "<= -> <",
        "and -> or",
        "or -> and",
        "not values -> (values)",
        "least is not None -> True",
        "3 -> 4",
        "3 -> 2",
        "values[0] -> None",
        "least -> None",
        "max -> min",
        "-1 -> (1)",
        "lock -> __import__('contextlib').nullcontext()",
        'raise ValueError(f"got {len(values) + 1}") -> pass',
    } <= found
    assert not any("< 2" in change or "Lock" in change for change in found)
    assert "+ -> -" not in found, "a message computes nothing"


TABLE = """
[[group]]
modules = ["hetero/sign.py"]
tests = ["test_sign"]

[[excluded]]
module = "hetero/sign.py"
function = "shown"
reason = "only shown"
"""
SIGN = """def sign(x):
    if x < 0:
        return "minus"
    return "plus"


def shown(x):
    return 3 * x
"""
TEST = """from hetero.sign import sign


def test_sign():
    assert (sign(-2), sign(2)) == ("minus", "plus")
"""


def test_survivors_are_listed(tmp_path, monkeypatch, capsys):
    """The test of ``sign`` does not look at 0: a comparison that takes it along is not seen."""
    for name, text in {
        "hetero/__init__.py": "",
        "hetero/sign.py": SIGN,
        "kernels/__init__.py": "",
        "calibration/__init__.py": "",
        "tests/mutants.toml": TABLE,
        "tests/test_sign.py": TEST,
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["mutants.py", "--seed", "3"])
    assert mutants.main() == 1
    printed = capsys.readouterr().out
    for change, outcome in (
        ("< -> <=", "survived"),
        ("0 -> 1", "survived"),
        ("x < 0 -> (not (x < 0))", "killed"),
    ):
        assert f"{outcome}: hetero/sign.py:2 {change} (" in printed
    assert "+    if x <= 0:" in printed
    assert "1 of 3 killed" in printed
