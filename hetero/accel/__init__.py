"""NumPy's, SciPy's and scikit-learn's own functions, computed where it is fastest.

``python -m hetero.accel script.py`` runs an unchanged script; `install` does so for the process
that calls it. What is caught, and what is left alone and why: docs/accel.md.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from types import ModuleType, SimpleNamespace
from typing import Any

from hetero import locks
from hetero.accel import products
from hetero.accel import session as sessions
from hetero.accel.functions import CALLS, Standin, standin
from hetero.accel.session import Session, unseen
from hetero.errors import one_of

__all__ = ["Installed", "install", "last", "summary", "uninstall"]

_ON, _OFF = ("1", "yes", "true", "on"), ("0", "no", "false", "off")  # HETERO_ACCEL
_lock = locks.new()
_installs: list[Installed] = []  # the same one for each `install` that has not ended
_book: Any = None  # of the last one


class Summary(str):
    """Text that a notebook and the interpreter show as it is printed."""

    __repr__ = str.__str__


class Installed(contextlib.AbstractContextManager["Installed"]):
    """What `install` gives: a context manager that uninstalls at its end.

    Attributes
    ----------
    session : Session
    missed : list of str
        Names by which modules had imported functions before: "script.fftconvolve". Their calls are
        not caught.
    """

    def __init__(self, session: Session) -> None:
        self.session = sessions.current = session
        self._ends = contextlib.ExitStack()  # what puts NumPy's loops and methods back
        self._originals: list[Any] = []
        self._finder = SimpleNamespace(find_spec=self._find)
        sys.meta_path.insert(0, self._finder)
        for name in CALLS:
            if sys.modules.get(name) is not None:
                self._patch(name)
        wanted, own = set(map(id, self._originals)), set(map(_package, CALLS))
        others = ((name, names) for name, names in _modules() if _package(name) not in own)
        held = ((name, key, value) for name, names in others for key, value in [*names.items()])
        self.missed = sorted({f"{name}.{key}" for name, key, value in held if id(value) in wanted})

    def __exit__(self, *error: object) -> None:
        uninstall()

    def restore(self) -> None:
        """Put back all that was replaced; what scripts hold calls the originals from now on."""
        sessions.current = None
        self._ends.close()
        with contextlib.suppress(ValueError):  # somebody has put back an older list
            sys.meta_path.remove(self._finder)
        for _, names in _modules():  # also where it was imported by name meanwhile
            for key, value in list(names.items()):
                if issubclass(type(value), Standin):
                    names[key] = value.__wrapped__

    def _find(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Python's spec of a module, which is patched once it was executed."""
        spec = PathFinder.find_spec(name, path, target) if name in CALLS else None
        if spec is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            @unseen
            def exec_module(module: ModuleType) -> None:
                execute(module)
                if sessions.current is self.session:
                    self._patch(name)

            loader.exec_module = exec_module
        return spec

    def _patch(self, module: str) -> None:
        """Replace the functions of a module, wherever its package holds them."""
        if module == "numpy":
            products.open_gate(self.session, self._ends)
        package = [names for name, names in _modules() if _package(name) == _package(module)]
        for dotted, call in CALLS[module].items():
            owner, _, name = dotted.rpartition(".")  # a method's class
            holder = getattr(sys.modules[module], owner, None) if owner else sys.modules[module]
            original = getattr(holder, name, None)
            if original is None or not call.gains(self.session):
                continue
            made = standin(f"{module}.{dotted}", original, call)
            self._originals.append(original)
            if owner:
                setattr(holder, name, made)
                self._ends.callback(setattr, holder, name, original)
            for names in () if owner else package:
                if names.get(name) is original:
                    names[name] = made


def _modules() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each module's name and what it holds. None of its own code runs: that would load modules that
    are to be loaded when they are used (`importlib.util.LazyLoader`)."""
    for name, module in list(sys.modules.items()):
        if issubclass(type(module), ModuleType):
            yield name, object.__getattribute__(module, "__dict__")


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
        print(f"hetero.accel: {one_of('HETERO_ACCEL', (*_ON, *_OFF), asked)}", file=sys.stderr)


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
    if missed := [name for name in install().missed if "._" not in name]:
        text = "imported before and not caught, import again:"
        print("hetero.accel:", text, ", ".join(missed), file=sys.stderr)


def unload_ipython_extension(ipython: Any) -> None:
    """``%unload_ext hetero.accel``."""
    uninstall()
