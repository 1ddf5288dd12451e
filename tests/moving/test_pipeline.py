"""The engine that moves blocks while others are computed: order, overlap, failures, interrupts.

Copies run in threads that begin late, on a device in host memory: what reads a slot before its copy
is there, or writes to one that is still read, gives a wrong result.
"""

from __future__ import annotations

import random
import threading
import time
from functools import partial

import numpy as np
import pytest

from hetero.devices.base import Copy
from hetero.moving import pipeline
from hetero.moving.pipeline import Load, Step, Store


class Late(Copy):
    """Work in a thread of its own, which takes its time, behind what it waits for."""

    def __init__(self, work, before):
        def run():
            if before is not None:
                before.wait()
            time.sleep(random.random() * 4e-4)
            work()

        self.thread = threading.Thread(target=run)
        self.thread.start()

    def wait(self):
        self.thread.join()


class Racy:
    """A device with a queue in a thread, and copies beside it; buffers are arrays of numbers."""

    def __init__(self):
        self.most = 0  # copies at once
        self.copies = 0
        self.queue = []
        self.lock = threading.Lock()
        self.started = []

    def allocate(self, nbytes):
        return np.full(nbytes, 0xFF, np.uint8), None

    def record(self):
        return self.queue[-1] if self.queue else Copy()

    def launch(self, work):
        """Work in the order of the queue, behind all before it."""
        self.queue.append(Late(work, self.record()))

    def _copy(self, name, work, after):
        self.started.append(name)
        with self.lock:
            self.copies += 1
            self.most = max(self.most, self.copies)

        def run():
            work()
            with self.lock:
                self.copies -= 1

        return Late(run, after)

    def begin_upload(self, source, target, offset=0, after=None):
        part = target[offset : offset + source.nbytes]

        def work():
            part[...] = np.ascontiguousarray(source).reshape(-1).view(np.uint8)

        return self._copy("upload", work, after)

    def begin_download(self, source, target, offset=0, after=None):
        part = source[offset : offset + target.nbytes].view(target.dtype).reshape(target.shape)

        def work():
            target[...] = part

        return self._copy("download", work, after)

    def synchronize(self):
        for work in self.queue:
            work.wait()


@pytest.fixture
def device():
    made = Racy()
    yield made
    made.synchronize()
    assert made.copies == 0, "a copy is in flight"


def doubled(device, x, result, rows, slots=2):
    """The steps that double a matrix and add a vector that is loaded once, block by block."""
    width = x.shape[1] * x.itemsize
    (once,) = pipeline.slots(device, width, 1)
    there = pipeline.slots(device, rows * width, slots)
    back = pipeline.slots(device, rows * width, slots)
    for number, begin in enumerate(range(0, len(x), rows)):
        block, to = x[begin : begin + rows], result[begin : begin + rows]
        source, target = there[number % slots], back[number % slots]

        def work(source=source, target=target, shape=block.shape):
            count = shape[0] * shape[1]
            values = source.buffer.view(x.dtype)[:count]
            added = np.tile(once.buffer.view(x.dtype), shape[0])
            target.buffer.view(x.dtype)[:count] = 2 * values + added

        loads = (Load(block, source),)
        if not number:
            loads = (Load(np.arange(x.shape[1], dtype=x.dtype), once), *loads)
        yield Step(partial(device.launch, work), loads, (Store(target, to),), (once,))


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("rows", [3, 20, 50])
def test_blocks_come_back_right(device, slots, rows):
    x = np.random.default_rng(1).random((20, 5))
    laid = np.asfortranarray(x)[:, ::-1]
    result = np.zeros((5, 20)).T
    pipeline.run(device, doubled(device, laid, result, rows, slots))
    np.testing.assert_array_equal(result, 2 * laid + np.arange(5.0))


def test_copies_both_ways_go_on_at_once(device):
    x, result = np.random.default_rng(1).random((60, 50)), np.zeros((60, 50))
    pipeline.run(device, doubled(device, x, result, 5, 4))
    assert device.most > 1
    assert device.started.index("download") < len(device.started) - 1
    # Loads of steps to come begin before the first result leaves.
    assert device.started[: device.started.index("download")].count("upload") > 2
