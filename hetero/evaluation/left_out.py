"""What is measured goes on without what fails: the rule of `verify`, `bench` and `demo`."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from hetero.errors import DeviceError, DeviceNotAvailable, MethodNotAvailable
from hetero.moving import failures

log = logging.getLogger("hetero")
Name = TypeVar("Name", bound=Hashable)


@contextmanager
def leaving_out(name: Name, failed: dict[Name, str]) -> Iterator[None]:
    """Run a block that measures a candidate; where it fails, note why, and go on after it.

    Inside, no other device takes over: what is measured is what the name says.

    Parameters
    ----------
    name : hashable
        Of the candidate.
    failed : dict
        Name -> why, in one line; the first reason stays. All of it is in the log at DEBUG.
    """
    try:
        with failures.without_fallback():
            yield
    except (DeviceError, DeviceNotAvailable, MethodNotAvailable) as error:
        failed.setdefault(name, str(error).partition("\n")[0])
        log.debug("%s failed", name, exc_info=True)


def warn(failed: dict[str, str]) -> None:
    """One warning for each candidate that was left out."""
    for name, reason in failed.items():
        log.warning("%s is left out: %s", name, reason)
