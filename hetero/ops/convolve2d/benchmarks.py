"""What `hetero bench`, `verify` and `demo` ask of convolution.

Bench takes mode "same", random square images and filters: on the CPU NumPy operands, on a GPU
operands that lie there.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from hetero import devices
from hetero.arrays import HOST, spec
from hetero.calling import planner
from hetero.ops import benchmark, demonstration
from hetero.ops.benchmark import Axis, Benchmark, Comparison, Line, Plane, TimedCall, Trial
from hetero.ops.convolve2d import OPERATION
from hetero.ops.convolve2d.planning import LARGEST_DOWNLOADED
from hetero.ops.convolve2d.problem import BOUNDARIES, MODES
from hetero.pricing.plan import CPU
from hetero.registry.problem import DEVICE_DTYPES

pictured_result = demonstration.save_filtered

GROWING = (0, 1)  # the image, not the filter
ON_CPU = ((64, 3), (64, 15), (256, 3), (256, 31), (1024, 5), (2048, 3), (2048, 15), (2048, 63))
ON_GPU = tuple((n, f) for n in (1024, 4096, 8192) for f in (3, 15, 63, 513))
MOVED, MOVED_BESIDE_CPU = ((8192, 3), (8192, 31)), ((512, 3), (512, 31))
_LONGEST, _LONGEST_ON_GPU = 3.0, 1.0  # predicted seconds of a candidate
_TORCH_LARGEST = 63
_LARGEST_IMAGE, _LARGEST_FILTER = 4096, 129
_IMAGE, _FILTER = Axis("n", 32, 8192), Axis("f", 1, 127)
LINES = (
    Line("n x n with a filter of 3 x 3", _IMAGE, lambda n: (n, n, 3, 3)),
    Line("n x n with a filter of 63 x 63", _IMAGE._replace(least=64), lambda n: (n, n, 63, 63)),
    Line("1024 x 1024 with a filter of f x f", _FILTER, lambda f: (1024, 1024, f, f)),
)
PLANES = (
    Plane("n x n with a filter of f x f", _IMAGE, _FILTER, lambda n, f: (n, n, f, f)),
)  # of a filter that is not known to be of low rank


def draw(random: random.Random, on: str, largest: int) -> Trial:
    """Image and filter with log-uniform extents, about as high as wide; every third of rank 1."""
    dtype = random.choice(DEVICE_DTYPES)

    def shape(least: int, most: int) -> tuple[int, int]:
        size = least * (most / least) ** random.random()
        skew = random.choice((1.0, 1.0, random.uniform(0.5, 2.0)))
        return max(round(size * skew), 1), max(round(size / skew), 1)

    image = shape(16, min(largest // 2, _LARGEST_IMAGE))
    height, width = (min(f, n) for f, n in zip(shape(1, _LARGEST_FILTER), image, strict=True))
    options = {"mode": random.choice(MODES), "boundary": random.choice(BOUNDARIES)}
    on_host = on == HOST or height * width <= LARGEST_DOWNLOADED
    low_rank = random.random() < 1 / 3 and height * width > height + width and on_host
    rng = np.random.default_rng(3)
    values: Any = spec((height, width), dtype, on=on)
    if low_rank:
        values = np.outer(0.1 + rng.random(height), 0.1 + rng.random(width)).astype(dtype)
    elif on_host:
        values = (rng.random((height, width)) - 0.5).astype(dtype)
    return Trial((spec(image, dtype, on=on), values), options)


def benchmarks(dtype: str) -> Iterator[Benchmark]:
    """Images and filters of all sizes, on the CPU and on the first GPU."""
    gpu = benchmark.cuda_device()
    places = [(CPU, size) for size in ON_CPU] + [(gpu, size) for size in ON_GPU if gpu]
    for place, (n, f) in places:
        case = f"{n} x {n} with {f} x {f}, operands on {HOST if place == CPU else place}, {dtype}"
        floor = 2.0 * n * n * np.dtype(dtype).itemsize  # one read, one write
        make = partial(_from_host if place == CPU else _on_gpu, n, f, dtype)
        facts = {"floor_bytes": floor, "passes": " in two passes"}
        yield Benchmark(case, make, facts=facts, device=place)


def moved(dtype: str) -> Iterator[Benchmark]:
    """Large images and small filters, from the host to the host."""
    for n, f in MOVED if benchmark.cuda_device() else MOVED_BESIDE_CPU:
        case = f"{n} x {n} with {f} x {f}, host to host, {dtype}"
        yield benchmark.moved_call(case, partial(_from_host, n, f, dtype, moved=True))


def demonstrated(largest: int) -> Iterator[Benchmark]:
    """Filters of a photograph, zeros around it."""
    image, source = demonstration.picture(largest)
    for name, values in demonstration.filters().items():
        if (f := len(values)) <= largest:
            case = f"convolve2d {largest}x{largest} by {f}x{f}, float32: {source}, {name}"
            yield Benchmark(case, partial(_filtered, image, values))


def _filtered(image: np.ndarray, values: np.ndarray) -> Comparison:
    peers = _cpu_peers(image, values, 1e8)
    peers |= benchmark.from_host_by_cupy(_by_cupy, image, values)
    return benchmark.compared(OPERATION, (image, values), {"mode": "same"}, peers, "cv2")


def _data(n: int, f: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n + f)
    return rng.random((n, n)).astype(dtype) - 0.5, rng.random((f, f)).astype(dtype) - 0.5


def _from_host(n: int, f: int, dtype: str, moved: bool = False) -> Comparison:
    data = _data(n, f, dtype)
    peers = benchmark.from_host_by_cupy(_by_cupy, *data) if moved else _cpu_peers(*data)
    longest = _LONGEST_ON_GPU if moved else _LONGEST
    return benchmark.compared(OPERATION, data, {"mode": "same"}, peers, longest=longest)


def _by_cupy(cupy: Any, image: Any, values: Any) -> Any:
    from cupyx.scipy.signal import convolve2d, fftconvolve

    return (convolve2d if len(values) <= 3 else fftconvolve)(image, values, "same")


def _cpu_peers(image: np.ndarray, values: np.ndarray, most: float = 1e9) -> dict[str, TimedCall]:
    """SciPy's and OpenCV's; direct ones of SciPy's up to that many products of numbers."""
    from scipy import ndimage, signal

    calls: dict[str, TimedCall] = {
        "SciPy fftconvolve": lambda turn: signal.fftconvolve(image, values, "same"),
        "SciPy oaconvolve": lambda turn: signal.oaconvolve(image, values, "same"),
    }
    if image.size * values.size < most:
        calls["SciPy convolve2d"] = lambda turn: signal.convolve2d(image, values, "same")
        calls["SciPy ndimage"] = lambda turn: ndimage.convolve(image, values, mode="constant")
    if (cv2 := benchmark.library("cv2")) is not None:
        given = -1, np.ascontiguousarray(values[::-1, ::-1])
        how = {"anchor": tuple(n // 2 for n in values.T.shape), "borderType": cv2.BORDER_CONSTANT}
        calls["OpenCV filter2D"] = lambda turn: cv2.filter2D(image, *given, **how)
    return calls


def _on_gpu(n: int, f: int, dtype: str) -> Comparison:
    image, values = _data(n, f, dtype)
    turns = max(1, min(8, (1 << 28) // image.nbytes))
    device = devices.get(benchmark.cuda_device() or "")
    sets = [(device.array_of(image),) for _ in range(turns)]
    there = device.array_of(values)
    known = values if values.size <= LARGEST_DOWNLOADED else there
    plan = planner.plan_call(OPERATION, (*sets[0], known), {"mode": "same"})

    def by(**placed: str) -> TimedCall:
        return benchmark.rotating(lambda x: OPERATION.call(x, there, "same", **placed), sets)

    calls = benchmark.of_candidates(plan, by, longest=_LONGEST_ON_GPU, only=device.name)
    peers = dict(_gpu_peers(image, values, turns))
    return Comparison(calls, peers, benchmark.name_of(plan.chosen))


def _gpu_peers(
    image: np.ndarray, values: np.ndarray, turns: int
) -> Iterator[tuple[str, TimedCall]]:
    if (cupy := benchmark.library("cupy")) is not None:
        from cupyx.scipy import ndimage, signal

        images, there = [(cupy.asarray(image),) for _ in range(turns)], cupy.asarray(values)
        by_fft = partial(signal.fftconvolve, in2=there, mode="same")
        yield "CuPy fftconvolve", benchmark.rotating(by_fft, images)
        if values.shape[0] <= 15:
            by_ndimage = partial(ndimage.convolve, weights=there, mode="constant")
            yield "CuPy ndimage", benchmark.rotating(by_ndimage, images)
    torch = benchmark.library("torch") if values.shape[0] <= _TORCH_LARGEST else None
    if torch is not None:
        tensors = [(torch.from_numpy(image)[None, None].cuda(),) for _ in range(turns)]
        taps = torch.from_numpy(np.ascontiguousarray(values[::-1, ::-1]))[None, None].cuda()
        torch.backends.cudnn.allow_tf32 = False
        how = {"weight": taps, "padding": values.shape[0] // 2}
        yield (
            "torch conv2d",
            benchmark.rotating(partial(torch.nn.functional.conv2d, **how), tensors),
        )
