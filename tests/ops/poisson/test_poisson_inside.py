"""What solve_poisson does inside: prices, expected iterations, the order of axes, memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import hetero
from hetero.host import cpu
from hetero.ops.solvers.poisson_methods import expected_iterations


@pytest.mark.parametrize("shape", [(30, 20), (9, 200), (1, 50), (12, 13, 14), (3, 80, 3)])
def test_expected_iterations_are_about_what_it_takes(shape):
    f = np.random.default_rng(11).random(shape)
    for method in ("jacobi", "multigrid"):
        _, info = hetero.solve_poisson(f, device="cpu", method=method, return_info=True)
        problem = info["plan"].problem
        expected = expected_iterations(method, problem)
        assert info["iterations"] <= 1.3 * expected + 64
        assert expected <= 6 * info["iterations"] + 8


@pytest.mark.parametrize("method", ["dst", "multigrid", "jacobi"])
def test_too_little_memory_is_said_before_it_is_used(method, monkeypatch):
    monkeypatch.setattr(cpu, "available_memory", lambda: 200 << 20)
    f = np.ones((2, 10_000_000), "f4")
    with pytest.raises(MemoryError, match=r"GiB more for f of shape \(2, 10000000\), 0.2 GiB are"):
        hetero.solve_poisson(f, device="cpu", method=method, maxiter=1)


FREE = {"": ("max", 7, 0), "a/b": (9000, 8900, 0), "other": (1, 1, 0)}
GROUPS = [  # own group, its parents' and others' (limit, used, page cache), bytes available
    *((own, {"": (1000, 990, 600)}, 910) for own in ("/", "/of/the/host", "/../elsewhere")),
    ("/a/b/c", FREE | {"a": (5000, 4000, 100), "a/b/c": (10**18, 10, 0)}, 100),
    ("/a/b/c", FREE | {"a": (5000, 5100, 100), "a/b/c": (10**18, 10, 0)}, 50),
]


@pytest.mark.parametrize(("own", "groups", "available"), GROUPS)
def test_the_tightest_of_control_groups_counts(own, groups, available, tmp_path, monkeypatch):
    """The page cache of a container is available."""
    for path, (limit, taken, cached) in groups.items():
        folder = tmp_path / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{taken}\n")
        stat = f"anon 5\ninactive_file {cached}\nactive_file {cached // 2}\n"
        (folder / "memory.stat").write_text(stat)
    (tmp_path / "own").write_text(f"9:name=systemd:/init\n0::{own}\n")
    monkeypatch.setattr(cpu, "_GROUPS", tmp_path)
    planted = lambda path: tmp_path / "own" if path == "/proc/self/cgroup" else Path(path)  # noqa: E731
    monkeypatch.setattr(cpu, "Path", planted)
    assert cpu.available_memory() == available
