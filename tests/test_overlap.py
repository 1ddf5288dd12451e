"""The CPU's loops are compiled beside what a GPU's own clock times, and beside nothing else."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import itertools
import sys
import types

import pytest

from hetero.calibration import compiling, loop, machine, overheads, sampling
from hetero.calibration.budgets import FULL
from hetero.calibration.portions import Portion, by_own_clock
from hetero.calibration.sampling import Samples
from hetero.devices import loop_compiler, loops
from hetero.runtime import registry
from hetero.runtime.cases import Case, Passes, Place, SampleGrid, TimedSolves

GPU = types.SimpleNamespace(kind="cuda", name="cuda:0", active=contextlib.nullcontext)
PLACES = [Place("cpu", {"kind": "cpu"}), Place("cuda:0", {"kind": "cuda"}, (GPU,))]
TOGETHER = Place("cuda*2", {"kind": "cuda"}, (GPU, GPU))


def portion(name, place, *ways):
    row = next(i for i in registry.lookup(name) if i.kind == place.kind)
    cases = [Case(row, "float32", str(n), how, [[4]]) for n, how in enumerate(ways)]
    return Portion(registry.operation(name), place, tuple(cases))


def portions():
    grid, solves, passes = SampleGrid(), TimedSolves(8, 40), Passes("surface", {}, {}, 1.0)
    return [
        *(portion("matmul", place, grid) for place in (*PLACES, TOGETHER)),
        *(portion("poisson", place, solves, grid, passes) for place in PLACES),
    ]


def test_what_a_device_times_by_its_own_clock():
    own, rest = by_own_clock(portions())
    assert {(p.operation.name, p.place.name) for p in own} == {
        *(("matmul", "cuda:0"), ("poisson", "cuda:0"))
    }
    assert all(isinstance(case.how, SampleGrid) for p in own for case in p.cases)
    number = sum(len(p.cases) for p in portions())
    assert sum(len(p.cases) for p in (*own, *rest)) == number
    assert by_own_clock([portion("matmul", PLACES[0], SampleGrid())])[0] == []


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

        def wait(self, told=None):
            done.append("compiled")

        def stop(self):
            done.append("stopped")

    def take(case, bench, *_):
        done.append((bench.device.name if bench.devices else "cpu", type(case.how)))
        return Samples({(4,): 1e-6}, host=1e-7)

    def content(wanted, kept, measured, failures):
        given.extend(measured)
        return {"models": {}}

    def compile_ahead(found, quick, told, beside):
        done.append("kernels")
        return Loops() if beside else None

    monkeypatch.setattr(sampling, "take", take)
    monkeypatch.setattr(loop.repeats, "settle", lambda *_: (0, 0, 0))
    monkeypatch.setattr(machine.compiling, "compile_ahead", compile_ahead)
    monkeypatch.setattr(machine.content, "profile_of", content)
    monkeypatch.setattr(machine.thread_counts, "tables", lambda *_: {})
    monkeypatch.setattr(machine.keeping_out, "told", lambda _: [])
    monkeypatch.setattr(machine.blas_spin, "find", lambda: None)
    monkeypatch.setattr(machine.blas_spin, "rest", lambda: None)
    monkeypatch.setattr(machine, "places_of", lambda *_: PLACES)
    found = [p for p in portions() if p.place is not TOGETHER]
    monkeypatch.setattr(machine, "all_cases", lambda *_: found)
    shares = {("matmul", found[1].cases[0].implementation.method): 5e-7}
    monkeypatch.setattr(overheads, "pack", lambda _: done.append("pack"))
    monkeypatch.setattr(overheads, "links", lambda *_: done.append("links") or {})
    monkeypatch.setattr(
        overheads, "of_calls", lambda *_: done.append("calls") or ({"device": 1e-5}, shares)
    )
    wanted = types.SimpleNamespace(budget=FULL, devices=[], quick=True, only=(), base=None)
    kept = loop.Keeper()
    kept.around, kept.pack, kept.cases = {}, None, 0
    kept.turns_left, kept.write_if_due = lambda *_: 0, lambda: None

    def measure():
        machine._measure(wanted, kept, None)
        return given, [loop.key_of(case, p.place) for p in found for case in p.cases]

    return measure, done


def test_loops_are_compiled_beside_a_gpus_own_clock_only(calibration):
    measure, done = calibration
    given, in_order = measure()
    assert [one.key for one in given] == in_order, "as if nothing were compiled beside"
    pack, links, kernels, *rest, stopped = done
    assert (pack, links, kernels, stopped) == ("pack", "links", "kernels", "stopped")
    compiled, calls = rest.index("compiled"), rest.index("calls")
    own = [one for one in rest[:compiled] if one != "looked"]
    assert own == [("cuda:0", SampleGrid)] * 2
    assert calls == compiled + 1
    later = [one for one in rest[calls + 1 :] if one != "compiled"]
    assert later.count(("cuda:0", TimedSolves)) == 2, "by the host's clock: looked at twice"
    assert ("cuda:0", SampleGrid) not in later
    assert later.count(("cpu", SampleGrid)) == 4
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


def test_the_longest_are_begun_first_and_all_end(monkeypatch):
    begun, ended, niced = [], [], []

    class Process:
        def __init__(self, name, beside):
            begun.append(name)
            niced.extend([name] * beside)
            self.name = name

        def wait(self):
            assert self.name in ended, "ended before"

        def poll(self):
            return 0 if self.name in ended else None

        def terminate(self):
            ended.append(self.name)

    seconds = {"a": 5.0, "b": 7.0, "c": 15.0, "d": 10.0, "e": 6.0, "there": 9.0}
    monkeypatch.setattr(loop_compiler, "_process", Process)
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
    loop_compiler.Processes(seconds, beside=True)
    assert begun[:2] == ["c", "d"]
    assert niced == begun[2:], "everything but the longest"
    monkeypatch.setattr(loop_compiler.os, "cpu_count", lambda: 4)
    niced.clear()
    loop_compiler.Processes(["c", "d"], beside=True)
    assert niced == ["c", "d"], "on few cores all of them"


def test_without_a_gpu_all_is_compiled_before(monkeypatch):
    asked = []

    class Processes:
        def __init__(self, names, beside):
            asked.append((names, beside))

        def wait(self, told):
            asked.append("waited")

        def stop(self):
            asked.append("stopped")

    monkeypatch.setattr(loop_compiler, "Processes", Processes)
    monkeypatch.setattr(compiling, "_loops", lambda found: ["x in float32"])
    assert compiling.compile_ahead([], True) is None
    assert asked == [(["x in float32"], False), "waited"]
    asked.clear()
    assert isinstance(compiling.compile_ahead([], True, None, True), compiling.Beside)
    assert asked == [(["x in float32"], True)]

    def fails(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(compiling, "Rehearsal", fails)
    with pytest.raises(KeyboardInterrupt):
        compiling.compile_ahead([(None, PLACES[1], ())], True, None, True)
    assert asked[-1] == "stopped"


@pytest.mark.parametrize("beside", [True, False])
def test_kernels_of_what_the_host_times_are_compiled_beside(beside, monkeypatch, tmp_path):
    """A process of its own gets the list of those that no case of the GPU's clock needs."""
    done = []

    class Nothing:
        def __init__(self, *_):
            pass

        def wait(self, told=None):
            done.append("waited")

    kernels = {SampleGrid: [("a.cu", (("N", 4),)), ("b.cu", ())], Passes: [("b.cu", ())]}
    kernels[Passes] += [("c.cu", (("REAL", "float"), ("N", 2))), ("d.cu", ())]
    device = types.SimpleNamespace(kind="cuda", name="cuda:0", dialect="cuda", arch="sm_90")
    place = Place("cuda:0", {"kind": "cuda"}, (device,))
    found = portion("convolve2d", place, SampleGrid(), Passes("surface", {}, {}, 1.0))
    cases = tuple(dataclasses.replace(case, ahead=True) for case in found.cases)
    monkeypatch.setattr(loop_compiler, "Processes", Nothing)
    monkeypatch.setattr(compiling, "_loops", lambda found: [])
    monkeypatch.setattr(compiling, "Rehearsal", Nothing)
    monkeypatch.setattr(
        compiling,
        "kernels_of",
        lambda _, cases: [one for case in cases for one in kernels[type(case.how)]],
    )

    def compile_kernels(device, wanted, meanwhile):
        done.append(list(wanted))
        meanwhile()
        assert {*loops._PACKAGES} <= {*sys.modules}

    monkeypatch.setattr(compiling, "compile_kernels", compile_kernels)
    # The process does what it is told, but leaves what it would compile in a file.
    told = tmp_path / "told"
    monkeypatch.setattr(
        compiling,
        "_KERNELS",
        "from hetero.calibration import compiling\n"
        "compiling.kernel_text = lambda text, dialect: text + dialect\n"
        f"compiling.cubin.make_ahead = lambda all: open({str(told)!r}, 'w').write(repr([*all]))\n"
        + compiling._KERNELS,
    )
    left = compiling.compile_ahead([found._replace(cases=cases)], False, None, beside)
    if not beside:
        assert left is None
        assert {*done[0]} == {*kernels[SampleGrid], *kernels[Passes]}
        return
    assert done[0] == kernels[SampleGrid]
    left.wait()
    assert ast.literal_eval(told.read_text()) == [
        ("c.cucuda", "sm_90", (("REAL", "float"), ("N", 2))),
        ("d.cucuda", "sm_90", ()),
    ]
