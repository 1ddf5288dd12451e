"""What method "hybrid" takes, by the constants of its parts.

White's sum (2013, sections 3.4, 3.5, 4.6.1 and 5.2), for k iterations and n unknowns of s bytes:

    T = T_up(A) + k (T_up(s n) + T_A p + T_down(s n) + T_vectors)

T_up and T_down are the links' (equations 3.14 and 3.15), T_A p is the device's matrix-vector
product (for sparse matrices and grids, which have no product alone: the device's whole iteration,
which holds one). He gives no time for vectors: T_vectors is the share of the CPU's iteration that
is theirs by operations, 10 n of 2 nnz + 10 n.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hetero import registry
from hetero.ops.cg.operands import NAME
from hetero.pricing import movement
from hetero.pricing.plan import CPU
from hetero.profile import Profile
from hetero.registry import Price
from hetero.registry.models import Work
from hetero.registry.problem import Problem

_MADE_OF = "A p there, vectors on the CPU"
_OPERANDS = {"dense": 1, "csr": 3}  # of a matrix, ahead of the vectors


def price(problem: Problem, name: str, info: dict[str, Any], constants: Profile) -> Price:
    """The terms of a solve on a device; None where a part's constants are not known."""
    repeat = problem.options.iterations
    nbytes = problem.output.nbytes
    count = _OPERANDS.get(problem.layout, 0)
    matrix = replace(problem, inputs=problem.inputs[:count])
    vectors = replace(problem, inputs=problem.inputs[count:])
    own = _iteration(problem, name, info, constants)
    cpu = _iteration(problem, CPU, {"kind": CPU}, constants)
    if own is None or cpu is None:
        return Price(None, _MADE_OF)
    (setup, product, _), (_, step, work) = own, cpu
    try:
        before, _ = movement.of(matrix, name, constants)
        around, after = movement.of(vectors, CPU, constants)
        if problem.next_device is None:  # else the caller adds what comes after
            around = movement.total(around, after)
        each = {
            "upload": repeat * constants.link(name, "upload")(nbytes),
            "download": repeat * constants.link(name, "download")(nbytes),
        }
    except KeyError:
        return Price(None, _MADE_OF)
    if problem.layout == "dense":
        key = name, info["kind"], "matvec", "tiled", problem.dtype, "C aligned"
        if (cost := constants.cost(*key)) is not None:
            n, itemsize = problem.dims[0], nbytes // problem.dims[0]
            product = sum(cost(Work((n, n), 2.0 * n * n, float(n * n * itemsize))))
    of_vectors = step * 10.0 * problem.dims[0] / work.flops
    terms = {"overhead": setup, "compute": repeat * (product + of_vectors)}
    return Price(movement.total(movement.total(before, each), {**around, **terms}), _MADE_OF)


def _iteration(
    problem: Problem, place: str, info: dict[str, Any], constants: Profile
) -> tuple[float, float, Work] | None:
    """Set-up, one iteration and its work by the place's own method; None where not known."""
    for row in registry.considered(NAME):
        if row.kind != info["kind"] or row.price or row.excludes(problem, info):
            continue
        key = place, row.kind, NAME, row.method, problem.dtype, problem.layout
        if (cost := constants.cost(*key)) is not None:
            work = row.work(problem, info)._replace(repeat=1)
            return *cost(work), work
    return None
