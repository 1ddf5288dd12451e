"""What stands in the place of other packages' functions."""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable
from types import MethodType
from typing import Any

# Packages that hetero computes with. `bdb` is none: it raises what ends a debugger's session.
_COMPUTING = (sys.stdlib_module_names - {"bdb"}) | {
    *("hetero", "kernels", "calibration", "numpy", "scipy", "sklearn", "numba", "llvmlite"),
    *("joblib", "threadpoolctl", "cuda", "pycuda", "pytools", "nvmath", "cupy", "torch", "cv2"),
    *("pyopencl", "cupy_backends"),
}


def wrapped(
    recognise: Callable[..., Any], at: int, least: int, installed: Any, name: str, original: Any
) -> Standin:
    """A function in the place of ``original``: calls that ``recognise`` knows may be hetero's.

    ``recognise(looks, *args, **options)`` gives an `Attempt`, or None where a call is no matter of
    hetero's; whatever it raises, the original is called. It runs no code of the script's. It is not
    asked unless the arguments from ``at`` on are two arrays with at least ``least`` as the product
    of their sizes: that takes 1 us, a small filter 20.
    """
    session, ndarray, second = installed.session, sys.modules["numpy"].ndarray, at + 1
    looks, least = session.looks, 0 if session.eager else least

    @unseen
    def function(*args: Any, **options: Any) -> Any:
        if least and len(args) > second:
            one, other = args[at], args[second]
            if not (type(one) is ndarray is type(other) and one.size * other.size >= least):
                return original(*args, **options)
        try:
            attempt = recognise(looks, *args, **options)
        except Exception as error:  # a wrong argument: the original says so
            if not is_failure(error):
                raise
            attempt = None
        if attempt is None:
            return original(*args, **options)
        return session.run(name, attempt, functools.partial(original, *args, **options))

    return Standin(original, function)


def is_failure(error: Exception) -> bool:
    """Whether an error within a call of hetero's is one of hetero's, and not of the script.

    A signal handler, a debugger or another thread raises its own in the middle of a call. Then
    other code than hetero's is in the traceback, or defines the error's class.
    """
    frames = (frame.f_globals for frame, _ in traceback.walk_tb(error.__traceback__))
    modules = [type(error).__module__, *(names.get("__name__", "") for names in frames)]
    return _COMPUTING.issuperset(name.partition(".")[0] for name in modules)


class Standin:
    """A function that equals another package's ``original``, and runs other code.

    Classes with functions of their own for NumPy's (``__array_function__``), and SciPy's own tests,
    look functions up in tables: they find the original by its stand-in and the other way round.
    """

    def __new__(cls, original: Any, code: Callable[..., Any]) -> Standin:
        return object.__new__(type("function", (cls,), {"__call__": staticmethod(code)}))

    def __init__(self, original: Any, code: Callable[..., Any]) -> None:
        functools.update_wrapper(self, original)
        self._original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_original"], name)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self._original

    def __hash__(self) -> int:
        return hash(self._original)

    def __reduce__(self) -> str:
        return str(self._original.__name__)

    def __repr__(self) -> str:
        return repr(self._original)


def unseen(function: Any) -> Any:
    """The function itself; `warnings.warn` counts its frame no more than those of an import.

    So a warning is one of the line that calls what the function stands for.
    """
    code = function.__code__
    function.__code__ = code.replace(
        co_filename=f"<frozen importlib._bootstrap: {code.co_filename}>"
    )
    return function
