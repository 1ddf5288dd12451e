"""One way to do a problem, on one device or on several together: whether it can, and its price.

The price is that of compute plus the movement that it needs, by the constants of one profile.
"""

from __future__ import annotations

from typing import Any

from hetero import registry
from hetero.arrays import HOST
from hetero.pricing import compiling, memory_limit, movement
from hetero.pricing.plan import AGAIN, CPU, Candidate
from hetero.profile import STAGED, Profile
from hetero.registry import BLAS, LOOPS, Implementation
from hetero.registry.problem import Problem

ALL_AT_ONCE = "all at once"
UNKNOWN = "no constants in this profile; hetero.calibrate() measures them"
UNKNOWN_THERE = "no constants in this profile"
_THREADS = {BLAS: "blas_threads", LOOPS: "cores"}  # where a CPU's description has their number


def candidate(
    problem: Problem,
    implementation: Implementation,
    name: str,
    info: dict[str, Any],
    constants: Profile,
    asked_for: bool,
) -> Candidate:
    """One way to do a problem on one device, or on several together, with its price.

    Parameters
    ----------
    problem, implementation
    name : str
        The device's.
    info : dict
        Its description.
    constants : Profile
    asked_for : bool
        Whether the caller names the device.
    """
    method = implementation.method
    reason = info.get("set_aside")
    if reason is None and not asked_for:
        if info.get("is_host_cpu"):
            reason = f"{name} {AGAIN}; name it with device= to use it"
        elif info.get("same_as") and problem.device != name:
            reason = f"the same as {info['same_as']}"
    if reason is None and name != CPU:
        reason = problem.device_obstacle or _elsewhere(problem, name)
        if reason is None and implementation.blocks != registry.ALWAYS:
            short = too_large(problem, name, info)
            reason = None if implementation.blocks == registry.WHEN_SHORT and asked_for else short
    if reason is None:
        reason = implementation.excludes(problem, info)
    if reason is None and name == CPU and not info.get("elsewhere"):
        reason = compiling.obstacle(implementation, problem)
    if reason is not None:
        return Candidate(name, method, None, {}, reason, implementation)
    if name == CPU and problem.device_obstacle:
        return Candidate(name, method, None, {}, None, implementation)
    if implementation.price is not None:
        return _of_others(problem, implementation, name, info, constants, asked_for)
    group = info.get("constants")
    key = (
        group or name,
        "" if group else implementation.kind,
        problem.operation,
        method,
        problem.dtype,
        problem.layout,
    )
    cost = constants.cost(*key)
    terms: dict[str, float] | None = None
    elsewhere = info.get("elsewhere", False)
    unknown: str | None = UNKNOWN_THERE if elsewhere else UNKNOWN
    here = name == CPU and not elsewhere
    pool = implementation.pool if name == CPU else None
    threads = info.get(_THREADS[pool]) if pool else None
    if cost is None and here:
        cost = compiling.stand_in_cost(implementation, problem)
    if cost is not None:
        try:
            work = implementation.work(problem, info)
            overhead, compute = cost(work)
            overhead *= work.calls
            # Calls that several devices share go through the host, and are priced from there.
            before, after = movement.of(problem, CPU if group else name, constants)
            if group and constants.moves_apart(*key):
                shares = movement.to_all(problem, info, constants)
                before, after = movement.total(before, shares[0]), movement.total(shares[1], after)
        except (KeyError, ValueError) as error:  # of other dimensions: ValueError
            unknown = f"the profile's constants do not cover it: {error}"
            asked_for = False
        else:
            overhead += 0.0 if group else _dispatch(problem, name, constants)
            terms = {**before, "overhead": overhead, "compute": compute}
            terms = movement.total(terms, after) if after else terms
    if terms is None:
        reason = None if (name == CPU or asked_for) and not elsewhere else unknown
        return Candidate(name, method, None, {}, reason, implementation)
    links = ALL_AT_ONCE if group and constants.moves_apart(*key) else ""
    if (before or after) and not group and movement.is_staged(problem, name, constants):
        links = ", ".join(filter(None, (links, STAGED)))
    seconds = sum(terms.values())
    doubtful = cost is not None and constants.is_doubtful(*key)
    row = name, method, seconds, terms, None, implementation, threads, links
    return Candidate(*row, doubtful=doubtful)


def _of_others(
    problem: Problem,
    implementation: Implementation,
    name: str,
    info: dict[str, Any],
    constants: Profile,
    asked_for: bool,
) -> Candidate:
    """A candidate of a method that is composed of others, priced by theirs."""
    assert implementation.price is not None
    terms, made_of, reason, *how = implementation.price(problem, name, info, constants)
    if terms is not None and implementation.from_host:
        terms = {**terms, **movement.upload_next(problem, constants)}
    elsewhere = info.get("elsewhere", False)
    if terms is None and reason is None and (elsewhere or not asked_for):
        reason = UNKNOWN_THERE if elsewhere else UNKNOWN
    seconds = None if terms is None else sum(terms.values())
    row = name, implementation.method, seconds, terms or {}, reason, implementation
    return Candidate(*row, None, "", (), made_of, *how)


def _dispatch(problem: Problem, name: str, constants: Profile) -> float:
    """Seconds of the host's own work: staging for a device, or the way back from one."""
    if name != CPU:
        return constants.dispatch(name, "device" if problem.device else "host")
    there = problem.device
    return constants.dispatch(there, "detour") if there else 0.0


def _elsewhere(problem: Problem, name: str) -> str | None:
    """Why operands of another device cannot be moved: only dense blocks are."""
    for operand in (*problem.inputs, problem.output):
        if operand.location not in (HOST, name) and not operand.is_c_contiguous():
            return f"an operand on {operand.location} is not contiguous"
    return None


def serves_limit(implementation: Implementation, info: dict[str, Any]) -> bool:
    """Whether a method moves blocks, on a device with a memory limit: then it is considered for
    problems of any size."""
    return implementation.blocks == registry.ALWAYS and "memory_limit" in info


def too_large(problem: Problem, name: str, info: dict[str, Any]) -> str | None:
    """Why a device has no room for a problem's operands, None where it has.

    With a memory limit, copies that are on the device already count as well.
    """
    needed, limited = 0, "memory_limit" in info
    for operand in (*problem.inputs, problem.output):
        if operand.location != name and (limited or name not in operand.copies):
            needed += operand.nbytes
    return memory_limit.too_much(needed, info)
