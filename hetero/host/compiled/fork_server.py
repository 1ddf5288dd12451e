"""A server process that forks the processes that compile the CPU's loops.

Importing Numba and filling its tables of types takes as long as compiling a small family. Here one
process does that, and every process that compiles is a fork of it. It runs no threads, so that a
fork is complete. It ends, with all of its children, when the process that started it is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import traceback

from hetero.host.compiled import loops
from hetero.imports import in_child, load

_COMMAND = "from hetero.host.compiled import fork_server; fork_server.serve()"
_LOOK, _IDLE = 0.01, 0.5  # seconds between two polls of the children, and of the client
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_IMPORTED = "hetero.host.threads"  # by all loops


def environment() -> dict[str, str]:
    """The environment of processes that compile loops, and start no others for that."""
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    # Both ways to compile for threads need two threads; more gain nothing.
    threads = dict.fromkeys(_ONE_THREAD, "1") | {"NUMBA_NUM_THREADS": "2"}
    return variables | threads | {loops.OFF: "0"}


class Server:
    """The client's side of the server process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            in_child(_COMMAND),
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for those who wait
        )
        os.set_blocking(self._process.stdout.fileno(), False)
        self._begun: list[Child] = []
        self._text = b""
        self.is_gone = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def begin(self, name: str) -> Child:
        """A process that compiles loops of one name."""
        child = Child(self)
        asked = name, loops.family_of(name).examples
        try:
            self._process.stdin.write(json.dumps(asked).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            self.is_gone = True
            raise OSError("the process that forks others has ended") from error
        self._begun.append(child)
        return child

    def look(self) -> None:
        """Take note of those that were begun, and of those that have ended."""
        while not self.is_gone:
            try:
                text = os.read(self._process.stdout.fileno(), 1 << 16)
            except BlockingIOError:
                break
            self.is_gone = not text
            self._text += text
        *lines, self._text = self._text.split(b"\n")
        for line in lines:
            number, pid = json.loads(line)
            child = self._begun[number]
            child.has_ended = child.pid == pid  # None if it could not be forked
            child.pid = pid

    def stop(self) -> None:
        """Kill it and all of its children; wait for their end."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # another one may be ignored
        self._process.wait()
        os.set_blocking(self._process.stdout.fileno(), True)
        self._process.stdout.read()  # ends when none has the pipe's other end
        for file in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                file.close()
        self.is_gone = True


class Child:
    """A process that compiles.

    Attributes
    ----------
    pid : int or None
        None as long as it has not begun.
    has_ended : bool
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self.pid: int | None = None
        self.has_ended = False

    def poll(self) -> int | None:
        """0 if it has ended in any way; else None."""
        if not (self.has_ended or self._server.is_gone):
            self._server.look()
        return 0 if self.has_ended or self._server.is_gone else None


def serve() -> None:
    """Fork a process for each line of the standard input, until that ends; report when they begin
    and end. The children end with this process, however that ends."""
    try:
        _serve()
    finally:  # also where nobody reads the standard output any more
        os.killpg(0, signal.SIGKILL)


def _serve() -> None:
    asker = os.getppid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the client may ignore it, which is inherited
    said = os.dup(sys.stdout.fileno())  # each child holds it open until it ends
    _discard_output()
    load(_IMPORTED)
    numbers: dict[int, int] = {}  # process -> the line that asked for it
    asked, left = 0, b""

    def say(number: int, pid: int | None) -> None:
        os.write(said, json.dumps((number, pid)).encode() + b"\n")

    while os.getppid() == asker:  # a fork of the client may hold the input open
        if select.select([0], [], [], _LOOK if numbers else _IDLE)[0]:
            text = os.read(0, 1 << 16)
            if not text:
                return
            *lines, left = (left + text).split(b"\n")
            for line in lines:
                pid = _forked(*json.loads(line))
                if pid is not None:
                    numbers[pid] = asked
                say(asked, pid)
                asked += 1
        while numbers:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            say(numbers.pop(pid), pid)


def _discard_output() -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _forked(name: str, examples: str) -> int | None:
    """A copy of this process that compiles loops of one name; None if there is no room for one."""
    with contextlib.suppress(Exception):  # the copy will fail by it
        load(examples.partition(":")[0])
    try:
        pid = os.fork()
    except OSError:
        return None
    if pid:
        return pid
    try:
        loops.compile_here(name, examples)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
