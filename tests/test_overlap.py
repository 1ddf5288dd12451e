"""The CPU's loops are compiled beside what a GPU's own clock times, and beside nothing else."""

from __future__ import annotations

import contextlib
import types

import pytest

from hetero.calibration import compiling, loop, machine, overheads, sampling
from hetero.calibration.budgets import FULL
from hetero.calibration.checkpoint import Around
from hetero.calibration.portions import Portion, by_clock
from hetero.calibration.sampling import Samples
from hetero.devices import loop_compiler
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
    own, others, rest = by_clock(portions())
    assert {(p.operation.name, p.place.name) for p in own} == {
        *(("matmul", "cuda:0"), ("poisson", "cuda:0"))
    }
    assert all(isinstance(case.how, SampleGrid) for p in own for case in p.cases)
    number = sum(len(p.cases) for p in portions())
    assert {(p.operation.name, p.place.name) for p in others} == {("poisson", "cuda:0")}
    assert len(others[0].cases) == 2
    assert {p.place.name for p in rest} == {"cpu", "cuda*2"}
    assert sum(len(p.cases) for p in (*own, *others, *rest)) == number
    assert by_clock([portion("matmul", PLACES[0], SampleGrid())])[:2] == ([], [])


@pytest.fixture
def calibration(monkeypatch):
    """Measures the portions; what was done, in order, and what is left of it."""
    done, given = [], []

    class Loops:
        def __init__(self, names, beside=False):
            done.append("compiling")
            assert beside, "what is measured comes first"

        def look(self):
            done.append("looked")

        def wait(self, told=None, most=0):
            done.append("few" if most else "compiled")

        def stop(self):
            done.append("stopped")

    def take(case, bench, *_):
        done.append((bench.device.name if bench.devices else "cpu", type(case.how)))
        return Samples({(4,): 1e-6})

    def content(wanted, kept, measured, failures):
        given.extend(one.key for one in measured)
        return {"models": {}}

    def compile_ahead(found, quick, told, later):
        done.append("kernels")
        return (lambda: Loops([], beside=True)) if later else None

    monkeypatch.setattr(sampling, "take", take)
    monkeypatch.setattr(loop.repeats, "settle", lambda *_: (0, 0, 0))
    monkeypatch.setattr(machine.compiling, "compile_ahead", compile_ahead)
    monkeypatch.setattr(machine.content, "profile_of", content)
    monkeypatch.setattr(machine.thread_counts, "tables", lambda *_: {})
    monkeypatch.setattr(machine.keeping_out, "told", lambda _: [])
    monkeypatch.setattr(machine.blas_spin, "find", lambda: None)
    monkeypatch.setattr(machine.blas_spin, "rest", lambda: None)
    monkeypatch.setattr(machine, "_FEW", 4)
    monkeypatch.setattr(machine, "places_of", lambda *_: PLACES)
    found = [p for p in portions() if p.place is not TOGETHER]
    monkeypatch.setattr(machine, "all_cases", lambda *_: found)
    around = Around({}, {"device": 1e-5}, {})
    monkeypatch.setattr(overheads, "of_device", lambda *_: done.append("links") or around)
    wanted = types.SimpleNamespace(budget=FULL, devices=[], quick=True, only=(), base=None)
    kept = loop.Keeper()
    kept.around, kept.pack, kept.cases = {}, {}, 0
    kept.turns_left, kept.write_if_due = lambda *_: 0, lambda: None

    def measure():
        machine._measure(wanted, kept, None)
        return given, [loop.key_of(case, p.place) for p in found for case in p.cases]

    return measure, done


def test_loops_are_compiled_beside_a_gpus_own_clock_only(calibration):
    measure, done = calibration
    given, in_order = measure()
    assert given == in_order, "as if nothing were compiled beside"
    kernels, links, begun, *rest, stopped = done
    assert (kernels, links, begun, stopped) == ("kernels", "links", "compiling", "stopped")
    few, all_done = rest.index("few"), rest.index("compiled")
    own = [one for one in rest[:few] if one != "looked"]
    assert own == [("cuda:0", SampleGrid)] * 2
    by_host = [one for one in rest[few:all_done] if one != "few"]
    assert set(by_host) == {("cuda:0", TimedSolves), ("cuda:0", Passes)}
    assert {name for name, _ in [one for one in rest[all_done:] if one != "compiled"]} == {"cpu"}


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
    begun, ended = [], []

    class Process:
        def __init__(self, name, beside):
            begun.append(name)
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
    told = []

    def one_ends(seconds):
        ended.append(next(name for name in begun if name not in ended))

    monkeypatch.setattr(loop_compiler.time, "sleep", one_ends)
    found.wait(told.append, 1)
    assert (begun, told) == (["c", "d", "b", "e", "a"], [4, 3, 2])
    found.wait(told.append)
    assert told == [4, 3, 2, 1]
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


def test_without_a_gpu_all_is_compiled_before(monkeypatch):
    asked = []

    class Processes:
        def __init__(self, names, beside=False):
            asked.append((names, beside))

        def wait(self, told=None, most=0):
            asked.append("waited")

    monkeypatch.setattr(loop_compiler, "Processes", Processes)
    monkeypatch.setattr(compiling, "_loops", lambda found: ["x in float32"])
    assert compiling.compile_ahead([], True) is None
    assert asked == [(["x in float32"], False), "waited"]
    asked.clear()
    begin = compiling.compile_ahead([], True, None, True)
    assert asked == [([], False), "waited"]
    begin()
    assert asked[-1] == (["x in float32"], True)
