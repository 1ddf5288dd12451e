"""What an iteration of a solve would take on a cluster that divides the rows of its grid.

T = launch + compute + halo + sums, see docs/clusters.md. Launching and computing are what the
profile measured on one device; a message of b bytes takes b / T_x + c1 (White 2013, eq. 3.14).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from hetero import paths, registry
from hetero.evaluation import calls
from hetero.evaluation.report import markdown
from hetero.pricing import places
from hetero.pricing.plan import CPU
from hetero.profile import Profile
from hetero.times import readable

_LARGEST_FILE = 1 << 20  # bytes
_MOST = 10**6  # devices
_LINKS = ("gpu_link", "node_link")
_LEAST = {"nodes": 1, "gpus_per_node": 1}  # by key; of whole numbers, and of others
_LEAST |= {"host_seconds": 0.0, "bytes_per_second": 1.0, "seconds": 0.0}
PICTURE = (11.0, 4.5)  # inches
_BINDS = {
    "compute": "computing binds: each one's own rows",
    "launch": "launches bind: larger grids pay, more of them do not",
    "halo": "halos bind: a message keeps its length, however many share the grid",
    "sums": "sums bind: all wait for the all-reduce",
}


class Link(NamedTuple):
    """A message of b bytes takes b / ``bytes_per_second`` + ``seconds``."""

    bytes_per_second: float
    seconds: float

    def time(self, nbytes: float) -> float:
        """Seconds of a message."""
        return nbytes / self.bytes_per_second + self.seconds


@dataclass(frozen=True)
class Cluster:
    """Equal nodes, by the keys of a file."""

    nodes: int
    gpus_per_node: int
    profile: str | None = None  # of one GPU; None: this machine's
    gpu_link: Link | None = None  # of two GPUs of a node
    node_link: Link | None = None
    host_seconds: float = 0.0  # of the host, to order an exchange

    def __post_init__(self) -> None:
        if self.total > _MOST:
            raise ValueError(f"GPUs must be {_MOST} or fewer, got {self.total}")
        for name, needed in zip(_LINKS, (self.gpus_per_node > 1, self.nodes > 1), strict=True):
            if needed and getattr(self, name) is None:
                raise ValueError(f"{name} is missing: {self.nodes} nodes of {self.gpus_per_node}")

    @property
    def total(self) -> int:
        """GPUs."""
        return self.nodes * self.gpus_per_node

    def message(self, nbytes: float, parts: int) -> float:
        """Seconds of the slowest message between neighbours among that many GPUs."""
        each = self.gpus_per_node
        used = [self.gpu_link] * (each > 1) + [self.node_link] * (parts > each)
        return max(link.time(nbytes) for link in used)

    def allreduce(self, nbytes: float, parts: int) -> float:
        """Seconds of one: a message for each doubling, within the nodes and between them."""
        counts = min(parts, self.gpus_per_node), -(-parts // self.gpus_per_node)
        links = zip(counts, (self.gpu_link, self.node_link), strict=True)
        return sum(_doublings(n) * link.time(nbytes) for n, link in links if n > 1)


def _doublings(parts: int) -> int:
    return (parts - 1).bit_length()


def read(path: str) -> Cluster:
    """The cluster of a JSON file; ValueError that names what is wrong, and the valid keys.

    A profile's file may be named by its path from that file.
    """
    try:
        made = _made(Cluster, "the file", json.loads(paths.read_file(path, _LARGEST_FILE)))
        near = Path(path).parent / (made.profile or "")
        return replace(made, profile=str(near)) if near.is_file() else made
    except (ValueError, OSError, RecursionError) as error:
        why = getattr(error, "strerror", None) or error
        raise ValueError(f"--cluster {path[:200]}: {why}") from None


def _made(kind: Any, name: str, data: Any) -> Any:
    """A `Cluster` or a `Link` of an object with its keys, of which the first two are needed."""
    keys = tuple(kind.__annotations__)
    names = ", ".join(keys)
    if not isinstance(data, dict):
        raise ValueError(f"{name} must be an object with {names}, got {data!r:.60}")
    if wrong := [key for key in data if key not in keys]:
        raise ValueError(f"{name} has no key {wrong[0]!r:.60}; keys are {names}")
    if missing := [key for key in keys[:2] if key not in data]:
        raise ValueError(f"{name} must have {missing[0]}; keys are {names}")
    given = {}
    for key, value in data.items():
        least = _LEAST.get(key)
        if key in _LINKS:
            value = _made(Link, key, value)
        elif least is None and not (isinstance(value, str) and value and "\0" not in value):
            raise ValueError(f"{key} must be a name or a file, got {value!r:.60}")
        elif least is not None and not (
            type(value) in (int, type(least)) and least <= value <= 1e18
        ):
            number = f"{'whole ' * isinstance(least, int)}number"
            raise ValueError(f"{key} must be a {number} from {least:g} to 1e18, got {value!r:.60}")
        given[key] = value
    return kind(**given)


class Solve(NamedTuple):
    """A solve by one method, with the constants of one device."""

    call: calls.Call
    row: registry.Implementation
    iteration: registry.Iteration
    constants: Profile
    device: str
    info: dict[str, Any]

    def step(self, rows: int) -> tuple[float, float] | None:
        """Seconds of launching and of computing an iteration on rows that one device has alone.

        None without constants. Launching is what the least work takes.
        """
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


def forecast(solve: Solve, cluster: Cluster, parts: int, rows: int | None = None) -> dict[str, Any]:
    """An iteration of a solve on a number of devices: parts; rows (of the one that has most);
    seconds = compute + launch + halo + sums; efficiency; binds (the longest term).

    Where ``rows`` of each device are given, efficiency = T(1) / T(parts); else the solve's own are
    divided, and efficiency = T(1) / (parts T(parts)).
    """
    what, own, halo, sums = solve.iteration, rows or -(-solve.call.dims[0] // parts), 0.0, 0.0
    launch, compute = solve.step(own)
    if parts > 1:
        launch += cluster.host_seconds / what.every
        halo = min(2, parts - 1) * cluster.message(what.halo * what.row_bytes, parts) / what.every
        sums = what.sums * cluster.allreduce(what.sum_bytes, parts)
    terms = {"compute": compute, "launch": launch, "halo": halo, "sums": sums}
    seconds, binds = sum(terms.values()), max(terms, key=terms.__getitem__)
    one = seconds if parts == 1 else forecast(solve, cluster, 1, rows)["seconds"]
    made = {"parts": parts, "rows": own, "seconds": seconds, **terms}
    return made | {"efficiency": one / seconds / (1 if rows else parts), "binds": binds}


def solves(call: calls.Call, cluster: Cluster, method: str | None = None) -> list[Solve]:
    """Each method that can be forecast; ValueError, that says why, where there is none."""
    exchanged = call.operation.iterations(call.dims, call.dtype)
    if not exchanged:
        able = [o.function for o in registry.operations() if o.iterations((9, 9), "float64")]
        raise ValueError(f"--cluster divides the grids of {', '.join(able)}, got {call}")
    if method not in (None, *exchanged):
        raise ValueError(f"--method must be one of {', '.join(exchanged)}, got {method!r}")
    constants, devices = calls.known(cluster.profile)
    name = next((n for n, i in devices.items() if i["kind"] != CPU), None)
    known = [
        solve
        for row in registry.lookup(call.operation.name)
        if name and row.kind == devices[name]["kind"] and row.method in exchanged
        for solve in [Solve(call, row, exchanged[row.method], constants, name, devices[name])]
        if method in (None, row.method) and solve.step(call.dims[0]) is not None
    ]
    if not known:
        raise ValueError(f"the profile {constants.name!r} has no constants of {call} on a GPU")
    return known


def scaling(call: calls.Call, cluster: Cluster, method: str | None = None) -> dict[str, Any]:
    """Forecasts on numbers of devices as plain data, by the method that ends first on all."""

    def steps(solve: Solve) -> int:
        return solve.row.work(call.problem(), solve.info).repeat

    def most(solve: Solve) -> int:
        return max(1, min(cluster.total, call.dims[0] // solve.iteration.depth))

    candidates = solves(call, cluster, method)
    solve = min(candidates, key=lambda s: steps(s) * forecast(s, cluster, most(s))["seconds"])
    last, rows = most(solve), -(-call.dims[0] // most(solve))
    counts = sorted({2**k for k in range(last.bit_length())} | {last})
    strong = [forecast(solve, cluster, n) for n in counts]
    return {
        "call": str(call),
        "method": solve.row.method,
        "device": f"{solve.device} of {solve.constants.name}",
        "nodes": cluster.nodes,
        "devices": cluster.total,
        "iterations": steps(solve),
        "fits_from": solve.fits_from(),
        "fastest": min(strong, key=lambda one: one["seconds"]),
        "half_efficient": max(one["parts"] for one in strong if one["efficiency"] >= 0.5),
        "strong": strong,
        "weak": [forecast(solve, cluster, n, rows) for n in counts],
    }


def text(scaled: Mapping[str, Any]) -> str:
    """What `scaling` gives: what binds the whole cluster, the best numbers, both ways to scale."""
    last, fastest = scaled["strong"][-1], scaled["fastest"]
    room = "no number has room for the vectors"
    if scaled["fits_from"] is not None:
        room = f"there is room for the vectors from {scaled['fits_from']:,} GPUs on"
    lines = [
        f"{scaled['call']} by {scaled['method']}: {scaled['devices']:,} GPUs (nodes: "
        f"{scaled['nodes']:,}), constants of {scaled['device']}",
        f"   {_BINDS[last['binds']]}",
        f"   about {scaled['iterations']:,} iterations of {readable(last['seconds'])}: "
        + readable(scaled["iterations"] * last["seconds"]),
        f"   memory: {room}",
        f"   fastest on {fastest['parts']:,}, {readable(fastest['seconds'])}; efficiency 50% and "
        f"more up to {scaled['half_efficient']:,}",
    ]
    heads = {"strong": "Strong scaling, this grid", "weak": "Weak scaling, as many rows on each"}
    head = ("GPUs", "rows of one", "iteration", *_BINDS, "efficiency", "binds")
    for way, title in heads.items():
        cells = [
            [f"{row['parts']:,}", f"{row['rows']:,}"]
            + [readable(row[name]) for name in ("seconds", *_BINDS)]
            + [f"{row['efficiency']:.0%}", row["binds"]]
            for row in scaled[way]
        ]
        lines += ["", f"{title}:", "", *markdown(head, cells)]
    return "\n".join(lines)


def draw(scaled: Mapping[str, Any], picture: Any) -> None:
    """Draw both ways to scale, next to each other, on a figure of matplotlib's."""
    for axes, way in zip(picture.subplots(1, 2), ("strong", "weak"), strict=True):
        rows = scaled[way]
        for name in ("seconds", *_BINDS):
            values = [row[name] or None for row in rows]
            style = "ko-" if name == "seconds" else "--"
            axes.plot([row["parts"] for row in rows], values, style, label=name)
        axes.set(xlabel="GPUs", ylabel="seconds, forecast", yscale="log")
        axes.set(title=f"{way} scaling")
        axes.set_xscale("log", base=2)
    axes.legend()
    picture.suptitle(f"{scaled['call']} by {scaled['method']}")
