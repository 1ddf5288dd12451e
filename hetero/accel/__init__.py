"""NumPy's, SciPy's and scikit-learn's own functions, computed where it is fastest.

``python -m hetero.accel script.py`` runs a script that knows nothing of hetero; `install` does so
for the process that calls it. What is caught, and what is left alone and why: docs/accel.md.

=============  =====================================================================================
`patching`     functions of other packages replaced, and put back
`gate`         machine code in front of NumPy's loops of `matmul`, which offers large products
`session`      whether a call is looked at, what its plan says, who computes it
`loading`      whether loading hetero pays; what is kept of a script's run for the next one
`products`     ``@`` and all that is one; `functions` convolutions, CG and k-means
`notes`        what was taken and what was not, with the reasons
`advice`       what another machine would do
=============  =====================================================================================
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import Any

from hetero import locks
from hetero.imports import load

__all__ = ["Installed", "install", "last", "summary", "uninstall"]

log = logging.getLogger("hetero")
_SIGNAL = "convolve2d", "fftconvolve", "oaconvolve", "correlate2d", "convolve"
_HOMES = {  # module -> where its replacements are made, and of which of its names
    "numpy": ("products", ("dot", "einsum")),
    "scipy.signal": ("functions", _SIGNAL),
    "scipy.ndimage": ("functions", ("convolve", "correlate")),
    "scipy.sparse.linalg": ("functions", ("cg",)),
    "sklearn.cluster": ("functions", ("KMeans.fit",)),
}
_ON, _OFF = ("1", "yes", "true", "on"), ("0", "no", "false", "off")  # HETERO_ACCEL
_lock = locks.new()
_state: dict[str, Any] = {"installed": None, "book": None}


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

    def __init__(self, session: Any) -> None:
        self.session, self.count = session, 1
        self._stack = contextlib.ExitStack()  # of what is undone, whatever another one raises
        names = {module: names for module, (_, names) in _HOMES.items()}
        self._patches = load("hetero.accel.patching").Patches(names, self._replaced, self._done)
        self._patches.set()
        self.missed: list[str] = self._patches.missed()

    def __enter__(self) -> Installed:
        return self

    def __repr__(self) -> str:
        return f"hetero.accel is installed; not caught: {', '.join(self.missed) or 'none'}"

    def __exit__(self, *error: object) -> None:
        uninstall()

    def restore(self) -> None:
        """Put back all that was replaced; what scripts hold calls the originals from now on."""
        self.session.least = float("inf")
        self._stack.push(lambda *error: self._patches.restore())
        self._stack.close()

    def _replaced(self, name: str, original: Any) -> Any:
        home, _ = _HOMES[next(module for module in _HOMES if name.startswith(f"{module}."))]
        return load(f"hetero.accel.{home}").replaced(self.session, name, original)

    def _done(self, module: str) -> None:
        if module != "numpy" or not (products := load("hetero.accel.products")).gains(self.session):
            return
        try:
            self._stack.enter_context(products.caught_loops(self.session))
        except (load("hetero.accel.gate").Unknown, AttributeError, ValueError) as error:
            log.warning("A @ B is left as it is: %s", error)


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
    with _lock:
        if _state["installed"] is None:
            kind = options.pop("kind", load("hetero.accel.session").Session)
            session = kind(verbose, dry_run, **options)
            _state.update(installed=Installed(session), book=session.book)
        else:
            _state["installed"].count += 1
        return _state["installed"]  # type: ignore[no-any-return]


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
        installed = _state["installed"]
        if installed is None:
            raise RuntimeError("hetero.accel is not installed")
        installed.count -= 1
        if not installed.count:
            _state["installed"] = None
            installed.restore()


def last() -> Any:
    """The note of the last call that was looked at: who computed it, and why; None before one."""
    return _state["book"] and _state["book"].last


def summary() -> str:
    """What was taken, what was left alone and why, and what a script can change to gain more."""
    return Summary(_state["book"] or "nothing was installed")


# -- Ways in: an environment's scripts, pytest, IPython --------------------------------------------


def enable() -> None:
    """Install where the environment asks for it; called at the start of every Python process."""
    asked = os.environ.get("HETERO_ACCEL", "").lower()
    if asked in _ON and _state["installed"] is None:
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
    for line in _state["book"].sums():
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
