"""What stands in the place of other packages' functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any


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
