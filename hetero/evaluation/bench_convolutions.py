"""`hetero bench convolve2d`: every method, beside the libraries that are here.

On the CPU NumPy operands; on a GPU operands that lie there, device time of calls back to back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from hetero import devices as backends
from hetero.calibration.measure import measure
from hetero.calibration.queue import Queue
from hetero.evaluation import left_out
from hetero.evaluation.left_out import leaving_out
from hetero.evaluation.verify_convolutions import caller
from hetero.ops.convolve2d import convolve2d
from hetero.ops.convolve2d.operands import problem
from hetero.runtime import planner

_ON_CPU = ((64, 3), (64, 15), (256, 3), (256, 31), (1024, 5), (2048, 3), (2048, 15), (2048, 63))
_ON_GPU = tuple((n, f) for n in (1024, 4096, 8192) for f in (3, 15, 63, 513))
_LONGEST = 3.0  # seconds that a peer's call may take
_TORCH_LARGEST = 63


def bench(dtype: str, progress: Callable[[float, str], None] | None = None) -> list[dict[str, Any]]:
    """Seconds of mode "same" for random square images and filters.

    Returns
    -------
    list of dict
        case, what, seconds by "method on device" or peer, chosen, floor_bytes (one read, one
        write).
    """
    gpu = next((d for d in backends.proven().values() if d.kind == "cuda"), None)
    failed: dict[str, str] = {}
    cases = [(n, f, "cpu") for n, f in _ON_CPU]
    cases += [(n, f, gpu.name) for n, f in _ON_GPU] if gpu is not None else []
    rows = []
    with contextlib.ExitStack() as stack:
        for number, (n, f, place) in enumerate(cases):
            if progress is not None:
                progress(number / len(cases), f"{n} x {n} with {f} x {f} on {place}, {dtype}")
            if place == "cpu":
                rows.append(_on_cpu(n, f, dtype, failed))
                continue
            if number == len(_ON_CPU):
                stack.enter_context(gpu.active())
                queue = Queue(gpu)
            rows.append(_on_gpu(queue, n, f, dtype, failed))
    left_out.warn(failed)
    return rows


def _row(n: int, f: int, dtype: str, where: str, seconds: dict[str, float], plan: Any) -> Any:
    return {
        "case": f"{n} x {n} with {f} x {f}, operands on {where}, {dtype}",
        "what": "call",
        "seconds": seconds,
        "chosen": f"{plan.chosen.method} on {plan.chosen.device}",
        "floor_bytes": 2.0 * n * n * np.dtype(dtype).itemsize,
        "passes": " in two passes",
    }


def _data(n: int, f: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n + f)
    return rng.random((n, n)).astype(dtype) - 0.5, rng.random((f, f)).astype(dtype) - 0.5


def _on_cpu(n: int, f: int, dtype: str, failed: dict[str, str]) -> dict[str, Any]:
    image, filter = _data(n, f, dtype)
    plan = planner.plan(problem(image, filter, "same"))
    calls: dict[str, Callable[[], Any]] = {"automatic": lambda: convolve2d(image, filter, "same")}
    for candidate in plan.candidates:
        if candidate.reason is None and (candidate.seconds or 0.0) < _LONGEST:
            placed = {"device": candidate.device, "method": candidate.method}
            calls[f"{candidate.method} on {candidate.device}"] = caller(
                planner.plan(problem(image, filter, "same"), **placed), image, filter
            )
    calls |= _cpu_peers(image, filter)
    return _row(n, f, dtype, "host", _in_turn(calls, failed), plan)


def _in_turn(calls: dict[str, Callable[[], Any]], failed: dict[str, str]) -> dict[str, float]:
    """Each call's seconds; slow ones once."""
    found = {}
    for name, call in calls.items():
        with leaving_out(name, failed):
            found[name] = measure(call, budget=0.3, least=3, most=25).seconds
    return found


def _cpu_peers(image: np.ndarray, filter: np.ndarray) -> dict[str, Callable[[], Any]]:
    from scipy import ndimage, signal

    flops = image.size * filter.size
    calls: dict[str, Callable[[], Any]] = {
        "SciPy fftconvolve": lambda: signal.fftconvolve(image, filter, "same"),
        "SciPy oaconvolve": lambda: signal.oaconvolve(image, filter, "same"),
    }
    if flops < 1e9:
        calls["SciPy convolve2d"] = lambda: signal.convolve2d(image, filter, "same")
        calls["SciPy ndimage"] = lambda: ndimage.convolve(image, filter, mode="constant")
    try:
        import cv2
    except ImportError:
        return calls
    turned = np.ascontiguousarray(filter[::-1, ::-1])
    anchor = (filter.shape[1] // 2, filter.shape[0] // 2)
    calls["OpenCV filter2D"] = lambda: cv2.filter2D(
        image, -1, turned, anchor=anchor, borderType=cv2.BORDER_CONSTANT
    )
    return calls


def _on_gpu(queue: Queue, n: int, f: int, dtype: str, failed: dict[str, str]) -> dict[str, Any]:
    from pycuda import gpuarray

    image, filter = _data(n, f, dtype)
    turns = max(1, min(8, (1 << 28) // image.nbytes))
    images = [gpuarray.to_gpu(image) for _ in range(turns)]
    there = gpuarray.to_gpu(filter)
    name = queue.device.name
    plan = planner.plan(problem(images[0], filter if filter.size <= 1024 else there, "same"))
    found = {}
    for candidate in plan.candidates:
        if candidate.reason is not None or candidate.device != name:
            continue
        if (candidate.seconds or 0.0) > 1.0:
            continue

        def call(turn: int, method: str = candidate.method) -> None:
            convolve2d(images[turn % turns], there, "same", device=name, method=method)

        with leaving_out(f"{candidate.method} on {name}", failed), queue.device.active():
            found[f"{candidate.method} on {name}"] = queue.quickly(call)
    for peer, call in _gpu_peers(image, filter, turns):
        found[peer] = queue.quickly(call)
    row = _row(n, f, dtype, name, found, plan)
    row["copy_bandwidth"] = queue.copy_bandwidth()
    return row


def _gpu_peers(
    image: np.ndarray, filter: np.ndarray, turns: int
) -> Iterator[tuple[str, Callable[[int], Any]]]:
    try:
        import cupy
        from cupyx.scipy import ndimage, signal
    except ImportError:
        pass
    else:
        images = [cupy.asarray(image) for _ in range(turns)]
        there = cupy.asarray(filter)
        yield "CuPy fftconvolve", lambda t: signal.fftconvolve(images[t % turns], there, "same")
        if filter.shape[0] <= 15:
            yield (
                "CuPy ndimage",
                lambda t: ndimage.convolve(images[t % turns], there, mode="constant"),
            )
    if filter.shape[0] > _TORCH_LARGEST:
        return
    try:
        import torch
    except ImportError:
        return
    tensors = [torch.from_numpy(image)[None, None].cuda() for _ in range(turns)]
    taps = torch.from_numpy(np.ascontiguousarray(filter[::-1, ::-1]))[None, None].cuda()
    torch.backends.cudnn.allow_tf32 = False
    pad = filter.shape[0] // 2
    yield (
        "torch conv2d",
        lambda t: torch.nn.functional.conv2d(tensors[t % turns], taps, padding=pad),
    )
