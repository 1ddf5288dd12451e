"""Python in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys


def forked(check):
    """Whether ``check()`` is true in a forked child."""
    child = os.fork()
    if not child:
        status = 2
        try:
            status = 0 if check() else 1
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0


def python(*arguments, code=0, timeout=300, cwd=None, **environment):
    """A process that ended with this exit code: what it printed, and complained of.

    ``environment`` comes on top of this process's; None takes a variable away.
    """
    given = {k: v for k, v in {**os.environ, **environment}.items() if v is not None}
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=given,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == code, (done.returncode, done.stdout[-3000:], done.stderr[-3000:])
    return done
