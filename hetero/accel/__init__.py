"""NumPy's, SciPy's and scikit-learn's own functions, computed where it is fastest.

``python -m hetero.accel script.py`` runs a script that knows nothing of hetero; `install` does so
for the process that calls it. What is caught, and what is left alone and why: docs/accel.md.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

from hetero import locks
from hetero.accel import products
from hetero.accel.functions import CALLS, Standin
from hetero.accel.session import Session, unseen
from hetero.imports import load

__all__ = ["Installed", "install", "last", "summary", "uninstall"]

_ON, _OFF = ("1", "yes", "true", "on"), ("0", "no", "false", "off")  # HETERO_ACCEL
log = logging.getLogger("hetero")
_lock = locks.new()
_installs: list[Installed] = []  # the same one for each `install` that has not ended
_book: Any = None  # of the last one


class Summary(str):
    """Text that a notebook and the interpreter show as it is printed."""

    __repr__ = str.__str__


class Installed:
    """What `install` gives: a context manager that uninstalls at its end.

    Attributes
    ----------
    session : Session
    missed : list of str
        Names by which modules had imported functions before: "script.fftconvolve". Their calls are
        not caught.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.ends = contextlib.ExitStack()  # what puts NumPy's loops back
        self._replaced: list[tuple[Any, Any]] = []  # holders, originals
        for name in CALLS:
            if sys.modules.get(name) is not None:
                load(name)  # which waits where another thread is importing it
                self._patch(name)
        self._finder = SimpleNamespace(find_spec=self._find)
        sys.meta_path.insert(0, self._finder)
        wanted, own = {id(original) for _, original in self._replaced}, set(map(_package, CALLS))
        others = [m for m in _modules() if _package(m.__name__) not in own]
        held = ((m.__name__, key, value) for m in others for key, value in [*vars(m).items()])
        self.missed = sorted({f"{name}.{key}" for name, key, value in held if id(value) in wanted})

    def __enter__(self) -> Installed:
        return self

    def __repr__(self) -> str:
        return f"hetero.accel is installed; not caught: {', '.join(self.missed) or 'none'}"

    def __exit__(self, *error: object) -> None:
        uninstall()

    def restore(self) -> None:
        """Put back all that was replaced; what scripts hold calls the originals from now on."""
        self.session.least = math.inf
        with contextlib.suppress(ValueError):  # somebody has put back an older list
            sys.meta_path.remove(self._finder)
        classes = [holder for holder, _ in self._replaced if isinstance(holder, type)]
        for holder in (*_modules(), *classes):  # also where it was imported by name meanwhile
            for key, value in list(vars(holder).items()):
                if isinstance(value, Standin):
                    setattr(holder, key, value.__wrapped__)
        self.ends.close()

    def _find(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The other finders' spec of a module, which is patched once it was executed."""
        if name not in CALLS:
            return None
        others = [f for f in sys.meta_path if f is not self._finder and hasattr(f, "find_spec")]
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((found for found in specs if found is not None), None)
        with contextlib.suppress(AttributeError):  # no module, or a loader that takes no attribute
            loader, execute = spec.loader, spec.loader.exec_module

            @unseen
            def exec_module(module: ModuleType) -> None:
                del loader.exec_module  # it is the class's again
                execute(module)
                if self.session.least < math.inf:
                    self._patch(name)

            loader.exec_module = exec_module
        return spec

    def _patch(self, module: str) -> None:
        """Replace the functions of a module, wherever its package holds them."""
        package = [m for m in _modules() if _package(m.__name__) == _package(module)]
        if module == "numpy":
            products.open_gate(self.session, self.ends)
        for dotted, call in CALLS[module].items():
            owner, _, name = dotted.rpartition(".")  # a method's class
            holder = getattr(sys.modules[module], owner, None) if owner else sys.modules[module]
            original = getattr(holder, name, None)
            if original is None:
                log.warning("%s.%s is left as it is: there is none", module, dotted)
            elif not isinstance(original, Standin) and call.gains(self.session):
                made = call.standin(self.session, f"{module}.{dotted}", original)
                for one in [holder] if owner else package:
                    if vars(one).get(name) is original:
                        setattr(one, name, made)
                        self._replaced.append((one, original))


def _modules() -> Iterator[Any]:
    return (m for m in list(sys.modules.values()) if isinstance(m, ModuleType))


def _package(name: str) -> str:
    return name.partition(".")[0]


def install(verbose: bool = False, dry_run: bool = False, **options: Any) -> Installed:
    """Have calls of NumPy, SciPy and scikit-learn computed where it is fastest, in this process.

    Parameters
    ----------
    verbose : bool
        Print each call that is taken or left alone, with the reason, on the standard error.
    dry_run : bool
        Decide, and take none.

    Returns
    -------
    Installed
        A context manager: ``with hetero.install():`` uninstalls at the block's end.

    Notes
    -----
    As many of `uninstall` end it. The options are those of the first `install`. Functions that a
    module imported by name before are not caught there.

    Examples
    --------
    >>> import numpy as np, hetero
    >>> with hetero.install():
    ...     (np.eye(2) @ np.eye(2)).sum()
    np.float64(2.0)
    """
    global _book
    with _lock:
        if _installs:
            one = _installs[0]
        else:
            one = Installed(options.pop("kind", Session)(verbose, dry_run, **options))
            _book = one.session.book
        _installs.append(one)
        return one


def uninstall() -> None:
    """Undo one `install`; the last one puts everything back as it was.

    Raises
    ------
    RuntimeError
        If nothing is installed.

    Examples
    --------
    >>> import hetero
    >>> installed = hetero.install()
    >>> hetero.uninstall()
    """
    with _lock:
        if not _installs:
            raise RuntimeError("hetero.accel is not installed")
        ended = _installs.pop()
        if not _installs:
            ended.restore()


def last() -> Any:
    """The note of the last call that was looked at: who computed it, and why; None before one."""
    return _book and _book.last


def summary() -> str:
    """What was taken, what was left alone and why, and what a script can change to gain more."""
    return Summary(_book or "nothing was installed")


# -- Ways in: an environment's scripts, pytest, IPython --------------------------------------------


def enable() -> None:
    """Install where the environment asks for it; called at the start of every Python process."""
    asked = os.environ.get("HETERO_ACCEL", "").lower()
    if asked in _ON and not _installs:
        install()
    elif asked not in (*_ON, *_OFF, ""):
        text = f"HETERO_ACCEL must be one of {', '.join((*_ON, *_OFF))}, got {asked!r}"
        print(f"hetero.accel: {text}", file=sys.stderr)


def pytest_configure(config: Any) -> None:
    """``pytest -p hetero.accel``: tests call what scripts would."""
    install(recording=True)


def pytest_unconfigure(config: Any) -> None:
    """Put everything back."""
    uninstall()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What was taken, below the tests' results."""
    for line in _book.sums():
        terminalreporter.write_line(f"hetero.accel: {line}")


def load_ipython_extension(ipython: Any) -> None:
    """``%load_ext hetero.accel``."""
    for name in install().missed:
        if not name.rpartition(".")[2].startswith("_"):
            text = "was imported before and is not caught: import it again"
            print(f"hetero.accel: {name} {text}", file=sys.stderr)


def unload_ipython_extension(ipython: Any) -> None:
    """``%unload_ext hetero.accel``."""
    uninstall()
