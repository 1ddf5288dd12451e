"""One way to do a problem, for ranges of a call; see `hetero.pricing.pricing`."""

from hetero.pricing import pricing
from hetero.pricing.pricing import ALL_AT_ONCE, UNKNOWN, UNKNOWN_THERE, too_large  # noqa: F401
from hetero.registry import ALWAYS


def candidate(problem, implementation, name, info, constants, asked_for):
    c = pricing.candidate(problem, implementation, name, info, constants, asked_for)
    return pricing._unless(c, True) if asked_for and c.seconds is None else c


def serves_limit(implementation, info):
    return implementation.blocks == ALWAYS and "memory_limit" in info
