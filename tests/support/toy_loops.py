"""A loop that compiles in a moment, as a family of loops has them, for test_compiling.py."""

from __future__ import annotations

import os
import time

from hetero.host import threads
from hetero.host.compiled import loops

FAMILY = loops.register(loops.Family("toys", 3.0, f"{__name__}:examples"))
NAME = FAMILY.of("float64")


@threads.serial
def times(x):
    return 2.0 * x


def examples(dtype):
    """Call it; each process that does adds a line to a file, and may be told to take long."""
    with open(os.environ["TOYS"], "a", encoding="utf-8") as file:
        print(os.getpid(), os.nice(0), file=file)
    time.sleep(float(os.environ.get("TOYS_SECONDS", "0")))
    times(dtype.type(1.0))
