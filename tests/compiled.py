"""What compilers made for tests, kept for later runs while nothing that it is made of changes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from hetero import disk_cache


def remembered(make: Callable[[], bytes], *made_of: object) -> bytes:
    """What ``make()`` gives, or gave in another run of all that it is made of.

    Parameters
    ----------
    make : callable
    *made_of : objects
        Texts, options and the compiler's version; what has another `repr` is made anew.
    """
    name = hashlib.sha256(repr(made_of).encode()).hexdigest()
    found = disk_cache.read("compiled", name)
    if found is None:
        found = make()
        disk_cache.write("compiled", name, found)
    return found
