"""hetero's loops as threadpoolctl sees them, so that its limits hold for them too."""

from __future__ import annotations

import sys
from typing import Any

from hetero.imports import load

_API, _LIBRARY = "hetero", "numba"
_PREFIXES = ("tbbpool", "omppool", "workqueue")  # of the library with the threads of Numba's loops


class _Registered:
    """The controller, known to threadpoolctl until hetero.accel is restored."""

    def __init__(self) -> None:
        library = sys.modules["threadpoolctl"]
        lists = ("_ALL_CONTROLLERS", "_ALL_USER_APIS", "_ALL_INTERNAL_APIS", "_ALL_PREFIXES")
        self._lists = [(names := getattr(library, name), list(names)) for name in lists]
        library.register(_controller(library.LibController))

    def restore(self) -> None:
        """Have threadpoolctl forget it."""
        for now, before in self._lists:
            now[:] = before
        library = sys.modules["threadpoolctl"]
        getattr(getattr(library, "_CDLL_CACHE", None), "_controller_cache", {}).clear()
        getattr(library, "reset_cached_controller", lambda: None)()


def others(session: Any, module: str) -> list[Any]:
    """What is restored when hetero.accel is."""
    return [_Registered()]


def _controller(base: Any) -> Any:
    class Controller(base):  # type: ignore[misc,valid-type]
        """Numba's threads, of which each of Python's threads has a number of its own."""

        user_api, internal_api, filename_prefixes = _API, _LIBRARY, _PREFIXES

        def get_num_threads(self) -> int:
            return int(load("hetero.host.threads").thread_count())

        def set_num_threads(self, num_threads: int) -> None:
            threads = load("hetero.host.threads")
            threads.thread_count()  # starts them
            most = load("numba").config.NUMBA_NUM_THREADS
            threads.layers._set_num_threads(max(1, min(num_threads, most)))

        def get_version(self) -> str:
            return str(load("numba").__version__)

    return Controller
