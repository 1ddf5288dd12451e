"""What marks a kernel as a rung: a step of the way from a family's first kernel to its best."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Rung"]


class Rung(NamedTuple):
    """A step of a family's ladder.

    Attributes
    ----------
    number : int
        From 1 on; the ladder is climbed in this order.
    idea : str
        The one thing that is new.
    gain : str
        What that should gain over the rung before.
    threads : bool
        Of a loop on the CPU: several threads run it.
    """

    number: int
    idea: str
    gain: str
    threads: bool = False
