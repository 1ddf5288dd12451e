"""Tests of installed packages, run over hetero's functions.

A suite is a file here. It names an installed test module and which of its functions are replaced:

    suite = installed.load(
        "scipy.signal.tests.test_signaltools", {"scipy.signal.convolve2d": hetero.convolve2d}
    )
    TestConvolve2d = suite.TestConvolve2d
    EXCLUDED = {"*::test_large_array": "needs 4 GB"}  # not run, and why
    DIFFERENT = {"*::test_name": "why hetero's answer is another"}  # must fail

The patterns of EXCLUDED and DIFFERENT are matched with the test's name below the file; one that
matches no test is an error.
"""

from __future__ import annotations

import functools
import importlib.util
import types
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

import pytest


def load(name: str, replaced: dict[str, Callable[..., Any]]) -> types.ModuleType:
    """A copy of an installed test module that calls other functions.

    Parameters
    ----------
    name : str
        Of the module.
    replaced : dict
        Dotted name of a function -> what the tests call in its place.

    Returns
    -------
    module
        ``calls`` counts, by dotted name, how often a replacement was called. The modules that hold
        the functions are as before: only the copy's globals see the replacements.
    """
    try:
        spec = importlib.util.find_spec(name)
    except ImportError:
        spec = None
    if spec is None or spec.loader is None:
        pytest.skip(f"{name} is not installed", allow_module_level=True)
    module = importlib.util.module_from_spec(spec)
    module.calls = dict.fromkeys(replaced, 0)
    held: dict[types.ModuleType, dict[str, Any]] = {}
    with ExitStack() as while_it_loads:
        for dotted, function in replaced.items():
            holder, _, attribute = dotted.rpartition(".")
            counted = _Counted(function, dotted, module.calls)
            held.setdefault(importlib.import_module(holder), {})[attribute] = counted
            while_it_loads.enter_context(mock.patch(dotted, counted))
        # SciPy looks up what array libraries each of its own functions takes; here it is NumPy.
        while_it_loads.enter_context(_without_array_libraries())
        spec.loader.exec_module(module)
    for global_name, value in list(vars(module).items()):
        if isinstance(value, types.ModuleType) and value in held:
            setattr(module, global_name, _view(value, held[value]))
    return module


def tests_of(module: types.ModuleType) -> dict[str, Any]:
    """All tests and fixtures that a loaded module defines, to be put into a suite's globals."""
    return {
        name: value
        for name, value in vars(module).items()
        if getattr(value, "__module__", None) == module.__name__
        and (name.startswith(("test", "Test")) or "fixture" in type(value).__name__.lower())
    }


class _Counted:
    """A function that counts its calls; in a class it is no method, as ufuncs are none."""

    def __init__(self, function: Callable[..., Any], dotted: str, calls: dict[str, int]) -> None:
        functools.update_wrapper(self, function)
        self.__name__ = dotted.rpartition(".")[2]
        self._function, self._dotted, self._calls = function, dotted, calls

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._calls[self._dotted] += 1
        return self._function(*args, **kwargs)


def _view(module: types.ModuleType, instead: dict[str, Any]) -> types.ModuleType:
    """A module that differs in a few functions."""

    class View(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            return getattr(module, name)

    view = View(module.__name__)
    vars(view).update(instead)
    return view


def _without_array_libraries() -> Any:
    try:
        import scipy._lib._array_api as array_api
    except ImportError:
        return ExitStack()
    if not hasattr(array_api, "make_xp_pytest_marks"):
        return ExitStack()
    marks = {"make_xp_pytest_marks": _no_marks, "make_xp_test_case": _unmarked}
    return mock.patch.multiple(array_api, **marks)


def _no_marks(*functions: Any, **options: Any) -> list[Any]:
    return []


def _unmarked(*functions: Any, **options: Any) -> Any:
    return lambda test: test
