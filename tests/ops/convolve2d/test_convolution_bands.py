"""Images on the host go through a device in bands of rows, which move while others are computed."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy import signal

import hetero
from hetero import devices, registry
from hetero.moving import ranges, streaming
from hetero.ops.convolve2d.filters import Filter, FilterOptions
from hetero.profile import inventory

rng = np.random.default_rng(31)


def both(opencl, *call, limit=None):
    """In ranges, with a limit of memory, and as a whole on the same device."""
    with hetero.use(device=opencl, method="streamed", memory_limit=limit):
        made_of = hetero.plan("convolve2d", *call).leaves()
        assert limit is None or any("parts of" in leaf.chosen.made_of for leaf in made_of)
        result = hetero.convolve2d(*call)
    return result, hetero.convolve2d(*call, device=opencl, method="direct")


@pytest.fixture
def cut_into(monkeypatch):
    """``cut_into(images, rows)``: ranges of so many are the only choice."""

    def only(images, rows):
        monkeypatch.setattr(ranges, "_cuts", lambda cut, size: [(images, rows)])
        inventory.changed()

    yield only
    monkeypatch.undo()
    inventory.changed()


@pytest.mark.parametrize(("rows", "height"), [*((n, 6) for n in (1, 5, 7, 149, 151)), (50, 160)])
def test_heights_of_bands(opencl, rows, height, cut_into):
    """One row, one less and one more than the filter has, around the whole image; below a filter
    that is higher than the image. Bit for bit what the same sum gives of the whole."""
    a, b = rng.random((150, 13)), rng.random((height, 2))
    cut_into(1, rows)
    modes = ("full",) if height > len(a) else ("full", "same", "valid")
    for mode, boundary in product(modes, ("fill", "wrap", "symm")):
        result, expected = both(opencl, a, b, mode, boundary, 0.5)
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(("images", "rows"), [(1, 20), (1, 6), (3, 20), (8, 20)])
def test_stacks(opencl, images, rows, cut_into):
    """Groups of whole images, the last one smaller; and bands of each."""
    stack, b = rng.random((7, 20, 13)), rng.random((3, 3))
    cut_into(images, rows)
    for a in (stack, stack.reshape(7, 1, 20, 13), stack[:, ::-1, ::-2]):
        result, expected = both(opencl, a, b, "same", "wrap")
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("dtype", ["complex64", "float32"])
def test_arrays_of_all_kinds(opencl, dtype):
    """Complex numbers as parts; transposed images, and every other pixel: bands are packed."""
    a, b = rng.random((150, 128)).astype("float32"), rng.random((6, 4)).astype("float32")
    a, b = (x[:, ::2] if dtype == "float32" else x.view(dtype) for x in (a, b))
    for image in (a, np.asfortranarray(a), a[::-2, ::3]):
        result, _ = both(opencl, image, b, "same", limit=50_000)
        _, expected = both(opencl, np.ascontiguousarray(image), b, "same")
        np.testing.assert_array_equal(result, expected)


def test_bands_by_transforms_look_at_their_values(opencl, monkeypatch, cut_into):
    """A band whose values range widely is summed up, the others are transformed."""
    plan, used = ranges.planned, []

    def planned(cut, problem, *given):
        made = plan(cut, problem, *given)
        lose = problem.options.wide_range or not problem.options.finite
        used.append("direct" if lose else "fft")
        direct = made.chosen._replace(method=used[-1])
        return replace(made, candidates=(direct, *made.candidates[1:]))

    monkeypatch.setattr(ranges, "planned", planned)
    cut_into(1, 50)
    a, b = rng.random((150, 61)), rng.random((6, 5))
    a[75, 10] = 1e20
    out = np.empty_like(a)
    problem = registry.operation("convolve2d").problem(a, b, "same")
    problem = replace(problem, options=problem.options._replace(wide_range=False))
    given = registry.Arguments((a,), out, FilterOptions(Filter(b), 0.0))
    streaming.run((devices.get(opencl),), problem, given)
    assert sorted(used) == ["direct", "fft", "fft", "fft", "fft"]
    np.testing.assert_allclose(out, signal.convolve2d(a, b, "same"), rtol=1e-12)


def test_a_limit_of_memory(opencl):
    """Parts keep to it; where not even rows do, the CPU is planned, and says nothing."""
    a, b = rng.random((300, 70)), rng.random((7, 7))
    expected = signal.convolve2d(a, b)
    for limit, method in ((a.nbytes, "streamed"), (20_000, "streamed"), (2000, None)):
        with hetero.use(memory_limit=limit):
            plan = hetero.plan("convolve2d", a, b, device=opencl)
            result = hetero.convolve2d(a, b, device=opencl)
        assert (plan.chosen.device, plan.chosen.method)[: 1 + bool(method)] == (
            (opencl, method) if method else ("cpu",)
        )
        np.testing.assert_allclose(result, expected, rtol=1e-12)
