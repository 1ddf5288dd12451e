"""A plan: the candidates of a problem and their prices, as data and as it is printed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from itertools import groupby
from typing import Any, NamedTuple

from hetero.arrays import Operand
from hetero.errors import NotPriced, readable
from hetero.registry import ALWAYS, Implementation, Unasked
from hetero.registry.problem import Problem

CPU = "cpu"
AGAIN = "is this machine's CPU again"  # of an OpenCL device
ALL_AT_ONCE = "all at once"  # links of several devices
Terms = dict[str, float]  # seconds, by what they are spent on
_CHOSEN = "device", "method", "seconds"  # what is said of the chosen candidate


class Candidate(NamedTuple):
    """One priced way of doing a problem.

    Attributes
    ----------
    device, method : str
    seconds : float or None
        Prediction, the sum of ``terms``; None where no constants are known.
    terms : dict of str to float
        Seconds: "pack", "upload", "overhead", "compute", "download"; "look", where values on
        the host decide; "upload next", where its result would stay on the host, see
        `hetero.use`.
    reason : str or None
        Why this candidate was not considered; None where it was.
    implementation : Implementation or None
        None where the candidate stands for several.
    threads : int or None
        The number of the CPU's threads it takes: all of BLAS's, or of the loops' at most, which
        take fewer for little work. None where that is not known.
    links : str
        Kind of copies: "all at once", "staged"; "" where they are plain, or nothing moves.
    shares : tuple of Share
        The range of each device, of a call that several devices share; else empty.
    made_of : str
        The methods it is composed of, in words; "" where there are none.
    doubtful : bool
        Whether the constants that price it are off by more than 100 % in the mean.
    leads : bool
        False: prices alone decide. It was true of ways that came before faster ones.
    unasked : str
        The reason, where it would not hold if the caller named the method.
    """

    device: str
    method: str
    seconds: float | None
    terms: dict[str, float]
    reason: str | None
    implementation: Implementation | None
    threads: int | None = None
    links: str = ""
    shares: tuple[Share, ...] = ()
    made_of: str = ""
    leads: bool = False
    unasked: str = ""
    doubtful: bool = False


def total(one: Terms, other: Terms) -> Terms:
    """The seconds of both, term by term."""
    return one | {term: one.get(term, 0.0) + seconds for term, seconds in other.items()}


def with_terms(candidate: Candidate, *more: Terms) -> Candidate:
    """A candidate with additional terms; unchanged where it has no price."""
    if candidate.seconds is None:
        return candidate
    terms = reduce(total, more, candidate.terms)
    return candidate._replace(terms=terms, seconds=sum(terms.values()))


def possible(found: Iterable[Candidate]) -> list[Candidate]:
    """Candidates that nothing speaks against."""
    return [c for c in found if c.reason is None]


def rank(candidate: Candidate) -> tuple[bool, float, bool]:
    """The least is chosen; of ways without a price, what computes there alone comes first."""
    if candidate.seconds is None:
        row = candidate.implementation
        return True, row is not None and row.from_host, not candidate.device.endswith("*")
    return False, candidate.seconds, False


def is_last(candidate: Candidate) -> bool:
    """Whether a way that is out is printed behind others: it is hardly ever in."""
    row = candidate.implementation
    in_ranges = row and (row.blocks == ALWAYS or (candidate.device[-1] == "*" and not row.shared))
    return isinstance(candidate.reason, Unasked) or bool(in_ranges)


def _terms(c: Candidate) -> str:
    """What the prediction adds up, and on how many threads, over which links, by what."""
    text = " + ".join(f"{name} {readable(value)}" for name, value in c.terms.items())
    if c.threads is not None and c.implementation is not None:
        most = "at most " if c.implementation.loops else ""
        text += f", on {most}{c.threads} thread{'s' * (c.threads > 1)}"
    text += f", links {c.links}" if c.links else ""
    text += f": {c.made_of}" if c.made_of else ""
    return text + ("; not to be trusted: calibrate again" if c.doubtful else "")


class Share(NamedTuple):
    """The part of a call that one of several devices computes.

    Attributes
    ----------
    along : str
        What the call is cut into, such as "rows".
    begin, end : int
        The range of these.
    plan : Plan
        Of the range, on that device.
    """

    along: str
    begin: int
    end: int
    plan: Plan

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        one = self.plan.candidates[0]
        found = {"device": one.device, "method": one.method, "along": self.along}
        return {**found, "range": [self.begin, self.end], "seconds": one.seconds}

    def __str__(self) -> str:
        one = self.plan.candidates[0]
        return f"{one.method} on {one.device}: {self.along} {self.begin}:{self.end}"


class KeptOperand(NamedTuple):
    """An operand that does not change, in a plan."""

    position: int  # among the problem's inputs
    operand: Operand
    moves_to: str  # device that it is moved to with this call, to stay there; "" where it is not
    # Device -> seconds that calls lost by now, this one too, by what is not there, and of its move.
    lost: dict[str, tuple[float, float]]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with the position from 1."""
        return {
            "operand": self.position + 1,
            "copies": list(self.operand.copies),
            "moves_to": self.moves_to or None,
            "lost": {name: {"seconds": s, "move": m} for name, (s, m) in self.lost.items()},
        }

    def __str__(self) -> str:
        o = self.operand
        found = [f"copy on {name}" for name in o.copies]
        if self.moves_to:
            found.append(f"moved to {self.moves_to} with this call, to stay there")
        for name, (lost, move) in self.lost.items():
            if name not in (self.moves_to, *o.copies):
                lost, move = readable(lost), readable(move)
                found.append(f"{lost} of {move} lost by not moving it to {name}")
        where = ", ".join(found) or "no copy"
        return f"kept: operand {self.position + 1}, {o.shape} {o.dtype.name}: {where}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The priced candidates of a problem, the chosen one first; or the parts it is done in.

    ``print(plan)``, or a prompt, shows them as a table; ``to_dict()`` is what
    ``hetero explain --json`` prints.

    Attributes
    ----------
    problem : Problem
    candidates : tuple of Candidate
        Empty where there are parts, each of which has its own.
    profile_name : str
        `Profile.title`.
    parts : tuple of Plan
        Done one after the other; empty where one candidate does the whole.
    whole : str
        How the parts make the whole, such as "sum of 2 real convolutions".
    moves : dict of str to float
        Seconds of what the whole needs in addition to its parts, such as "download".
    keepable : bool
        Whether copies of operands on a device would make the call faster.
    kept : tuple of KeptOperand
        Operands that do not change, where copies of them count; see `hetero.moving.keeping`.
    """

    problem: Problem
    candidates: tuple[Candidate, ...]
    profile_name: str
    parts: tuple[Plan, ...] = ()
    whole: str = ""
    moves: dict[str, float] = field(default_factory=dict)
    keepable: bool = False
    kept: tuple[KeptOperand, ...] = ()

    @property
    def chosen(self) -> Candidate:
        """The candidate that runs.

        Of several parts the sum: its device and method are those that all parts agree on, or all
        their names, joined by "+".

        Raises
        ------
        NotPriced
            If none can run or none has constants.
        """
        if self.parts:
            return _together([part.chosen for part in self.parts], self.moves)
        best = self.candidates[0] if self.candidates else None
        if best is None or best.reason is not None:
            reasons = (f"{c.method} on {c.device}: {c.reason}" for c in self._shown(every=False))
            raise NotPriced(f"no candidate for {self.problem}: {'; '.join(reasons)}")
        return best

    @property
    def seconds(self) -> float | None:
        """Prediction for the chosen candidate, or for all parts together."""
        return self.chosen.seconds

    def leaves(self) -> Iterator[Plan]:
        """The plans that it consists of, each for one device, in the order in which they begin."""
        shares = self.candidates[0].shares if self.candidates else ()
        yield from (share.plan for share in shares)
        if not self.parts and not shares:
            yield self
        for part in self.parts:
            yield from part.leaves()

    def to_dict(self) -> dict[str, Any]:
        """Plain data: problem, profile, chosen, candidates; and of parts how they make the whole.

        ``chosen`` is None where none can run or none has constants. ``kept`` is there where an
        operand that does not change counts: its position from 1, where copies are, where it is
        moved with the call, and for other devices the seconds lost and those of the move.
        """
        try:
            chosen = self.chosen
        except NotPriced:
            chosen = None
        content = {
            "operation": self.problem.operation,
            "dims": list(self.problem.dims),
            "batch": self.problem.batch,
            "dtype": self.problem.dtype,
            "profile": self.profile_name,
            "chosen": chosen and {name: getattr(chosen, name) for name in _CHOSEN},
            "candidates": [_row(c) for c in self.candidates],
        }
        if self.kept:
            content["kept"] = [one.to_dict() for one in self.kept]
        if self.parts:
            parts = [part.to_dict() for part in self.parts]
            content |= {"whole": self.whole, "moves": dict(self.moves), "parts": parts}
        return content

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return self.text()

    def text(self, every: bool = False) -> str:
        """What is printed; with ``every`` also the ways that are only taken if they are named."""
        head = f"{self.problem}   (profile: {self.profile_name})"
        return "\n".join([head, *self._table(every)])

    def _shown(self, every: bool) -> list[Candidate]:
        """The candidates, or those that are not this machine's CPU once more."""
        return [c for c in self.candidates if every or not (c.reason and AGAIN in c.reason)]

    def _table(self, every: bool) -> list[str]:
        """Lines of the candidates; or of the parts with theirs, equal parts once."""
        if self.parts:
            lines = [f"-> {self.whole}{self._sum()}"]
            tables = ([str(part.problem), part._table(every)] for part in self.parts)
            for part, alike in groupby(tables):
                number = len(list(alike))
                times = f"{number} times " if number > 1 else ""
                lines += [f"   {times}{part[0]}", *(f"   {line}" for line in part[1])]
            return lines
        lines = []
        alone = sum(c.reason is None for c in self.candidates) == 1
        for position, c in enumerate(self._shown(every)):
            mark = "->" if position == 0 and c.reason is None else "  "
            head = f"{mark} {c.method + ' on ' + c.device:<22}"
            if c.reason is not None:
                lines.append(f"{head} {'-':>12}  {c.reason}")
            elif c.seconds is None:
                lines.append(f"{head} {'-':>12}  {'the only way; ' * alone}not priced")
            else:
                lines.append(f"{head} {readable(c.seconds):>12}  = {_terms(c)}")
            if position == 0:
                lines += [f"      {share}" for share in c.shares]
        return lines + [f"   {one}" for one in self.kept]

    def _sum(self) -> str:
        try:
            total = self.chosen
        except NotPriced:
            return ""
        if total.seconds is None:
            return ": not priced"
        moves = [f"{name} {readable(seconds)}" for name, seconds in self.moves.items()]
        return f": {readable(total.seconds)}" + (f", of it {' + '.join(moves)}" if moves else "")


def _row(c: Candidate) -> dict[str, Any]:
    """A candidate as plain data; what few have is left out of others."""
    row = {name: getattr(c, name) for name in (*_CHOSEN, "terms", "reason", "threads", "links")}
    row["terms"] = dict(c.terms)
    if c.doubtful:
        row["doubtful"] = True
    if c.shares:
        row["shares"] = [share.to_dict() for share in c.shares]
    return {**row, "made_of": c.made_of}


def _together(chosen: list[Candidate], moves: dict[str, float]) -> Candidate:
    """One candidate that stands for those of several parts."""
    terms = reduce(total, [part.terms for part in chosen], moves)
    known = all(part.seconds is not None for part in chosen)
    alike = all(part.implementation is chosen[0].implementation for part in chosen)
    return Candidate(
        "+".join(dict.fromkeys(part.device for part in chosen)),
        "+".join(dict.fromkeys(part.method for part in chosen)),
        sum(terms.values()) if known else None,
        terms if known else {},
        None,
        chosen[0].implementation if alike else None,
    )
