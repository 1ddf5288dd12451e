"""`hetero.machine`: what is here, for a person to read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hetero import devices, profile
from hetero.arrays import kept
from hetero.host import loops
from hetero.imports import load
from hetero.pricing import pricing
from hetero.profile import inventory

_OFF = "off by more than 100 % in the mean (run 'hetero calibrate' again when nothing else runs)"
_DISTURBED = "by other load: run 'hetero calibrate' again when nothing else runs"


class Inventory(dict[str, Any]):
    """A dict with a readable ``print``."""

    def __str__(self) -> str:
        return "\n".join(_lines(self, 0))

    def brief(self) -> str:
        """The main part: what computes, how fast arrays move there, and what is wrong."""
        cpu, used = self["cpu"], self["profile"]
        lines = [f"cpu: {cpu['name']}, {cpu['cores']} cores, {cpu['blas']} {cpu['blas_version']}"]
        if loops.obstacle():
            lines.append(f"compiled loops: {cpu['loop_threads']}")
        for name, info in self["devices"].items():
            again = ", this machine's CPU again" if info.get("is_host_cpu") else ""
            lines.append(f"{name}: {info['name']}, {info['memory_bytes'] / 1e9:.0f} GB{again}")
            lines += [f"  {way}: {rate}" for way, rate in self["links"].get(name, {}).items()]
        lines.append(f"profile: {used['name']}, {used['file'] or 'not of this machine'}")
        if used["disturbed"]:
            lines.append(f"  not to be trusted: its calibration was disturbed {used['disturbed']}")
        if used["doubtful"]:
            names = "; ".join(name.replace("|", " ") for name in used["doubtful"])
            lines.append(f"  not to be trusted: {_OFF}: {names}")
        lines += [f"broken: {name}: {why}" for name, why in self["broken"].items()]
        kinds = {info["kind"] for info in self["devices"].values()}
        enough = kinds & {"cuda"}  # no others are needed
        lines += [
            f"missing: {what}"
            for what in self["missing"]
            if not enough or what.partition(":")[0] in enough
        ]
        return "\n".join([*lines, "'hetero info --verbose' prints all that is known"])


def _lines(value: dict[str, Any], depth: int) -> Iterator[str]:
    pad = "  " * depth
    for key, item in value.items():
        if not isinstance(item, (dict, list)):
            yield f"{pad}{key}: {'none' if item is None else item}"
            continue
        yield f"{pad}{key}:" + ("" if item else " none")
        if isinstance(item, dict):
            yield from _lines(item, depth + 1)
        else:
            yield from (f"{pad}  - {entry}" for entry in item)


def machine() -> Inventory:
    """What is here, as a plain dict that prints readably.

    Returns
    -------
    Inventory
        ``cpu`` (among it ``loop_threads``: the library that runs the loops' threads; and
        ``write_tracking``: whether arrays that are used again can have copies on devices unless
        they are kept by hand, or why not), ``devices`` (name -> description), ``links`` (device ->
        GB/s of large transfers by direction and memory, as calibrated; "cuda*2" is each of two at
        once),
        ``broken`` (device -> why it is not used: it could not compile or run a small kernel, or
        made wrong values), ``missing`` (what is not here and what would bring it), ``profile`` (its
        name; what to do if other load spoiled its calibration, else None; the models and links that
        are off by more than 100 % in the mean; the file it was read
        from, None where there is none that can be used; and the file that `hetero.calibrate`
        writes), ``profiles`` (the file that is read -> whether it fits this machine, else why not).

    Examples
    --------
    >>> import hetero
    >>> hetero.machine()["cpu"]["cores"] >= 1
    True
    """
    devices.proven()
    here = inventory.devices()
    constants = profile.current()
    stored = profile.survey()
    is_used = bool(constants.data["fingerprint"]) and stored and stored[0].obstacle is None
    size = 2**28
    links: dict[str, Any] = {}
    together = [info["constants"] for info in pricing.groups(here).values()]
    for name in (*here, *together):
        for direction, kinds in constants.data["links"].get(name, {}).items():
            for memory in kinds:
                rate = size / constants.curve(name, direction, memory)(size) / 1e9
                links.setdefault(name, {})[f"{direction}, {memory}"] = f"{rate:.1f} GB/s"
    return Inventory(
        cpu={
            **{key: value for key, value in here["cpu"].items() if key != "kind"},
            "loop_threads": (
                f"none, because {denied}: NumPy and SciPy compute in their place"
                if (denied := loops.obstacle()) is not None
                else load("hetero.host.threads").describe()
            ),
            "write_tracking": f"off, {why_not}" if (why_not := kept.obstacle()) else "on",
        },
        devices={name: info for name, info in here.items() if name != "cpu"},
        links=links,
        broken=devices.broken(),
        missing=list(devices.missing()),
        profile={
            "name": constants.name,
            "disturbed": None if constants.is_trusted else _DISTURBED,
            "doubtful": constants.doubtful(),
            "file": str(stored[0].path) if is_used else None,
            "calibrate_writes": str(profile.default_path()),
        },
        profiles={str(one.path): _fit(one) for one in stored},
    )


def _fit(stored: profile.Stored) -> str:
    """Whether a stored profile is of this machine."""
    if stored.obstacle is not None:
        return f"not used: {stored.obstacle}"
    data = stored.profile.data
    return f"fits: {len(data['models'])} constants, of {data.get('created', 'an unknown time')}"


def summary() -> str:
    """The CPU, its BLAS and the other devices in one line; one more for each broken device."""
    devices.proven()
    here = inventory.devices()
    processor = here["cpu"]
    others = [f"{info['name']} ({name})" for name, info in here.items() if name != "cpu"]
    first = (
        f"{processor['name']}, {processor['cores']} cores, {processor['blas']} "
        f"{processor['blas_version']}; " + (", ".join(others) or "no other device")
    )
    broken = [f"{name} is broken and left out: {why}" for name, why in devices.broken().items()]
    return "\n".join([first, *broken])
