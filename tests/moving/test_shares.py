"""Calls on host arrays that several devices share by ranges: who does what, prices, failures."""

from __future__ import annotations

import functools

import fakes
import numpy as np
import pytest
from fakes import raising
from layouts import LAYOUTS
from made_up import CPU, GPU, candidate, link, machine, priced, square
from scipy import signal

import hetero
from hetero import devices
from hetero.devices import peers
from hetero.errors import DeviceError, DeviceMemoryError
from hetero.moving import ranges, streaming
from hetero.profile import inventory

ALL = "cuda:*"


def used(found):
    """Which devices computed since this was asked last."""
    names = [device.name for device in found if "compute" in device.log or "upload" in device.log]
    for device in found:
        device.log.clear()
    return names


def values(*shape, dtype="float32"):
    """Small integers: sums of products are exact in whatever order."""
    rng = np.random.default_rng(sum(shape))
    return rng.integers(-9, 9, shape).astype(dtype)


# -- Results --------------------------------------------------------------------------------------

PRODUCTS = {
    "rows": ("matmul", (40, 30), (30, 20)),
    "columns": ("matmul", (3, 30), (30, 200)),
    "batches": ("matmul", (5, 9, 8), (5, 8, 7)),
    "a batch of A": ("matmul", (5, 9, 8), (8, 7)),
    "a batch of B": ("matmul", (9, 8), (5, 8, 7)),
    "two rows": ("matmul", (2, 30), (30, 2)),
    "three rows": ("matmul", (3, 30), (30, 2)),
}


@pytest.mark.parametrize("several", [2, 3], indirect=True)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", PRODUCTS)
def test_products(several, case, dtype):
    name, *shapes = PRODUCTS[case]
    A, B = (values(*shape, dtype=dtype) for shape in shapes)
    plan = hetero.plan(name, A, B, device=ALL)
    assert (plan.chosen.device, plan.chosen.method) == (ALL, "tiled"), plan
    found = getattr(hetero, name)(A, B, device=ALL)
    assert used(several) == [s.plan.chosen.device for s in plan.chosen.shares]
    np.testing.assert_array_equal(found, getattr(np, name)(A, B))
    assert found.dtype == dtype
    assert len(plan.chosen.shares) >= 2
    for share in plan.chosen.shares:  # a single row is another operation's
        assert share.plan.chosen.implementation.operation == share.plan.problem.operation


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize(("boundary", "fill"), [("fill", 0), ("fill", 2), ("wrap", 0), ("symm", 0)])
@pytest.mark.parametrize("shape", [(21, 13), (2, 2, 9, 8)])
def test_convolutions(several, shape, boundary, fill, mode):
    image, filter = values(*shape), values(4, 3)
    options = {"mode": mode, "boundary": boundary, "fillvalue": fill}
    placed = {"device": ALL, "method": "direct"}
    plan = hetero.plan("convolve2d", image, filter, **options, **placed)
    assert [s.along for s in plan.chosen.shares] == ["rows" if len(shape) == 2 else "images"] * 2
    found = hetero.convolve2d(image, filter, **options, **placed)
    assert used(several) == ["cuda:0", "cuda:1"]
    for one, expected in zip(
        found.reshape(-1, *found.shape[-2:]), image.reshape(-1, *shape[-2:]), strict=True
    ):
        np.testing.assert_array_equal(
            one, signal.convolve2d(expected, filter, mode, boundary, fill)
        )


@pytest.mark.parametrize("layout", ["C", "F", "strided"])
@pytest.mark.parametrize("case", ["rows", "columns"])
def test_out(several, case, layout):
    _, *shapes = PRODUCTS[case]
    A, B = (values(*shape) for shape in shapes)
    out = LAYOUTS[layout](np.full((shapes[0][0], shapes[1][1]), 7.0, "float32"))
    assert hetero.matmul(A, B, out=out, device=ALL) is out
    np.testing.assert_array_equal(out, A @ B)
    assert used(several) == ["cuda:0", "cuda:1"]
    if layout == "strided":
        assert (out.base[1::3] == 7).all()
        assert (out.base[:, 1::2] == 7).all()


def test_on_opencl_devices(opencl, monkeypatch):
    """Real kernels: bit for bit what one device makes of these sizes."""
    from hetero.devices.opencl import OpenCLDevice

    one = devices.get(opencl)
    kind = opencl.partition(":")[0]
    here = {n: d for n, d in devices.available().items() if not n.startswith(kind)}
    both = {name: OpenCLDevice(n, one._device) for n, name in enumerate((f"{kind}:0", f"{kind}:1"))}
    monkeypatch.setattr(devices, "found", {**here, **both})
    monkeypatch.setattr(peers, "LEAST", 0)
    inventory.changed()
    rng = np.random.default_rng(0)
    A, B = rng.random((512, 96)), rng.random((96, 8))
    for name, operands, method in (
        ("matmul", (A, B), "tiled"),
        ("convolve2d", (A, B[:5, :4]), "direct"),
    ):
        plan = hetero.plan(name, *operands, device=f"{kind}:*", method=method)
        assert [s.plan.chosen.device for s in plan.chosen.shares] == list(both)
        call = getattr(hetero, name)
        alone = call(*operands, device=f"{kind}:0", method=method)
        np.testing.assert_array_equal(call(*operands, device=f"{kind}:*", method=method), alone)
    assert not devices.troubles()


# -- By way of each other --------------------------------------------------------------------------


@pytest.fixture
def peered(several, monkeypatch):
    """Devices with direct paths to each other, and the bytes of each copy from the host."""
    monkeypatch.setattr(peers, "LEAST", 0)
    monkeypatch.setattr(streaming, "_LATE", 20.0)  # of a machine that is busy
    monkeypatch.setattr(peers, "trusted", lambda one, other: True)
    return several, fakes.uploads(monkeypatch, fakes.FakeCuda)


def streamed(A, B):
    return hetero.matmul(A, B, device=ALL, method="streamed")


@pytest.fixture
def tiles(monkeypatch):
    """Ranges of 8 rows by 8 columns."""
    sides = {"rows": 8, "columns": 8}
    monkeypatch.setattr(
        ranges, "_cuts", lambda cut, size: [tuple(min(sides.get(n, 1), e) for n, e in cut.axes)]
    )


@pytest.mark.parametrize("several", [2, 3, 4], indirect=True)
@pytest.mark.parametrize("layout", ["C", "F", "strided"])
@pytest.mark.parametrize("shapes", [((64, 30), (30, 43)), ((40, 30), (30, 200)), ((24, 5), (5, 8))])
def test_what_all_of_them_need_goes_up_once(peered, tiles, shapes, layout):
    """But for a matrix that is a single part."""
    several, sizes = peered
    for seed in (1, 2):  # the second call remembers its ranges
        A, B = (LAYOUTS[layout](seed * values(*shape)) for shape in shapes)
        sizes.clear()
        np.testing.assert_array_equal(streamed(A, B), A @ B)
        sent = A.nbytes + B.nbytes if shapes[1][1] > 8 else A.nbytes + len(several) * B.nbytes
        assert sum(sizes) == sent


def test_where_not_all_parts_have_room_each_has_them_from_the_host(peered, tiles):
    A, B = values(64, 30), values(30, 200)
    with hetero.use(memory_limit=12 << 10):
        np.testing.assert_array_equal(streamed(A, B), A @ B)
    assert sum(peered[1]) > A.nbytes + B.nbytes


def test_devices_that_begin_one_after_the_other_do_not_wait_for_each_other(
    peered, tiles, monkeypatch
):
    """As where there are no threads: what the others would upload comes from the host."""
    monkeypatch.setattr(peers, "_pool", functools.cache(raising(RuntimeError("no threads"))))
    monkeypatch.setattr(streaming, "_LATE", 0.01)
    A, B = values(64, 30), values(30, 32)
    np.testing.assert_array_equal(streamed(A, B), A @ B)
    assert sum(peered[1]) == A.nbytes + 2 * B.nbytes


@pytest.mark.parametrize("error", [DeviceError, DeviceMemoryError])
@pytest.mark.parametrize("which", [0, 1])
def test_a_path_that_fails(peered, tiles, monkeypatch, which, error):
    """What does not come from the other one comes from the host; nobody computes on the CPU."""
    found, sizes = peered
    monkeypatch.setattr(found[which], "copy_from_peer", raising(error("no path")))
    A, B = values(64, 30), values(30, 32)
    np.testing.assert_array_equal(streamed(A, B), A @ B)
    assert not devices.troubles()
    assert sum(sizes) == A.nbytes + B.nbytes + B.nbytes // 2


@pytest.mark.parametrize("what", ["begin_upload", "allocate", "begin_download"])
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("several", [3], indirect=True)
def test_others_do_without_one_that_fails(peered, tiles, monkeypatch, which, what):
    found, _ = peered
    monkeypatch.setattr(found[which], what, raising(DeviceError("gone")))
    A, B = values(64, 30), values(30, 48)
    np.testing.assert_array_equal(streamed(A, B), A @ B)
    assert devices.troubles() == {f"cuda:{which}": "gone"}


# -- Failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["begin_upload", "allocate", "download"])
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("case", ["rows", "columns"])
def test_the_cpu_does_what_a_device_failed_to_do(
    several, case, which, what, monkeypatch, warnings_of
):
    name, *shapes = PRODUCTS[case]
    A, B = (values(*shape) for shape in shapes)
    monkeypatch.setattr(several[which], what, raising(DeviceError("gone")))
    found = getattr(hetero, name)(A, B, device=ALL)
    np.testing.assert_array_equal(found, getattr(np, name)(A, B))
    assert devices.troubles() == {f"cuda:{which}": "gone"}
    (told,) = warnings_of()
    along = "columns" if case == "columns" else "rows"
    assert f"cuda:{which} failed (gone); the CPU does its {along}" in told
    assert several[1 - which].log.count("compute") == 1


# -- Plans and prices -----------------------------------------------------------------------------

SEVERAL = {"cpu": CPU, "cuda:0": GPU, "cuda:1": {**GPU, "same_as": "cuda:0"}}
BUS = {"upload": link(1e-5, 1e9), "download": link(2e-5, 5e8)}
TOGETHER = {"upload": link(1e-5, 8e8), "download": link(2e-5, 4e8)}


def test_no_room_is_no_failure(several, monkeypatch):
    A, B = values(40, 30), values(30, 20)
    monkeypatch.setattr(several[1], "allocate", raising(DeviceMemoryError("no room")))
    for _ in range(3):
        np.testing.assert_array_equal(hetero.matmul(A, B, device=ALL), A @ B)
    assert devices.troubles() == {"cuda:1": "out of memory"}
    assert not devices.disabled("cuda:1")


def shared(plan):
    return candidate(plan, ALL, "tiled")


def test_prices_by_hand():
    n = 4096
    nbytes, flops = 4.0 * n * n, 2.0 * n**3
    terms = {"overhead": 5e-6 + 7e-6, "compute": flops / 2 / 1e12}
    for together, turns, up, down in (
        ({"cuda*2": TOGETHER}, 1, 8e8, 4e8),
        ({"cuda*2": {}}, 1, 1e9, 5e8),  # as each alone
        ({}, 2, 1e9, 5e8),  # one after the other
    ):
        terms["upload"] = turns * (2e-5 + 1.5 * nbytes / up)  # half of A, and B
        terms["download"] = turns * (2e-5 + nbytes / 2 / down)
        constants = machine(links={"cuda:*": BUS, **together})
        found = shared(priced(square(n), SEVERAL, constants))
        assert found.terms == pytest.approx(terms)
        assert found.seconds == pytest.approx(sum(terms.values()))


@pytest.mark.parametrize("n", [64, 700])
def test_little_is_not_shared(n):
    plan = priced(square(n), SEVERAL)
    assert shared(plan).reason == "each device would move less than 4 MiB"
    assert not plan.chosen.shares
    assert priced(square(n), SEVERAL, device=ALL).chosen.shares, "but where it is asked for"


def test_copies_of_operands_that_do_not_change_are_none_of_the_parts(several):
    """They hold the whole operand, and a range is another one."""
    A, B = (hetero.keep(values(*shape), uses=100) for shape in ((400, 300), (300, 200)))
    for name in ("cuda:0", "cuda:1"):
        np.testing.assert_array_equal(hetero.matmul(A, B, device=name), A @ B)
        assert name in hetero.plan("matmul", A, B).problem.inputs[0].copies
    used(several)
    np.testing.assert_array_equal(hetero.matmul(A, B, device=ALL), A @ B)
    assert used(several) == ["cuda:0", "cuda:1"]
