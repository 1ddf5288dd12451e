"""What the installed packages' tests expect of their own conftest, and the exclusions."""

from __future__ import annotations

from fnmatch import fnmatchcase

import numpy as np
import pytest

MARKERS = (
    "slow", "xslow", "fail_slow", "timeout", "parallel_threads_limit", "thread_unsafe",
    "iterations", "skip_xp_backends", "xfail_xp_backends", "array_api_backends",
    "xfail_on_32bit", "leaks_references", "valgrind_error",
)  # fmt: skip


def pytest_configure(config):
    for name in MARKERS:
        config.addinivalue_line("markers", f"{name}: of an installed package's tests")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Mark what a suite excludes; `installed` says how."""
    by_module = {}
    for item in items:
        if hasattr(item.module, "EXCLUDED"):
            by_module.setdefault(item.module, []).append(item)
    whole = not any("::" in argument for argument in config.args)
    for module, tests in by_module.items():
        marks = {
            pattern: pytest.mark.skip(reason=reason) for pattern, reason in module.EXCLUDED.items()
        } | {
            pattern: pytest.mark.xfail(reason=reason, strict=True)
            for pattern, reason in getattr(module, "DIFFERENT", {}).items()
        }
        for pattern, mark in marks.items():
            found = [t for t in tests if fnmatchcase(t.nodeid.partition("::")[2], pattern)]
            for test in found:
                test.add_marker(mark)
            if whole and not found:
                raise pytest.UsageError(f"{module.__name__} has no test {pattern}")


@pytest.fixture
def xp():
    """The array library that SciPy's tests run with."""
    return np


@pytest.fixture
def num_parallel_threads():
    return 1


@pytest.fixture
def global_random_seed():
    """The seed that scikit-learn's tests run with."""
    return 42


@pytest.fixture(params=[np.float32, np.float64])
def global_dtype(request):
    return request.param
