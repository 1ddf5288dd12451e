"""The CPU's loops are compiled while a GPU's own clock times, and at no other time."""

from __future__ import annotations

import ast
import contextlib
import itertools
import os
import signal
import sys
import threading
import time
import types

import pytest

from hetero import registry
from hetero.calibration import machine
from hetero.calibration.ahead import compiling
from hetero.calibration.ahead.listing import Listing, kernels_of
from hetero.calibration.environment import overheads, quiet_links
from hetero.calibration.measure import loop, sampling
from hetero.calibration.measure.workbench import Samples
from hetero.calibration.request import FULL, QUICK
from hetero.calibration.worklist import WorkItem, all_cases, by_own_clock
from hetero.host.compiled import loop_compiler, loops
from hetero.ops.cases import Case, Passes, Place, SampleGrid, TimedSolves

GPU = types.SimpleNamespace(kind="cuda", name="cuda:0", active=contextlib.nullcontext)
PLACES = [Place("cpu", {"kind": "cpu"}), Place("cuda:0", {"kind": "cuda"}, (GPU,))]
TOGETHER = Place("cuda*2", {"kind": "cuda"}, (GPU, GPU))


def portion(name, place, *ways, ahead=""):
    row = next(i for i in registry.lookup(name) if i.kind == place.kind)
    cases = [Case(row, "float32", str(n), how, [[4]], ahead=ahead) for n, how in enumerate(ways)]
    return WorkItem(registry.operation(name), place, tuple(cases))


def portions():
    grid, solves, passes = SampleGrid(), TimedSolves(8, 40), Passes("surface", {}, {}, 1.0)
    return [
        *(portion("matmul", place, grid) for place in (*PLACES, TOGETHER)),
        *(portion("poisson", place, solves, grid, passes) for place in PLACES),
        portion("matvec", PLACES[1], grid, ahead="matvec"),
        portion("convolve2d", PLACES[1], grid, passes),
    ]


def test_what_a_device_times_by_its_own_clock():
    at_once, own, rest = by_own_clock(portions())
    assert [p.operation.name for p in at_once] == ["matmul", "poisson", "convolve2d"]
    assert [p.operation.name for p in own] == ["matvec"], "its kernels are compiled before"
    assert {p.place.name for p in (*at_once, *own)} == {"cuda:0"}
    assert all(isinstance(case.how, SampleGrid) for p in (*at_once, *own) for case in p.cases)
    number = sum(len(p.cases) for p in portions())
    assert sum(len(p.cases) for p in (*at_once, *own, *rest)) == number
    assert by_own_clock([portion("matmul", PLACES[0], SampleGrid())])[:2] == ([], [])


def test_shares_that_are_known_later_are_added(monkeypatch):
    case = portion("matmul", PLACES[1], SampleGrid()).cases[0]
    taken = Samples({(4,): 3e-6}, {(5,): 4e-6}, host=1e-6, least=1.5e-6)
    found = sampling.with_share(case, taken, 5e-6)
    assert found.seconds == pytest.approx({(4,): 7e-6})
    assert found.held_out == pytest.approx({(5,): 8e-6})
    assert (found.host, found.least) == (5e-6, 1.5e-6)
    assert sampling.with_share(case, found, 5e-6) is found
    estimated = portion("matmul", PLACES[1], SampleGrid(by_estimate=True)).cases[0]
    found = sampling.with_share(estimated, taken, 5e-6)
    assert (found.seconds, found.host) == (taken.seconds, 5e-6)
    solves = portion("matmul", PLACES[1], TimedSolves(8, 40)).cases[0]
    assert sampling.with_share(solves, taken, 5e-6) is taken


@pytest.fixture
def calibration(monkeypatch):
    """Measures the portions; what was done, in order, and what is left of it."""
    done, given = [], []

    class Loops:
        def look(self):
            done.append("looked")

        def wait_for_own_clock(self, name):
            done.append(f"kernels of {name}")

        def wait(self, told=None):
            done.append("compiled")

        def stop(self):
            done.append("stopped")

    def take(case, bench, *_):
        name = bench.device.name if bench.devices else "cpu"
        done.append((name, type(case.how), case.ahead))
        return Samples({(4,): 1e-6}, host=1e-7)

    def content(wanted, kept, measured, failures):
        given.extend(measured)
        return {"models": {}}

    def compile_ahead(found, quick, tables, measuring, begun):
        done.append("begun")
        assert measuring
        return Loops()

    monkeypatch.setattr(sampling, "take", take)
    monkeypatch.setattr(loop.repeating, "settle", lambda *_: (0, 0, 0))
    monkeypatch.setattr(machine.compiling, "compile_ahead", compile_ahead)
    monkeypatch.setattr(machine.modelling, "profile_of", content)
    monkeypatch.setattr(machine.thread_counts, "tables", lambda *_: {})
    monkeypatch.setattr(machine.outliers, "report", lambda _: [])
    monkeypatch.setattr(machine.blas_spin, "find", lambda: None)
    monkeypatch.setattr(machine.blas_spin, "wait_until_idle", lambda: None)
    monkeypatch.setattr(machine, "places_of", lambda *_: PLACES)
    found = [p for p in portions() if p.place is not TOGETHER]
    monkeypatch.setattr(machine, "all_cases", lambda *_: found)
    shares = {("matmul", found[1].cases[0].implementation.method): 5e-7}
    monkeypatch.setattr(overheads, "pack", lambda _: done.append("pack"))
    monkeypatch.setattr(quiet_links, "links", lambda *_: done.append("links") or {})
    monkeypatch.setattr(
        overheads, "of_calls", lambda *_: done.append("calls") or ({"device": 1e-5}, shares)
    )
    wanted = types.SimpleNamespace(budget=FULL, devices=[], quick=True, only=(), base=None)
    kept = loop.Keeper()
    kept.around, kept.pack, kept.cases, kept.kernels = {}, None, 0, {}
    kept.turns_left, kept.write_if_due = lambda *_: 0, lambda: None

    def measure():
        machine._measure(wanted, kept, None)
        return given, [loop.key_of(case, p.place) for p in found for case in p.cases]

    return measure, done


def test_loops_are_compiled_only_while_a_gpus_own_clock_times(calibration):
    measure, done = calibration
    given, in_order = measure()
    assert [one.key for one in given] == in_order, "as if nothing were compiled meanwhile"
    begun, *rest, stopped = done
    assert (begun, stopped) == ("begun", "stopped")
    kernels, compiled = rest.index("kernels of cuda:0"), rest.index("compiled")
    own = "cuda:0", SampleGrid
    assert [one for one in rest[:kernels] if one != "looked"] == [(*own, "")] * 3
    then = [one for one in rest[kernels + 1 : compiled] if one != "looked"]
    assert then == [(*own, "matvec")]
    pack, links, calls, *later = rest[compiled + 1 :]
    assert [pack, links, calls] == ["pack", "links", "calls"], "timed by the host: after compiling"
    assert {"pack", "links", "calls", "compiled", "looked", "kernels of cuda:0"}.isdisjoint(later)
    assert later.count(("cuda:0", TimedSolves, "")) == 2, "by the host's clock: looked at twice"
    assert later.count(("cuda:0", Passes, "")) == 2
    assert later.count(("cpu", SampleGrid, "")) == 4
    assert not [one for one in later if one[:2] == own]
    (matmul,) = [x for x in given if (x.key.place, x.key.operation) == ("cuda:0", "matmul")]
    assert matmul.samples.seconds == pytest.approx({(4,): 1.4e-6}), "with the host's share"


def test_what_compiles_is_ended_by_an_interrupt(calibration, monkeypatch):
    measure, done = calibration

    def take(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(sampling, "take", take)
    with pytest.raises(KeyboardInterrupt):
        measure()
    assert done[-1] == "stopped"
    assert "compiled" not in done


@pytest.mark.parametrize("interrupted", [1, 2])
def test_an_interrupt_while_processes_begin_leaves_none_behind(monkeypatch, interrupted):
    """While the second of the loops' begins, or the one for a device's kernels after them."""
    left = []

    class Process:
        def terminate(self):
            left.remove(self)

        def wait(self):
            assert self not in left

    def begin(*_):
        if len(left) == interrupted:
            raise KeyboardInterrupt
        left.append(Process())
        return left[-1]

    monkeypatch.setattr(loop_compiler.fork_server, "Server", lambda: Server(begin, left))
    monkeypatch.setattr(compiling, "_process", begin)
    monkeypatch.setattr(loop_compiler.os, "cpu_count", lambda: 4)  # two of the loops' at first
    monkeypatch.setattr(loops, "is_ready", lambda name: False)
    monkeypatch.setattr(compiling.library, "is_here", lambda: True)
    with pytest.raises(KeyboardInterrupt):
        compiling.begin()
    assert not left


class Server:
    """As `fork_server.Server`: processes are what ``begin`` makes."""

    def __init__(self, begin, running=()):
        self.begin, self._running = begin, running

    def stop(self):
        for process in [*self._running]:
            process.terminate()


def test_the_longest_are_begun_first_and_all_end(monkeypatch):
    begun, ended, niced, running = [], [], [], []

    class Process:
        pid = None

        def __init__(self, name, nice):
            begun.append(name)
            niced.extend([name] * bool(nice))
            running.append(self)
            self.name = name

        def poll(self):
            return 0 if self.name in ended else None

        def terminate(self):
            running.remove(self)
            if self.name not in ended:
                ended.append(self.name)

    seconds = {"a": 5.0, "b": 7.0, "c": 15.0, "d": 10.0, "e": 6.0, "there": 9.0}
    monkeypatch.setattr(loop_compiler.fork_server, "Server", lambda: Server(Process, running))
    monkeypatch.setattr(loop_compiler, "_ended", lambda name: None)
    monkeypatch.setattr(loop_compiler.loops, "is_ready", lambda name: name == "there")
    monkeypatch.setattr(
        loop_compiler.loops, "family_of", lambda name: types.SimpleNamespace(seconds=seconds[name])
    )
    monkeypatch.setattr(loop_compiler.os, "cpu_count", lambda: 2)
    found = loop_compiler.Processes(seconds)
    assert begun == ["c", "d"]
    found.look()
    assert begun == ["c", "d"]
    ended.append("d")
    found.look()
    assert begun == ["c", "d", "b"]
    told, looks = [], itertools.count()

    def one_ends(seconds):
        if next(looks) % 3 == 2:  # it is told once of each number
            ended.append(next(name for name in begun if name not in ended))

    monkeypatch.setattr(loop_compiler.time, "sleep", one_ends)
    found.wait(told.append)
    assert (begun, told) == (["c", "d", "b", "e", "a"], [4, 3, 2, 1])
    assert sorted(ended) == ["a", "b", "c", "d", "e"]
    ended.clear()
    found = loop_compiler.Processes(["c", "d", "b"])
    found.stop()
    assert ended == ["c", "d"]
    found.wait()
    assert begun[-1] == "d", "no more are begun"
    monkeypatch.setattr(loop_compiler.os, "cpu_count", lambda: 16)
    begun.clear()
    seconds |= {str(n): 8.0 for n in range(13)}
    assert loop_compiler.Processes(seconds)._left == []
    assert len(begun) == 18, "the last two do not wait for others"
    assert niced == []
    begun.clear()
    loop_compiler.Processes(seconds, measuring=True)
    assert begun[:2] == ["c", "d"]
    assert niced == begun, "what is measured comes first"


def test_what_is_early_leaves_half_of_the_machine_alone(monkeypatch):
    begun, niced, running = [], [], []

    class Process:
        def __init__(self, name, nice):
            begun.append(name)
            niced.extend([name] * bool(nice))
            running.append(self)
            self.pid = len(begun)

        def poll(self):
            return None

    monkeypatch.setattr(loop_compiler.fork_server, "Server", lambda: Server(Process, running))
    monkeypatch.setattr(loop_compiler.loops, "is_ready", lambda name: name == "there")
    family = types.SimpleNamespace(seconds=1.0)
    monkeypatch.setattr(loop_compiler.loops, "family_of", lambda name: family)
    monkeypatch.setattr(loop_compiler.os, "cpu_count", lambda: 8)
    names = [str(n) for n in range(8)]
    found = loop_compiler.Processes(["there", *names], measuring=True, early=True)
    assert begun == names[:4]
    assert niced == begun, "whatever else is done comes first"
    found.look()
    assert begun == names[:4]
    found.ask(["there", *names[:3], "more"])
    assert begun == [*names, "more"], "each once"
    begun.clear()
    niced.clear()
    loop_compiler.Processes(names, early=True)
    assert begun == names[:4]
    assert niced == [], "they are waited for"


def test_what_was_begun_is_asked_for_the_rest(monkeypatch):
    """And the process that was begun for a device's kernels gets them, or is ended."""
    asked, spares = [], []

    class Processes:
        def __init__(self, names, measuring=False, early=False):
            asked.append((names, measuring, early))

        def ask(self, names):
            asked.append(names)

        def stop(self):
            pass

    class Kernels:
        process = None

        def __init__(self, place, cases, quick, tables, process):
            asked.append((place.name, process))

        def stop(self):
            pass

    def process():
        spares.append(types.SimpleNamespace(pid=0))
        return spares[-1]

    ended = []
    monkeypatch.setattr(loop_compiler, "Processes", Processes)
    monkeypatch.setattr(compiling, "Kernels", Kernels)
    monkeypatch.setattr(compiling, "_process", process)
    monkeypatch.setattr(compiling, "_end", ended.append)
    monkeypatch.setattr(compiling, "_loops", lambda work: ["x in float32"])
    monkeypatch.setattr(loops, "is_ready", lambda name: False)
    for is_there in (True, False):
        monkeypatch.setattr(compiling.library, "is_here", lambda found=is_there: found)
        begun = compiling.begin()
        assert asked == [(loops.every(), is_there, True)]
        assert len(spares) == is_there
        assert compiling.compile_ahead(portions(), False, {}, True, begun) is begun
        assert asked[1:] == [["x in float32"], ("cuda:0", spares[0] if is_there else None)]
        begun.stop()
        assert not ended
        asked.clear()
        spares.clear()
    monkeypatch.setattr(compiling.library, "is_here", lambda: True)
    begun = compiling.begin()
    compiling.compile_ahead(portions()[:1], False, {}, False, begun)
    assert ended == spares, "there is no such device"
    monkeypatch.setattr(loops, "is_ready", lambda name: True)
    assert compiling.begin().spare is None, "nothing is to be compiled"


def test_a_process_for_each_device_and_those_of_the_loops(monkeypatch):
    asked = []

    class Processes:
        def __init__(self, names, measuring=False, early=False):
            asked.append((names, measuring))
            assert not early

        def look(self):
            asked.append("looked")

        def wait(self, told):
            asked.append("waited")

        def stop(self):
            asked.append("stopped")

    class Kernels:
        process = None

        def __init__(self, place, cases, quick, tables, process):
            assert process is None
            self.name = place.name
            asked.append((place.name, len(cases), quick, tables))

        def wait_for_first(self):
            asked.append(f"first of {self.name}")

        def wait(self):
            asked.append(f"all of {self.name}")

        def stop(self):
            asked.append(f"stopped {self.name}")

    monkeypatch.setattr(loop_compiler, "Processes", Processes)
    monkeypatch.setattr(compiling, "Kernels", Kernels)
    monkeypatch.setattr(compiling, "_loops", lambda work: ["x in float32"])
    begun = [(["x in float32"], True), ("cuda:0", 7, False, {"a card": {}})]
    left = compiling.compile_ahead(portions(), False, {"a card": {}}, True)
    assert asked == begun, "nothing is waited for, and several devices need nothing of their own"
    left.wait_for_own_clock("cuda:1")
    left.wait_for_own_clock("cuda:0")
    assert asked[2:] == ["looked", "looked", "first of cuda:0"]
    del asked[2:]
    left.wait()
    assert asked[2:] == ["waited", "all of cuda:0"]
    assert {*loops._PACKAGES} <= {*sys.modules}, "imported meanwhile"
    del asked[2:]
    left.stop()
    assert asked[2:] == ["stopped", "stopped cuda:0"]

    def fails(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(compiling, "Kernels", fails)
    with pytest.raises(KeyboardInterrupt):
        compiling.compile_ahead(portions(), True, {}, True)
    assert asked[-1] == "stopped"


def test_a_process_compiles_first_what_is_waited_for_first(monkeypatch, tmp_path):
    """It does what it is told, but leaves what it would compile in a file."""
    told = tmp_path / "told"
    info = {"kind": "cuda", "name": "a card", "memory_bytes": 80 << 30, "multiprocessors": 132}
    info |= {"block_limit": 1024, "shared_limit": 227 << 10, "arch": "sm_90"}
    monkeypatch.setattr(
        compiling,
        "_COMMAND",
        "from hetero.calibration.ahead import kernel_compiler\n"
        f"kernel_compiler.inventory.devices = lambda: {{'cuda:0': {info!r}}}\n"
        "kernel_compiler.kernel_text = lambda text, dialect: text\n"
        "import os, threading\n"
        "def keep(*one):\n"
        "    nice = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())\n"
        f"    with open({str(told)!r}, 'a') as file: file.write(f'{{one, nice}}\\n')\n"
        "kernel_compiler.cubin.keep = keep\n" + compiling._COMMAND,
    )
    place = Place("cuda:0", info, (Listing("cuda:0", info),))
    operations = [registry.operation(name) for name in ("matvec", "convolve2d")]
    cases = [c for p in all_cases(operations, [place], QUICK, []) for c in p.cases]
    cases = [case for case in cases if case.dtype == "float32" and case.ahead]
    process = compiling.Kernels(place, cases, True, {})

    def made():
        return [ast.literal_eval(line) for line in told.read_text().splitlines()]

    process.wait_for_first()
    early = made()
    process.wait()
    device = Listing("cuda:0", info)
    own = [case for case in cases if case.implementation.operation == "matvec"]
    first, others = kernels_of(device, own), kernels_of(device, cases)
    assert others
    lower = {}
    for (file, arch, defines), nice in made():
        assert arch == "sm_90"
        assert (file, defines) not in lower, "each once"
        lower[file, defines] = nice
    here = os.nice(0)
    assert lower == dict.fromkeys(first, min(here + 10, 19)) | dict.fromkeys(others, 19)
    assert {*first} <= {(file, defines) for (file, _, defines), _ in early}
    asked = compiling.Kernels(place, cases, True, {})
    asked.wait()
    assert len(made()) == len(lower), "they are known to be compiled"


def test_a_process_that_fails_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(compiling, "_COMMAND", "raise SystemExit(3)")
    process = compiling.Kernels(PLACES[1], [], True, {})
    process.wait_for_first()
    process.wait()
    process.stop()
    monkeypatch.setattr(compiling, "_COMMAND", "import time; time.sleep(60)")
    begin = time.monotonic()
    compiling.Kernels(PLACES[1], [], True, {}).stop()
    assert time.monotonic() - begin < 30


def test_a_program_that_ignores_signals_ends_what_compiles(monkeypatch):
    """Who compiles inherits that it ignores them."""
    monkeypatch.setattr(compiling, "_COMMAND", "print(flush=True); input()")
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        process = compiling._process()
    finally:
        signal.signal(signal.SIGTERM, before)
    process.stdout.readline()
    killer = threading.Timer(30, process.kill)  # or this would never end
    killer.start()
    begin = time.monotonic()
    compiling._end(process)
    killer.cancel()
    assert time.monotonic() - begin < 30
