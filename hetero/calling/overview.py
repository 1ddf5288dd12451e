"""What is here, for a person to read: the machine, and the memory that this process holds, of
devices by purpose and pinned on the host; arrays of the host: pinned ones, copies of devices'."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, Literal, overload

import numpy as np

from hetero import devices, profile
from hetero.arrays import Operand, as_array, describe, is_device_array, kept, pinned_sizes
from hetero.errors import DeviceError
from hetero.host import cpu, loops
from hetero.imports import load
from hetero.moving import transfer
from hetero.pricing import pricing
from hetero.profile import inventory

_OFF = "off by more than 100 % in the mean (run 'hetero calibrate' again when nothing else runs)"
_DISTURBED = "by other load: run 'hetero calibrate' again when nothing else runs"
_state = {"warned": False}  # that there is no pinned memory
log = logging.getLogger("hetero")


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
            more = ", this machine's CPU again" if info.get("is_host_cpu") else ""
            more += f", called by {info['driver_api']}" if "driver_api" in info else ""
            lines.append(f"{name}: {info['name']}, {info['memory_bytes'] / 1e9:.0f} GB{more}")
            lines += [f"  {way}: {rate}" for way, rate in self["links"].get(name, {}).items()]
        lines.append(f"profile: {used['name']}, {used['file'] or 'not of this machine'}")
        if used["disturbed"]:
            lines.append(f"  not to be trusted: its calibration was disturbed {used['disturbed']}")
        if used["doubtful"]:
            names = "; ".join(name.replace("|", " ") for name in used["doubtful"])
            lines.append(f"  not to be trusted: {_OFF}: {names}")
        lines += [f"broken: {name}: {why}" for name, why in self["broken"].items()]
        kinds = {info["kind"] for info in self["devices"].values()}
        missed = [x for x in self["missing"] if "cuda" not in kinds or x.startswith("cuda:")]
        lines += [f"missing: {what}" for what in missed]  # with GPUs no others are needed
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
        made wrong values), ``failed`` (device -> what it failed with in this process, or that it
        had no room for a call), ``missing`` (what is not here and what would bring it),
        ``profile`` (its name; what to do if other load spoiled its calibration, else None; the
        models and links that are off by more than 100 % in the mean; the file it was read from,
        None where there is none that can be used; and the file that `hetero.calibrate` writes),
        ``profiles`` (the file that is read -> whether it fits this machine, else why not).

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
    is_used = constants.data["fingerprint"] and stored and stored.profile
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
        failed=devices.troubles(),
        missing=list(devices.missing()),
        profile={
            "name": constants.name,
            "disturbed": None if constants.is_trusted else _DISTURBED,
            "doubtful": constants.doubtful(),
            "file": str(stored.path) if is_used else None,
            "calibrate_writes": str(profile.default_path()),
        },
        profiles={str(stored.path): _fit(stored)} if stored else {},
    )


def _fit(stored: profile.Stored) -> str:
    """Whether a stored profile is of this machine."""
    if stored.obstacle is not None:
        return f"not used: {stored.obstacle}"
    data = stored.profile.data
    return f"fits: {len(data['models'])} constants, of {data.get('created', 'an unknown time')}"


# -- Memory ----------------------------------------------------------------------------------------


class Memory(dict[str, Any]):
    """A plain dict with a readable ``print``."""

    def __str__(self) -> str:
        lines = []
        for name, purposes in self.items():
            lines.append(f"{name}: {_readable(sum(purposes.values()))}")
            lines += [f"  {purpose}: {_readable(size)}" for purpose, size in purposes.items()]
        return "\n".join(lines) or "no device but the CPU"


def _readable(nbytes: int) -> str:
    for size, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes} bytes"


def memory() -> Memory:
    """How much memory of each device this process holds, and what for.

    Returns
    -------
    Memory
        Device name -> purpose -> bytes; a plain dict that prints readably. What is kept for later
        calls: "convolution filters", "multigrid", "sine transforms", "transforms' work areas"
        (cuFFT's); "kept operands", copies of those that do not change, see `hetero.keep`. What
        lasts as long as its object or call: "solves", "arrays and running calls"
        (results on CUDA devices that the caller holds are among them). What was
        freed and is kept for the next call: "free in the pool". Purposes without bytes are left
        out. The driver is not asked: what it takes for contexts and kernels, and what libraries
        allocate by themselves, such as cuBLAS its workspace, is not counted. Under "host", where
        there is some, is pinned memory of the host: "pinned buffers of copies", through which
        large arrays move, and "pinned arrays"; and memory "for results, used before", which large
        results left when they were dropped. The next ones take it.

    See Also
    --------
    hetero.clear_memory : gives it back.

    Examples
    --------
    >>> import hetero
    >>> for name, purposes in hetero.memory().items():
    ...     print(name, sum(purposes.values()))  # doctest: +SKIP
    cuda:0 419430400
    """
    found = Memory()
    for name, device in devices.available().items():
        held = {} if devices.inherited(name) else device.memory_held()
        found[name] = dict(sorted(held.items()))
    if held := pinned_sizes() | cpu.reused_sizes():
        found["host"] = dict(sorted(held.items()))
    return found


def clear_memory(device: str | None = None) -> None:
    """Give back all memory of devices that is not in use.

    Filters, transforms, buffers of solves, copies of operands that do not change (`hetero.keep`)
    and memory that was freed stay on a device for the next call, and on the host pinned buffers for
    the next large copy and memory for its result. The former are given back by themselves when a
    device runs short, of the latter no more than a sixteenth of the machine's memory is kept. This
    gives them back now, to make room for others, and forgets remembered calls, which hold some. The
    next calls work as ever and make what they need anew.

    Parameters
    ----------
    device : str, optional
        Such as "cuda:0". Default: all.

    Raises
    ------
    DeviceNotAvailable
        If there is no such device; the message names those that are here.

    See Also
    --------
    hetero.memory : tells how much there is.

    Examples
    --------
    >>> import hetero
    >>> hetero.clear_memory()
    """
    names = [*devices.available()] if device is None else [devices.get(device).name]
    inventory.changed()
    cpu.free_reused()
    for name in names:
        if devices.inherited(name):
            continue
        try:
            devices.get(name).clear()
        except DeviceError as error:
            log.warning("the memory of %s could not be given back: %s", name, error)


# -- Arrays of the host ----------------------------------------------------------------------------


def empty_pinned(shape: int | Sequence[int], dtype: Any = np.float64) -> np.ndarray:
    """A new NumPy array, not initialized, in pinned memory of the host.

    GPUs copy from and to pinned memory at the speed of the bus, without the CPU. The array is an
    ordinary one in all else; operations find out by its address what memory it is in. So do they of
    its views. It is made slowly, at some GB/s, and the system cannot swap it out: make few, and use
    them again. The memory is given back when the array and all its views are gone.

    Parameters
    ----------
    shape : int or sequence of int
    dtype : dtype, optional

    Returns
    -------
    numpy.ndarray
        C-contiguous. In ordinary memory where there is no GPU, or the system gives no pinned
        memory; a warning is logged, once.

    Raises
    ------
    TypeError
        For a dtype of Python objects.
    ValueError
        For a negative extent.

    See Also
    --------
    hetero.memory : tells under "host" how much there is.

    Notes
    -----
    In a forked child it is ordinary memory, with a copy of its content.

    Examples
    --------
    >>> import hetero
    >>> A = hetero.empty_pinned((1000, 1000), "float32")
    >>> A[...] = 1.0
    """
    dtype = np.dtype(dtype)
    if dtype.hasobject:
        raise TypeError(f"dtype must be one of plain values, got {dtype}")
    shape = np.empty(shape, np.dtype((np.void, 0))).shape  # as NumPy takes it, and complains
    nbytes = prod(shape) * dtype.itemsize
    if nbytes:
        try:
            for name, device in devices.available().items():
                if device.stages and not devices.inherited(name) and devices.believed(name):
                    with device.active():
                        return device.pinned(nbytes).view(dtype).reshape(shape)
            raise DeviceError("there is no GPU here that can be used")
        except DeviceError as error:
            if not _state["warned"]:
                _state["warned"] = True
                log.warning("arrays are in ordinary memory instead of pinned: %s", error)
    return np.empty(shape, dtype)


@overload
def to_host(
    x: Any, out: np.ndarray | None = None, *, wait: Literal[True] = True
) -> np.ndarray[Any, np.dtype[Any]]: ...
@overload
def to_host(x: Any, out: np.ndarray | None = None, *, wait: bool) -> Any: ...
def to_host(x: Any, out: np.ndarray | None = None, *, wait: bool = True) -> Any:
    """Bring an array to the host, through pinned buffers that several threads empty.

    Parameters
    ----------
    x : array
        On a device, of any library; what lies on the host is returned as NumPy array.
    out : numpy.ndarray, optional
        Where to; of x's shape and dtype. Pages that were written to before take the values faster
        than those of a new array.
    wait : bool, default True
        False: return at once. What is called next on other arrays is computed while x is copied;
        x must not be written to until then.

    Returns
    -------
    numpy.ndarray
        ``out`` where it was given. With ``wait=False`` an object: its ``wait()`` returns the array
        once the copy is complete. If the object is deleted earlier, the copy is given up.

    Raises
    ------
    ValueError
        For an ``out`` of another shape or dtype, or one that cannot be written to.
    TypeError
        For an ``out`` that is no NumPy array, and for sparse matrices.
    hetero.errors.DeviceError
        If the device fails twice, or once with ``wait=False``.

    See Also
    --------
    hetero.use : ``results="device"`` leaves results on devices.

    Examples
    --------
    >>> import numpy as np, hetero
    >>> with hetero.use(results="device"):
    ...     C = hetero.matmul(np.eye(2), np.full((2, 2), 3.0))
    ...     C = hetero.matmul(C, C)
    >>> hetero.to_host(C)
    array([[18., 18.],
           [18., 18.]])
    """
    if hasattr(x, "tocsr"):
        raise TypeError(f"to_host takes dense arrays, got {type(x).__name__}")
    array = as_array(x)
    operand = describe(array)
    if out is not None:
        _check(out, operand)
    if not is_device_array(array):
        if out is not None:
            out[...] = array
            array = out
        return array if wait else transfer.Download(array)
    if wait:
        return transfer.to_host(array, operand, out)
    return transfer.Download(array, operand, out)


def _check(out: Any, operand: Operand) -> None:
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out must be a NumPy array, got {type(out).__name__}")
    if out.shape != operand.shape or out.dtype != operand.dtype:
        raise ValueError(
            f"out must have shape {operand.shape} and dtype {operand.dtype}, "
            f"got {out.shape} and {out.dtype}"
        )
    if not out.flags.writeable:
        raise ValueError("out must be writeable")
