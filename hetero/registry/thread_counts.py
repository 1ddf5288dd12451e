"""The number of the CPU's threads that a method gets, as measured to be fastest.

Little work takes few threads: waking one more and waiting for it can cost more than it saves. The
model of a method on the CPU may have a part "threads": amounts of work, the number of threads that
was fastest for each, and its time over that of all threads. The work is that between two barriers:
one product of a batch, one step of a solve. Between two amounts the nearer one counts, by ratio;
beyond them the last one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise
from math import sqrt
from typing import Any, NamedTuple

from hetero.host import limits
from hetero.imports import load
from hetero.registry import Implementation
from hetero.registry.models import Work


class Threads(NamedTuple):
    """The number of threads of a run.

    Attributes
    ----------
    number : int
        Of BLAS's threads; of the loops' at most, which take fewer for little work by themselves.
    of : int
        The number of all threads.
    ratio : float
        Seconds over those on all threads.
    wanted : int
        The number measured to be faster than all; 0 where all are best. BLAS may take another
        one: see `now`.
    """

    number: int
    of: int
    ratio: float = 1.0
    wanted: int = 0


def pool(implementation: Implementation) -> str | None:
    """The pool of threads that an implementation for the CPU runs on, if it is a single one."""
    if implementation.kind != "cpu":
        return None
    blas, loops = limits.BLAS in implementation.uses, limits.LOOPS in implementation.uses
    if blas == loops:
        return None
    return limits.BLAS if blas else limits.LOOPS


def all_of(implementation: Implementation, info: dict[str, Any]) -> Threads | None:
    """All threads of the CPU that ``info`` describes; None where that is not known."""
    part = {limits.BLAS: "blas_threads", limits.LOOPS: "cores"}.get(pool(implementation) or "")
    number = info.get(part) if part else None
    return Threads(number, number) if number else None


def choose(table: dict[str, Any], work: Work) -> Threads:
    """The number of threads for some work, by the part "threads" of a model."""
    sizes = table["flops"]
    row = bisect_right([sqrt(a * b) for a, b in pairwise(sizes)], work.flops)
    number, of = table["threads"][row], table["of"]
    return Threads(number, of, table["ratio"][row], number if number < of else 0)


def now(threads: Threads, blas: limits.State | None) -> Threads:
    """The threads of a run on BLAS in its current state, where it should take ``threads``."""
    if blas is None:
        return Threads(threads.of, threads.of)
    number = blas.taken(threads.number)
    ratio = threads.ratio if number == threads.number else 1.0
    return Threads(number, blas.number, ratio, threads.wanted)


def check(table: dict[str, Any]) -> None:
    """Raise ValueError, KeyError or TypeError if a model's part "threads" is wrong."""
    sizes, numbers, ratios, of = (table[key] for key in ("flops", "threads", "ratio", "of"))
    if not 0 < len(sizes) == len(numbers) == len(ratios):
        raise ValueError(
            f"threads: {len(sizes)} sizes, {len(numbers)} numbers, {len(ratios)} ratios"
        )
    if not sizes[0] > 0.0 or not all(a < b for a, b in pairwise(sizes)):
        raise ValueError(f"threads: flops must increase from above 0, got {sizes}")
    if not all(type(n) is int and 1 <= n <= of for n in numbers):
        raise ValueError(f"threads: numbers must be from 1 to {of}, got {numbers}")
    if not all(0.0 < ratio <= 1.0 for ratio in ratios):
        raise ValueError(f"threads: ratios must be above 0 and up to 1, got {ratios}")


def limited(
    implementation: Implementation, threads: Threads | None, function: Callable[..., Any]
) -> Callable[..., Any]:
    """A function that runs an implementation on its plan's number of threads."""
    if threads is None or threads.number >= threads.of:
        return function
    library = pool(implementation)
    if library == limits.LOOPS:
        load("hetero.host.threads")
    return function if library is None else limits.limited(library, threads.number, function)
