"""Method "hybrid" of conjugate gradients: A p on a device, vectors and scalars on the CPU.

After A. White, "Modeling and Optimization of Parallel Matrix-based Computations on GPU", Auburn
University, 2013, section 5.2: the matrix goes to the device once; in every iteration p follows it,
and A p comes back. The price is as measured whole, or White's sum (sections 3.4, 3.5, 4.6.1), for k
iterations and n unknowns of s bytes:

    T = T_up(n^2 s) + k (T_up(n s) + T_Mv + T_down(n s) + T_vectors)

T_up and T_down are the links' (equations 3.14 and 3.15), T_Mv is the device's matrix-vector
product. T_vectors, on the CPU, is the only constant of the method's own; he gives none, and his
profile has the bandwidth of his Mv for it, with 40 n bytes accessed by 5 n multiplications.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from hetero.devices.base import Device
from hetero.imports import load
from hetero.ops.solvers import cg_loop
from hetero.ops.solvers.cg_problem import NAME, work
from hetero.ops.solvers.systems import Outcome, on_vectors
from hetero.pricing import pricing
from hetero.pricing.plan import CPU, total
from hetero.profile import Profile
from hetero.registry import Arguments, Price, Problem
from hetero.registry.models import Work

_MADE_OF = "A p there, vectors on the CPU"
_OPERANDS = {"dense": 1, "csr": 3}  # of a matrix, ahead of the vectors


def price(problem: Problem, name: str, info: dict[str, Any], constants: Profile) -> Price:
    """The terms of a solve on a device; None where constants are not known, KeyError or ValueError
    where they do not cover it."""
    key = name, info["kind"], NAME, "hybrid", problem.dtype, problem.layout
    model, own = constants.model(*key), constants.cost(*key)
    if model is None or own is None:
        return Price(None, _MADE_OF)
    count = _OPERANDS.get(problem.layout, 0)
    before, *_ = pricing.moves(replace(problem, inputs=problem.inputs[:count]), name, constants)
    vectors = replace(problem, inputs=problem.inputs[count:])
    around, after, _ = pricing.moves(vectors, CPU, constants)
    if problem.next_device is None:  # else the caller adds what comes after
        around = total(around, after)
    if model["form"] == "solve":
        steps = dict(zip(("overhead", "compute"), own(work(problem, info)), strict=True))
    else:  # White's sum
        n, repeat, nbytes = problem.dims[0], problem.options.iterations, problem.output.nbytes
        product = constants.cost(*key[:2], "matvec", "tiled", problem.dtype, "C aligned")
        if product is None or problem.layout != "dense":
            return Price(None, _MADE_OF)
        of_matrix = Work((n, n), 2.0 * n * n, float(n * nbytes))
        of_vectors = Work((n,), 10.0 * n, 10.0 * nbytes)
        ways = {way: constants.link(name, way)(nbytes) for way in ("upload", "download")}
        seconds = ways | {"compute": sum(product(of_matrix)) + sum(own(of_vectors))}
        steps = {term: repeat * value for term, value in seconds.items()}
    return Price(total(total(before, around), steps), _MADE_OF)


def solve(devices: tuple[Device], problem: Problem, arguments: Arguments) -> Outcome:
    """Solve A x = b. Arrays of the system that lie on the host are uploaded for this call."""
    (b,), x, asked = arguments
    (device,), (system, M) = devices, asked.system(devices)
    with device.active():
        cg_launches = load("hetero.ops.solvers.cg_launches")
        part = cg_launches.Part(device, alone=True)
        part.allocate(b.nbytes, "p", "q")
        product = cg_launches.rows_of(part, system, (0, b.size), b.dtype).times("p")

        def times(p: np.ndarray, q: np.ndarray) -> None:
            part.upload(p, "p")
            part.start(*product)
            part.download("q", q)

        outcome = cg_loop.solve(cg_loop.Matrix(times), b, x, asked, M)
    return outcome._replace(right_side=on_vectors(b.dtype, b.size).norm(b))
