"""Compiling the CPU's loops in other processes; see `hetero.host.compiled.loops`.

In the background a machine compiles one family at a time, at the lowest priority, in a process that
outlives this one. A call that cannot wait gets a process at once. Loops that another process
compiles are waited for.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import numpy as np

from hetero import locks, paths
from hetero.host.compiled import fork_server, loops
from hetero.imports import in_child, load

_MANY = 1 << 15  # elements from which on vectors are worth importing Numba
_LOOK = 0.02  # seconds between two polls of the processes
_COMMAND = "from hetero.host.compiled import loops; loops.compile_here({!r}, {!r}, {!r})"
_LAST = 19  # the nice value in the background

log = logging.getLogger("hetero")


class _Background:
    """The queue of loops to compile in the background, and the thread that works it off."""

    def __init__(self) -> None:
        self.lock = locks.new()
        self.forget()

    def forget(self) -> None:
        """Reset to the state of a new process."""
        self.failed: set[str] = set()
        self.waiting: dict[str, threading.Event] = {}
        self.thread: threading.Thread | None = None

    def begin(self, name: str) -> None:
        """Queue loops for compiling, unless they are compiled or cannot be."""
        if loops.obstacle():
            return
        with self.lock:
            if name in self.waiting or name in self.failed or loops.is_ready(name):
                return
            self.waiting[name] = threading.Event()
            if self.thread is None:
                self.thread = threading.Thread(
                    target=self._work, name="hetero-compiles", daemon=True
                )
                try:
                    self.thread.start()
                except RuntimeError:  # no more threads, or the interpreter ends
                    self.forget()

    def _work(self) -> None:
        while True:
            with self.lock:
                name = next(iter(self.waiting), None)
                if name is None:
                    self.thread = None
                    return
            try:
                self._compile(name)
            finally:
                with self.lock:
                    done = self.waiting.pop(name, None)
                _ended(name)
                if done is not None:
                    done.set()

    def _compile(self, name: str) -> None:
        """Wait for the turn among this machine's processes, then for the process that compiles."""
        folder = loops.folder_of_lists()
        if folder is None:
            return
        try:
            with paths.locked(folder / "turn.lock") as lock:
                if not loops.is_ready(name):
                    _process(name, _LAST, lock).wait()
        except OSError as error:
            log.info("the loops of %s cannot be compiled ahead: %s", name, error)


_background = _Background()
begin = _background.begin
_listeners: list[Callable[[], None]] = []


def on_ready(listener: Callable[[], None]) -> None:
    """Call ``listener`` whenever loops have become ready."""
    _listeners.append(listener)


def wait(name: str, seconds: float | None = None) -> bool:
    """Wait for loops in the background queue; gives whether they are done."""
    event = _background.waiting.get(name)
    return event is None or event.wait(seconds)


class Serving:
    """The module for a dtype: that of the compiled loops, or another one until these are ready.

    Parameters
    ----------
    family : loops.Family
    compiled, meanwhile : str
        Names of the modules; the second one needs nothing compiled.
    """

    def __init__(self, family: loops.Family, compiled: str, meanwhile: str) -> None:
        self._family, self._names = family, (compiled, meanwhile)
        self._ready: dict[np.dtype, ModuleType] = {}  # what a call has to look up

    def __call__(self, dtype: np.dtype, size: int = _MANY) -> ModuleType:
        """For vectors of ``size`` elements; few do without Numba until somebody else imports it,
        which takes 0.4 s."""
        module = self._ready.get(dtype)
        if module is not None:
            return module
        compiled, meanwhile = self._names
        if size < _MANY and "numba" not in sys.modules:
            return load(meanwhile)
        name = self._family.of(dtype)
        if loops.is_ready(name):
            module = self._ready[dtype] = load(compiled)
            return module
        begin(name)
        return load(meanwhile)


class Processes:
    """Processes that compile loops now, a few more at a time than there are cores.

    Parameters
    ----------
    names : iterable of str
        Those that take longest are begun first.
    """

    def __init__(self, names: Iterable[str]) -> None:
        left = {name for name in names if not loops.is_ready(name)}
        self._left = sorted(left, key=lambda name: -loops.family_of(name).seconds)
        self._running: list[tuple[str, Any]] = []
        self._server: fork_server.Server | None = None
        try:
            self._begin()
        except BaseException:  # the caller does not get an object to stop
            self.stop()
            raise

    def _begin(self) -> None:
        cores = os.cpu_count() or 1
        # With one for each core the last two of eighteen would begin when sixteen have ended.
        while self._left and len(self._running) < cores + cores // 4:
            name = self._left.pop(0)
            try:
                self._running.append((name, self._process(name)))
            except OSError as error:
                log.info("the loops of %s cannot be compiled ahead: %s", name, error)
                _ended(name)

    def _process(self, name: str) -> Any:
        if self._server is None:
            self._server = fork_server.Server()
        return self._server.begin(name)

    def look(self) -> None:
        """Note which processes have ended, and begin others."""
        ended = [entry for entry in self._running if entry[1].poll() is not None]
        self._running = [entry for entry in self._running if entry not in ended]
        self._begin()
        for name, _ in ended:
            _ended(name)

    def wait(self) -> None:
        """Wait until all have ended."""
        try:
            while self._running:
                time.sleep(_LOOK)  # whichever ends first
                self.look()
        finally:
            self.stop()

    def stop(self) -> None:
        """End those that still run, and begin no others."""
        self._left.clear()
        if self._server is not None:
            self._server.stop()
        self._server = None
        self._running.clear()


def ensure(names: Iterable[str]) -> None:
    """Compile loops now; those that cannot be are compiled by the call that needs them."""
    Processes(names).wait()


def _ended(name: str) -> None:
    """Notify the listeners that loops are compiled; or warn once that they could not be."""
    if not loops.is_ready(name):
        if name not in _background.failed:
            log.warning("the loops of %s could not be compiled ahead of their use", name)
        _background.failed.add(name)
        return
    for listener in _listeners:
        listener()


def _process(name: str, nice: int, lock: int | None = None) -> subprocess.Popen[bytes]:
    """A process that compiles; it keeps a lock, given by its handle, if this one is killed."""
    command = _COMMAND.format(name, loops.family_of(name).examples, nice)
    return subprocess.Popen(
        in_child(command),
        pass_fds=() if lock is None else (lock,),
        env=fork_server.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for those who wait
    )


def _after_fork() -> None:
    """The thread is not there in a forked child, which asks again."""
    if _background.waiting:
        _background.forget()
        for listener in _listeners:
            listener()


os.register_at_fork(after_in_child=_after_fork)
