"""What an iteration of a solve would take on a cluster that divides the rows of its grid.

T = launch + compute + halo + sums, see docs/clusters.md. Launching and computing are what the
profile measured on one device; a message of b bytes takes b / T_x + c1 (White 2013, eq. 3.14).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from hetero import paths, registry
from hetero.errors import readable
from hetero.evaluation import calls
from hetero.evaluation.report import draw_curves, markdown
from hetero.pricing import places
from hetero.pricing.plan import CPU
from hetero.profile import Profile

_LEAST = {"nodes": 1, "gpus_per_node": 1}  # whole numbers, and others
_LEAST |= {"host_seconds": 0.0, "bytes_per_second": 1.0, "seconds": 0.0}
TERMS = ("compute", "launch", "halo", "sums")


class Link(NamedTuple):
    """A message of b bytes takes b / ``bytes_per_second`` + ``seconds``."""

    bytes_per_second: float
    seconds: float


class Cluster(NamedTuple):
    """Equal nodes, by the keys of a file."""

    nodes: int
    gpus_per_node: int
    profile: str | None = None  # of one GPU; None: this machine's
    gpu_link: Link | None = None  # of two GPUs of a node
    node_link: Link | None = None
    host_seconds: float = 0.0  # of the host, to order an exchange


def read(path: str) -> Cluster:
    """The cluster of a JSON file; ValueError that names what is wrong, and the valid keys."""

    def checked(**record: Any) -> dict[str, Any]:
        for key, least in _LEAST.items():
            value = record.get(key, least)
            if type(value) not in (int, type(least)) or not least <= value <= 1e18:
                number = f"{'whole ' * isinstance(least, int)}number from {least:g} to 1e18"
                raise ValueError(f"{key} must be a {number}, got {value!r:.60}")
        return record

    links = {"gpu_link": "gpus_per_node", "node_link": "nodes"}
    try:
        data = dict(json.loads(paths.read_file(path, 1 << 20)))
        data |= {key: Link(**checked(**data[key])) for key in links if key in data}
        cluster = Cluster(**checked(**data))
        for link, number in links.items():
            if getattr(cluster, number) > 1 and getattr(cluster, link) is None:
                raise ValueError(f"{link} is missing: {number} is {getattr(cluster, number)}")
    except (ValueError, TypeError, OSError, RecursionError) as error:
        why = getattr(error, "strerror", None) or error
        keys = f"{', '.join(Cluster._fields)}; of links {', '.join(Link._fields)}"
        raise ValueError(f"--cluster {path[:200]}: {str(why)[:200]}; keys are {keys}") from None
    return cluster


class Solve(NamedTuple):
    """A solve by one method, with the constants of one device."""

    call: calls.Call
    row: registry.Implementation
    iteration: registry.Iteration
    constants: Profile
    device: str
    info: dict[str, Any]

    def step(self, rows: int) -> tuple[float, float] | None:
        """Seconds of launching (what the least work takes) and of computing an iteration on rows
        that one device has alone; None without constants."""
        problem = replace(self.call, dims=(rows, *self.call.dims[1:])).problem()
        work = self.row.work(problem, self.info)._replace(repeat=1)
        key = problem.operation, self.row.method, problem.dtype, problem.layout
        cost = self.constants.cost(self.device, self.row.kind, *key)
        if cost is None:
            return None
        nothing = work._replace(dims=(1,) * len(work.dims), flops=0.0, bytes=0.0)
        whole, least = (cost(w)[1] for w in (work, nothing))
        return min(least, whole), max(whole - least, 0.0)

    def fits_from(self) -> int | None:
        """The number of devices from which on each has room for its vectors; None: none has."""
        room, depth = places.room(self.info), self.iteration.depth
        rows, row = self.call.dims[0], self.iteration.vectors * self.iteration.row_bytes
        own = rows if rows * row <= room else int(room // row) - 2 * depth
        return -(-rows // own) if own >= min(depth, rows) else None


def forecast(solve: Solve, cluster: Cluster, parts: int) -> dict[str, Any]:
    """An iteration on a number of devices: parts; rows (of the one that has most); seconds =
    compute + launch + halo + sums; efficiency = T(1) / (parts T(parts)); binds (the longest)."""
    what, rows, halo, sums = solve.iteration, -(-solve.call.dims[0] // parts), 0.0, 0.0
    launch, compute = solve.step(rows)
    if parts > 1:
        within, nodes = min(parts, cluster.gpus_per_node), -(-parts // cluster.gpus_per_node)
        for n, link in ((within, cluster.gpu_link), (nodes, cluster.node_link)):
            if n > 1:
                rate, least = link
                halo = max(halo, what.halo * what.row_bytes / rate + least)
                sums += what.sums * (n - 1).bit_length() * (what.sum_bytes / rate + least)
        halo *= min(2, parts - 1) / what.every
        launch += cluster.host_seconds / what.every
    terms = dict(zip(TERMS, (compute, launch, halo, sums), strict=True))
    seconds, one = sum(terms.values()), sum(solve.step(solve.call.dims[0]))
    derived = {"efficiency": one / seconds / parts, "binds": max(terms, key=terms.__getitem__)}
    return {"parts": parts, "rows": rows, "seconds": seconds, **terms, **derived}


def solve_of(call: calls.Call, cluster: Cluster, method: str | None = None) -> Solve:
    """What can be forecast of a call; ValueError, that says why, where nothing can."""
    exchanged = call.operation.iterations(call.dims, call.dtype)
    if not exchanged:
        able = [o.function for o in registry.operations() if o.iterations((9, 9), "float64")]
        raise ValueError(f"--cluster divides the grids of {', '.join(able)}, got {call}")
    if method not in (None, *exchanged):
        raise ValueError(f"--method must be one of {', '.join(exchanged)}, got {method!r}")
    constants, devices = calls.known(cluster.profile)
    name = next((n for n, i in devices.items() if i["kind"] != CPU), CPU)
    for row in registry.lookup(call.operation.name):
        if row.kind == devices[name]["kind"] != CPU and row.method in exchanged:
            solve = Solve(call, row, exchanged[row.method], constants, name, devices[name])
            if method in (None, row.method) and solve.step(call.dims[0]) is not None:
                return solve
    raise ValueError(f"the profile {constants.name!r} has no constants of {call} on a GPU")


def scaling(call: calls.Call, cluster: Cluster, method: str | None = None) -> dict[str, Any]:
    """Forecasts on numbers of devices as plain data."""
    total, solve = cluster.nodes * cluster.gpus_per_node, solve_of(call, cluster, method)
    most = max(1, min(total, call.dims[0] // solve.iteration.depth))
    counts = sorted({2**k for k in range(most.bit_length())} | {most})
    return {
        "call": str(call),
        "method": solve.row.method,
        "iterations": solve.row.work(call.problem(), solve.info).repeat,
        "device": f"{solve.device} of {solve.constants.name}",
        "devices": total,
        "fits_from": solve.fits_from(),
        "rows": [forecast(solve, cluster, n) for n in counts],
    }


def text(scaled: Mapping[str, Any]) -> str:
    """What `scaling` gives."""
    last, fits, steps = scaled["rows"][-1], scaled["fits_from"], scaled["iterations"]
    took = f"iterations of {readable(last['seconds'])}: {readable(steps * last['seconds'])}"
    lines = [
        "{call} by {method}: {devices:,} GPUs, constants of {device}".format_map(scaled),
        f"   {last['binds']} binds; about {steps:,} {took}",
        f"   room for the vectors: {'on no number' if fits is None else f'from {fits:,}'} GPUs on",
    ]
    cells = [
        [f"{row['parts']:,}", f"{row['rows']:,}"]
        + [readable(row[name]) for name in ("seconds", *TERMS)]
        + [f"{row['efficiency']:.0%}", row["binds"]]
        for row in scaled["rows"]
    ]
    head = ("GPUs", "rows of one", "iteration", *TERMS, "efficiency", "binds")
    return "\n".join([*lines, "", *markdown(head, cells)])


def draw(scaled: Mapping[str, Any], picture: Any) -> None:
    """Draw the iteration and its terms on a figure of matplotlib's."""
    rows, names = scaled["rows"], ("seconds", *TERMS)
    curves = {name: {row["parts"]: row[name] for row in rows if row[name]} for name in names}
    draw_curves(picture, scaled["call"], "GPUs", curves)
