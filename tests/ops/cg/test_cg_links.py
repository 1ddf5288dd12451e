"""Which links between devices are trusted."""

from __future__ import annotations

import contextlib
from functools import partial
from types import SimpleNamespace

import fakes
import numpy as np
import pytest
from cg_systems import gpus
from fakes import FakeCuda

from hetero.devices import peers
from hetero.devices.base import Device
from hetero.errors import DeviceError, DeviceMemoryError
from hetero.ops.solvers.exchange import Exchange, Part


@pytest.mark.gpu
@pytest.mark.parametrize("damage", [0, 1])
def test_gpus_that_write_wrong_do_not_meet(monkeypatch, damage, warnings_of):
    """A byte that changes on its way in either direction."""
    pair = gpus(2)
    launch = peers.Meeting.launch

    def damaged(meeting, rank, copies):
        if rank == damage:
            copies = [(target, source, nbytes - 4) for target, source, nbytes in copies]
        return launch(meeting, rank, copies)

    monkeypatch.setattr(peers.Meeting, "launch", damaged)
    assert not peers.meet(pair)
    assert "arrives damaged" in warnings_of()[-1]


class Linked(FakeCuda):
    """Devices with a direct path between them, which may fail in several ways."""

    def __init__(self, ordinal, damage=np.copy):
        super().__init__(ordinal)
        self.damage, self.direct = damage, 0

    copy_from_peer = Device.copy_from_peer

    def link(self, peer):
        return True

    def copy(self, target, source, nbytes, target_offset=0, source_offset=0, stream=None):
        self.direct += 1
        values = fakes.view(source + source_offset, (nbytes,), np.uint8, (1,))
        self.upload(np.ascontiguousarray(self.damage(values)), target, target_offset)


def swapped_page(values):
    """What a wrong address translation does: one page comes from elsewhere."""
    values = values.copy()
    if values.size > 1 << 18:
        values[-4096:] = values[:4096]
    return values


fails = fakes.raising(DeviceError("the link is down"))


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    monkeypatch.setattr(peers, "_trusted", {})


def moved(one, two, nbytes=100_000):
    """Copy between two devices with offsets; tell whether the bytes are right."""
    sent = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)
    seen = np.empty_like(sent)
    with one.active():
        there, _a = one.allocate(nbytes + 64)
        one.upload(sent, there, 16)
        one.synchronize()
    with two.active():
        here, _b = two.allocate(nbytes + 64)
        two.copy_from_peer(here, one, there, nbytes, 32, 16)
        two.synchronize()
        two.download(here, seen, 32)
    return np.array_equal(sent, seen)


@pytest.mark.parametrize(
    ("damage", "text"), [(swapped_page, "to cuda:1 arrive damaged"), (fails, "the link is down")]
)
def test_a_link_that_damages_or_fails_is_not_used(damage, text, warnings_of):
    """In whichever direction: the pair is then not trusted in either, others are."""
    one, bad, three = Linked(0), Linked(1, damage), Linked(2)
    for _ in range(2):  # then it is remembered
        assert moved(one, bad)
        assert moved(bad, one)
        assert max(one.direct, bad.direct) == 1
    assert text in warnings_of()[0]
    before = one.direct
    for source, target, direct in ((one, three, (1, 2)), (three, one, (2, 2))):
        assert moved(source, target)
        assert (one.direct - before, three.direct) == direct
    assert len(warnings_of()) == 1


def test_no_room_for_the_check_is_no_verdict(monkeypatch):
    one, two = Linked(0), Linked(1)
    with monkeypatch.context() as short:
        short.setattr(two, "allocate", fakes.raising(DeviceMemoryError("full")))
        assert not peers.trusted(one, two)
    assert peers.trusted(one, two)


def test_parts_that_meet_are_started_in_turn():
    """Each gets its launches and copies in order, and none eight steps more than another."""
    started, ahead = ([], [], []), []

    def repeat(own, *launches):
        own.extend(launches)
        steps = [max((int(one.split()[0]) for one in each), default=-1) for each in started]
        ahead.append(max(steps) - min(steps))

    parts = [
        SimpleNamespace(active=contextlib.nullcontext, unbuilt=(), repeat=partial(repeat, own))
        for own in started
    ]
    exchange = Exchange(parts[:1])
    exchange.parts, exchange.meeting = parts, "they meet"
    steps = [([[f"{i} a"], [f"{i} b", f"{i} c"], []], [f"{i} to others"] * 3) for i in range(19)]
    exchange.run_all([*steps, ([["19 a"], ["19 b"], ["19 c"]], ())])
    for number, own in enumerate(started):
        expected = [one for launches, moves in steps for one in (*launches[number], moves[number])]
        assert own == [*expected, f"19 {'abc'[number]}"]
    assert max(ahead) == 8


def test_launches_that_come_the_third_time_are_a_graph():
    """Others are not, nor the same ones in another order; all are done each time, in order."""
    device, done, graphs = FakeCuda(0), [], []

    def graph(stream, start):
        before = len(done)
        start()
        recorded = done[before:]
        del done[before:]
        graphs.append(recorded)
        return SimpleNamespace(launch=lambda: done.extend(recorded))

    device.graph = graph
    device.launch = lambda *bound: done.append(bound[0])
    part = Part(device, alone=True)
    a, b, c = ([name, 1, 1, []] for name in "abc")
    expected, made = [], []
    for launches in [*4 * ([a, b], [b, a]), [c]]:
        part.repeat(*launches)
        expected += [one[0] for one in launches]
        made.append(len(graphs))
        assert done == expected
    assert made == [0, 0, 0, 0, 1, 2, 2, 2, 2]
    assert graphs == [["a", "b"], ["b", "a"]]
