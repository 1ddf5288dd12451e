"""What limits a rung: the time that each resource alone would need at its measured rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero.evaluation.causes.roof import Roof
from hetero.evaluation.climbing import Ground
from hetero.evaluation.report import markdown, rounded
from hetero.kernels.procedure import metrics
from hetero.kernels.procedure.counts import counted
from hetero.registry import Implementation
from hetero.registry.models import Work
from hetero.times import readable

BINDS = 0.5  # of the measured time: who needs less is not what the others wait for


def counts(ground: Ground, row: Implementation, size: int, work: Work) -> dict[str, Any]:
    """What a call asks of a device beyond flops and bytes, as far as it is known.

    That is launches; wavefronts (see `hetero.kernels.procedure.counts`); and of the kernel that is
    counted, or has most threads, active_threads, waves and fragmented_threads (see
    `hetero.kernels.procedure.metrics`), and in_flight, their share of what the device can hold.
    """
    launched = ground.launches(row, size)
    if not launched:
        return {}
    known: dict[str, Any] = {"launches": sum(launched.values())}
    item, card = np.dtype(ground.dtype).itemsize, ground.place.devices[0].card()
    main = max(launched, key=lambda one: metrics.threads(one.launch))
    for one in launched:
        waves = counted(one.kernel, dict(one.defines), one.last, item, work.flops)
        if waves is not None:
            known["wavefronts"], main = waves._asdict(), one
    where = card, main.resources, main.launch
    if active := metrics.active_threads(*where):
        known |= {"active_threads": active, "waves": metrics.waves(*where)}
        known["fragmented_threads"] = metrics.fragmented_threads(*where)
    if main.resources.registers:
        known["in_flight"] = active / (card.multiprocessors * card.threads)
    return known


def add(row: dict[str, Any], roof: Roof) -> None:
    """Add to a timed row of a ladder what each resource alone would need, and which one limits it.

    A resource that is counted to need more than the measured time needs all of it.
    """
    seconds = row["seconds"]
    needs = {
        "arithmetic": row["flops_per_second"] * seconds / roof.flops_per_second,
        "memory": row["bytes_per_second"] * seconds / roof.bytes_per_second,
    }
    if roof.wavefronts_per_second and (waves := row.get("wavefronts")):
        name = "shared memory" if waves["banks"] > waves["cache"] else "caches"
        needs[name] = sum(waves.values()) / roof.wavefronts_per_second
    if "launches" in row:
        needs["launches"] = row["launches"] * roof.launch
    row["needs"] = {name: min(need, seconds) for name, need in needs.items()}
    most = max(needs, key=lambda name: needs[name])
    # Loads that a cache serves are counted on devices with shared memory alone.
    rest = "latency" if roof.wavefronts_per_second else "latency or caches"
    row["limited_by"] = most if needs[most] >= BINDS * seconds else rest


def cell(row: dict[str, Any]) -> str:
    """What limits a row, with the share of the resource that needs most of its time."""
    if "needs" not in row:
        return ""
    name = max(row["needs"], key=lambda one: row["needs"][one])
    share = f"{rounded(100 * row['needs'][name] / row['seconds'], 2)} %"
    by = row["limited_by"]
    return f"{by} {share}" if by == name else f"{by} ({name} {share})"


def table(rows: Sequence[dict[str, Any]], labels: Sequence[str]) -> list[str]:
    """The times that the resources alone would need, and their shares of the measured one."""
    names = dict.fromkeys(name for row in rows for name in row["needs"])
    cells = []
    for row, label in zip(rows, labels, strict=True):
        cells.append([label, readable(row["seconds"])])
        for name in names:
            need = row["needs"].get(name)
            share = 0.0 if need is None else 100 * need / row["seconds"]
            cells[-1].append("" if need is None else f"{readable(need)} ({rounded(share, 2)} %)")
        held = row.get("in_flight")
        cells[-1].append("" if held is None else f"{100 * held:.0f} %")
    return markdown(("", "measured", *names, "threads in flight"), cells)
