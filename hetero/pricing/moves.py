"""What moves for a call, and how long that takes: to one device and back, or to several at once.

A call on host arrays that all devices of a kind share is cut into a range for each. Each device
moves its own range over its own bus while the others do the same, so links are as fast as they are
when all copy at once.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import accumulate

from hetero import registry
from hetero.arrays import HOST, Operand
from hetero.devices import peers
from hetero.host.copying import staging
from hetero.pricing.places import Info
from hetero.pricing.plan import CPU, Candidate, Terms, with_terms
from hetero.profile import PAGEABLE, Profile
from hetero.registry import Cut
from hetero.registry.problem import Problem

# Ranges begin at multiples of one of these, for tiles and wide loads; the least number of them.
_STEPS, _LEAST_STEPS = (64, 16, 4), 16


def moves(problem: Problem, name: str, constants: Profile) -> tuple[Terms, Terms, bool]:
    """Seconds of moves before and after computing on a device, by terms; whether some go through
    pinned buffers (`host.copying.staging`)."""
    here = HOST if name == CPU else name
    before: Terms = {}
    after: Terms = upload_next(problem, constants) if here == HOST else {}
    if here == HOST and problem.device is None:
        return before, after, False
    at_the_same_time: list[tuple[int, float]] = []  # bytes, and seconds alone
    staged = False

    def move(terms: Terms, operand: Operand, source: str, target: str) -> None:
        nonlocal staged
        if source == target or target in operand.copies:
            return
        nbytes = operand.nbytes
        if source != HOST:  # device to device goes through the host
            memory = operand.memory if target == HOST else PAGEABLE
            term = constants.link(source, "download", memory)(nbytes)
            terms["download"] = terms.get("download", 0.0) + term
            is_large = nbytes >= constants.least_staged(source, "download")
            staged = staged or (is_large and not operand.pinned)
        if target != HOST:
            is_packed = source == HOST and terms is before and not operand.is_dense()
            memory = PAGEABLE if is_packed or source != HOST else operand.memory
            term = constants.link(target, "upload", memory)(nbytes)
            is_large = nbytes >= constants.least_staged(target, "upload")
            staged = staged or (is_large and not operand.pinned)
            if is_large and memory == PAGEABLE and terms is before:
                at_the_same_time.append((nbytes, term))
            if is_packed:
                packing = constants.pack(nbytes)
                if is_large and operand.strides[-1] == operand.dtype.itemsize:
                    # Whole rows are packed by the threads that copy.
                    packing = max(packing / staging.usual_threads() - term, 0.0)
                terms["pack"] = terms.get("pack", 0.0) + packing
            terms["upload"] = terms.get("upload", 0.0) + term

    for operand in problem.inputs:
        move(before, operand, operand.location, here)
    if len(at_the_same_time) > 1:  # between one after the other and one copy of them all
        together = constants.link(here, "upload", PAGEABLE)(sum(n for n, _ in at_the_same_time))
        before["upload"] += 0.5 * min(together - sum(s for _, s in at_the_same_time), 0.0)
    if problem.next_device is None:
        move(after, problem.output, here, problem.output.location)
    return before, after, staged


def upload_next(problem: Problem, constants: Profile) -> Terms:
    """Seconds to upload a result on the host to the device that is expected to use it next; empty
    where that, or its link, is not known."""
    if problem.next_device is None:
        return {}
    with suppress(KeyError):
        link = constants.link(problem.next_device, "upload")
        return {"upload next": link(problem.output.nbytes)}
    return {}


def to_all(problem: Problem, info: Info, constants: Profile) -> tuple[Terms, Terms]:
    """Seconds to move shares of the operands from the host to several devices, which ``info``
    describes as `groups` does, and the result back; KeyError if the links are not known."""
    members = info["members"]

    def seconds(direction: str, operand: Operand) -> float:
        nbytes = operand.nbytes // len(members)
        if nbytes < peers.LEAST:  # one after the other
            return len(members) * constants.link(members[0], direction)(nbytes)
        return constants.at_once(info["constants"]).link(members[0], direction)(nbytes)

    before = sum(seconds("upload", operand) for operand in problem.inputs)
    return {"upload": before}, {"download": seconds("download", problem.output)}


# -- Calls that several devices share --------------------------------------------------------------


def cut(problem: Problem, parts: int) -> tuple[Cut, int] | None:
    """How a call is cut for several devices: along the axis that is long enough for the most of
    them, and along which they read the least; None where each would read all there is."""
    found = registry.cut(problem)
    if found is None:
        return None
    most = sum(o.nbytes for o in problem.inputs)
    best, key = None, (1, 0, 0)
    for axis, (_, extent) in enumerate(found.axes):
        number = min(extent, parts)
        if number > 1:
            box = found.box(axis, 0, -(-extent // number))
            read = sum(o.nbytes for o in found.problem(box, HOST).inputs)
            if read < most and (number, -read, extent) > key:
                best, key = axis, (number, -read, extent)
    return None if best is None else (found, best)


def moved(problem: Problem) -> int:
    """Bytes that go to a device and back, of a problem of host arrays."""
    return sum(o.nbytes for o in (*problem.inputs, problem.output) if o.location == HOST)


def contended(candidate: Candidate, part: Problem, constants: Profile) -> Candidate:
    """The price of a method that moves ranges both ways while it computes, on all devices at once.

    Staged copies of all devices share the host's threads: both directions add up. Pinned memory
    moves both ways at once. A range is at most half an operand, so half of the shorter of copying
    and computing overlaps with the longer.
    """
    moves = [*((o, "upload") for o in part.inputs), (part.output, "download")]
    staged, by_way = 0.0, {"upload": 0.0, "download": 0.0}
    with suppress(KeyError):  # links that are not known
        for operand, way in moves:
            seconds = 2 * constants.link(candidate.device, way, operand.memory)(operand.nbytes // 2)
            by_way[way] += seconds
            staged += 0.0 if operand.pinned else seconds
        both = max(staged, *by_way.values()), candidate.terms.get("compute", 0.0)
        more = max(both) + min(both) / 2 - (candidate.seconds or 0.0)
        return with_terms(candidate, {"upload": max(more, 0.0)})
    return candidate


def bounds(extent: int, weights: list[float]) -> list[tuple[int, int]]:
    """Ranges of 0 to ``extent``, which is no less than their number, in proportion to the weights;
    none is empty.

    >>> bounds(10, [1.0, 1.0, 1.0]), bounds(4096, [1.0, 3.0])
    ([(0, 3), (3, 7), (7, 10)], [(0, 1024), (1024, 4096)])
    """
    number, total = len(weights), sum(weights)
    step = next((s for s in _STEPS if extent >= s * _LEAST_STEPS * number), 1)
    cuts = [0]
    for index, reached in enumerate(accumulate(weights[:-1]), 1):
        at = round(extent * reached / total / step) * step
        cuts.append(min(max(at, cuts[-1] + 1), extent - number + index))
    return list(zip(cuts, [*cuts[1:], extent], strict=True))
