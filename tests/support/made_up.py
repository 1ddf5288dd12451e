"""A machine made up: numbers that can be added up by hand."""

from __future__ import annotations

from hetero import profile
from hetero.arrays import Spec
from hetero.calling import planner
from hetero.ops.products.public import matmul_problem


def roofline(overhead, flops, nbytes):
    return {
        "form": "roofline",
        "constants": {"overhead": overhead, "flops_per_second": flops, "bytes_per_second": nbytes},
    }


def link(seconds, rate):
    one = {"below": None, "bytes_per_second": rate, "seconds_per_byte": 0.0, "seconds": seconds}
    return {"pageable": {"form": "segments", "constants": [one]}}


def machine(**changes):
    """A CPU of 10 GFLOP/s and a GPU of 1 TFLOP/s behind a bus of 1 GB/s."""
    models = {}
    for operation in ("matvec", "matmul"):
        models[f"cpu|{operation}|blas|float32|*"] = roofline(1e-6, 1e10, 1e10)
        models[f"cuda:*|{operation}|tiled|float32|*"] = roofline(5e-6, 1e12, 1e12)
        models[f"cuda:*|{operation}|library|float32|*"] = roofline(9e-6, 4e12, 4e12)
    content = {
        "schema_version": 3,
        "name": "made up",
        "fingerprint": {},
        "devices": {},
        "links": {"cuda:*": {"upload": link(1e-5, 1e9), "download": link(2e-5, 5e8)}},
        "host": {
            "pack": link(3e-6, 2e9)["pageable"],
            "dispatch": {"cuda:*": {"host": 7e-6, "device": 4e-6, "detour": 1e-6}},
        },
        "models": models,
        **changes,
    }
    return profile.parse(profile.encode(content))


CPU = {"kind": "cpu", "name": "made up"}
GPU = {
    "kind": "cuda",
    "name": "made up",
    "multiprocessors": 8,
    "block_limit": 1024,
    "memory_bytes": 2**30,
    "library": None,
}
TWO = {"cpu": CPU, "cuda:0": GPU}


def square(n, on="host", dtype="float32"):
    return matmul_problem(Spec((n, n), dtype, on=on), Spec((n, n), dtype, on=on))


def priced(problem, here=TWO, constants=None, **forced):
    return planner.price(problem, constants or machine(), here, **forced)


def candidate(plan, device, method=None):
    return next(c for c in plan.candidates if c.device == device and method in (None, c.method))


def reason(plan, device, method=None):
    return candidate(plan, device, method).reason
