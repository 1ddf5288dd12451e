"""`hetero transfer`: its arithmetic, what it prints, and what it refuses."""

from __future__ import annotations

import pytest
from command_line import OK, refused

import hetero
from hetero import devices, registry
from hetero.evaluation import calls, transfer
from hetero.evaluation.calls import BreakEven, Call, break_even
from hetero.profile import inventory

MB = 1 << 20


def test_other_break_evens():
    faster = {8: True, 64: False, 512: True}  # the smaller size does not count
    device = lambda n: 0.5 if faster.get(n, n > 200) else 2.0  # noqa: E731
    assert break_even(lambda n: 1.0, device, [*faster]).extent == 201
    assert break_even(lambda n: 1.0, lambda n: 2.0, [8, 64]) == BreakEven(None, 8, 64)
    assert break_even(lambda n: 2.0, lambda n: 1.0, [8, 64]) == BreakEven(8, 8, 64)
    assert break_even(lambda n: 1.0, lambda n: None, [8, 64]) == BreakEven(None, 8, 64)


def test_it_pays_from_where_a_plan_takes_the_device_on():
    call = Call(registry.operation("matmul"), (780, 780, 780), "float32")
    found = transfer.transfer(None, None, call, named="h100")["pays"]["staged"]
    extent = found["break_even"]["extent"]
    assert found["gain"] < 1.0
    for n, device in ((extent - 8, "cpu"), (extent + 8, "cuda:0")):
        operands = (hetero.spec((n, n), "float32"),) * 2
        assert hetero.plan("matmul", *operands, profile="h100").chosen.device == device


def test_sizes_that_the_operation_does_not_take_are_left_out():
    """Rows must be as many as clusters; only they grow."""
    call = Call(registry.operation("kmeans"), (100_000, 8, 64), "float32")
    cpu = transfer.transfer(None, None, call, named="h100")["curves"]["cpu"]
    assert 64 <= min(cpu) < 100
    assert call.of_size(500).dims == (500, 8, 64)


def test_seconds_that_are_given():
    """Report of the seed: 20.8 MB up and 4.8 MB down for a product of 9 s."""
    found = transfer.transfer(20_800_000, 4_800_000, (9.0, 0.023), named="h100")
    for one in found["pays"].values():
        moved = one["upload"] + one["download"]
        assert one["gain"] == pytest.approx(9.0 / (0.023 + moved))
        assert one["calls"] == 1
    assert found["over"] == "bytes"
    slow = transfer.transfer(1 << 30, 0, (0.1, 0.02), named="h100")["pays"]["pageable"]
    left = 0.1 - 0.02
    assert slow["calls"] - 1 <= slow["upload"] / left < slow["calls"]
    never = transfer.transfer(0, 1 << 30, (0.1, 0.02), named="h100")["pays"]["pageable"]
    assert never["calls"] is None


def test_command(run, data, tmp_path):
    path, work = tmp_path / "curves.svg", ("matmul", 2048, 2048, 2048)
    given = ("transfer", "64MiB", "1e6", "--work", *work, "--profile", "h200", "--plot", path)
    found = data(*given)
    assert (found["up"], found["down"], found["device"]) == (64 * MB, 1_000_000, "cuda:0")
    assert found["what"] == "matmul 2048 2048 2048 float64"
    assert found["pays"].keys() >= {"pageable", "pinned"}
    assert path.read_bytes().startswith(b"<?xml")
    code, out, err = run(*given)
    assert code == OK, err
    for word in ("pageable", "pinned", "67,108,864", "h200", "from size"):
        assert word in out


@pytest.mark.parametrize(
    ("work", "answer"),
    [
        ("matvec 2535 2535", "Yes: moving pays from n = 2535 on; cuda:0 is 1 times as fast as cpu"),
        ("matvec 2534 2534", "No: moving pays from n = 2535 on; cuda:0 is 1 times as fast"),
        ("0.1 0.001", "Yes: cuda:0 is "),
        ("0.1", "Yes, if the work takes cuda:0 less than "),
        ("1e-6", "Yes, if the work takes cuda:0 less than 0 us"),
        ("kmeans 100 4 3", "Yes, if the work takes cpu longer than cuda:0 by more than"),
        ("convolve2d 4096 4096 63 63", "Yes: moving pays at every size looked at, from h = 8 on; "),
    ],
)
def test_the_first_line_answers(run, work, answer):
    moved = () if work[0].isalpha() else (1_000_000, 1_000_000)
    place = "--dtype", "float32", "--profile", "tesla-t10"
    code, out, err = run("transfer", *moved, "--work", *work.split(), *place)
    assert code == OK, err
    assert out.splitlines()[0].startswith(answer)


def test_without_a_gpu(run, data, monkeypatch):
    alone = {"cpu": inventory.devices()["cpu"]}
    monkeypatch.setitem(devices.descriptions, "here", alone)
    monkeypatch.setattr(calls.backends, "proven", dict)
    refused(run, "transfer", MB, MB, naming=("no GPU", "--profile", "h100", "tesla-t10"))
    assert data("transfer", MB, MB, "--profile", "tesla-t10")["device"] == "cuda:0"


@pytest.mark.parametrize(
    ("arguments", "naming"),
    [
        (("many", 1), ("'many'", "64MiB")),
        ((1, "-1MB"), ("-1MB",)),
        ((), ("UP", "DOWN", "--work")),
        ((1,), ("hetero: DOWN must", "--work")),
        ((1, 1, "--work", "sum", 3), ("'sum'", "matmul", "convolve2d")),
        ((1, 1, "--work", "matmul", 3), ("M N K", "got 1")),
        ((1, 1, "--work", "matmul", 3, "x", 3), ("whole numbers", "3 x 3")),
        ((1, 1, "--work", "inf"), ("seconds", "inf")),
    ],
)
def test_refused(run, arguments, naming):
    refused(run, "transfer", *arguments, naming=naming)
