"""An interrupted calibration: what it measured serves, and the next one goes on from there."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import os
import signal
import subprocess
import sys

import pytest

import hetero
from hetero import profile, registry
from hetero.calibration import checkpoint, machine, request, worklist
from hetero.calibration.measure import loop, sampling
from hetero.calibration.measure.workbench import Samples
from hetero.ops.cases import Place, grid

FEW = ("matvec", "matmul")
ONE = {"below": None, "bytes_per_second": 1e9, "seconds_per_byte": 0.0, "seconds": 1e-6}
PACK = {"form": "segments", "constants": [ONE]}


@pytest.fixture
def few(monkeypatch, hasty, profile_file):
    """Only products are measured; the names of what was, in order."""
    monkeypatch.setattr(registry, "_operations", {n: registry._operations[n] for n in FEW})
    monkeypatch.setattr(checkpoint, "_EVERY", 0.0)
    monkeypatch.setattr(checkpoint, "_MOST", 1e9)
    taken = []

    def take(case, *_):
        taken.append(str(case))
        return Samples({dims: 1e-6 * math.prod(dims) for dims in grid(case.axes)})

    monkeypatch.setattr(sampling, "take", take)
    monkeypatch.setattr(machine.compiling, "compile_ahead", lambda *_: None)
    monkeypatch.setattr(loop.repeating, "settle", lambda *_: (0, 0, 0))
    monkeypatch.setattr(machine.overheads, "pack", lambda budget: PACK)
    return taken


def interrupted(monkeypatch, taken, after=3):
    """A calibration that is interrupted after so many cases; the path of what it leaves."""
    take = sampling.take

    def stops(*arguments):
        if len(taken) == after:
            raise KeyboardInterrupt
        return take(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(sampling, "take", stops)
        with pytest.raises(KeyboardInterrupt):
            hetero.calibrate(True, devices=["cpu"])
    taken.clear()
    return profile.partial(profile.default_path())


def cases_here():
    """In the order and as often as their turn is."""
    info = hetero.profile.inventory.devices()["cpu"]
    found = worklist.all_cases(registry.operations(), [Place("cpu", info)], request.QUICK, [])
    return [str(case) for _, case, _ in worklist.in_turn(found)]


def test_what_was_measured_serves_at_once(few, monkeypatch, profile_file, warnings_of):
    path = interrupted(monkeypatch, few)
    assert not profile_file.exists()
    found = profile.current()
    measured = set(profile.read(path).data["models"])
    assert len(measured) == 3
    conservative = profile.shipped("conservative").data["models"]
    for key in measured:
        assert found.data["models"][key] == profile.read(path).data["models"][key]
    rest = {k for k in found.data["models"] if k not in measured}
    assert {"cpu|matmul|blas|float64|*", "cpu|poisson|dst|float64|*"} <= rest
    assert all(found.data["models"][key] == conservative[key] for key in rest if key[:3] == "cpu")
    (text,) = (t for t in warnings_of() if "not complete" in t)
    assert str(path) in text
    assert f"3 of {len(set(cases_here()))} cases" in text
    assert "interrupted" in hetero.machine()["profiles"][str(path)]


def test_it_is_said_that_it_is_kept(few, monkeypatch, profile_file, warnings_of):
    path = interrupted(monkeypatch, few)
    (text,) = warnings_of()
    assert f"kept in {path}" in text


def test_what_a_process_left_that_was_ended_while_it_wrote(few, monkeypatch, profile_file):
    path = interrupted(monkeypatch, few)
    half = path.with_name(f"{path.name}.abc{checkpoint.paths.TEMPORARY}")
    half.write_bytes(b"{")
    os.utime(half, (0, 0))
    hetero.calibrate(True, devices=["cpu"])
    assert {file.name for file in path.parent.iterdir()} == {"profile.json", "profile.json.lock"}


def test_the_next_one_goes_on_from_there(few, monkeypatch, profile_file, warnings_of):
    path = interrupted(monkeypatch, few)
    before = profile.read(path).data["models"]
    found = hetero.calibrate(True, devices=["cpu"])
    assert few == cases_here()[3:]
    assert any("going on" in text for text in warnings_of())
    assert {key: found.data["models"][key] for key in before} == before
    assert "unfinished" not in profile.read(profile_file).data
    assert not path.exists()
    few.clear()
    hetero.calibrate(True, devices=["cpu"])
    assert few == cases_here()


def test_one_that_is_interrupted_twice(few, monkeypatch, profile_file):
    interrupted(monkeypatch, few, 2)
    interrupted(monkeypatch, few, 2)
    hetero.calibrate(True, devices=["cpu"])
    assert few == cases_here()[4:]


def test_a_profile_that_was_there_serves_on(few, monkeypatch, profile_file):
    """Nothing worse than what was there."""
    hetero.calibrate(True, devices=["cpu"])
    few.clear()
    interrupted(monkeypatch, few)
    assert "unfinished" not in profile.current().data
    assert hetero.machine()["profile"]["file"] == str(profile_file)


def changed(path, **changes):
    data = profile.read(path).data
    for name, value in changes.items():
        *folders, last = name.split("__")
        part = data
        for folder in folders:
            part = part[folder]
        part[last] = value(part[last]) if callable(value) else value
    path.write_bytes(profile.encode(data))


def aged(text):
    return (datetime.datetime.fromisoformat(text) - datetime.timedelta(hours=25)).isoformat()


# What was done to the file -> (how, what is said)
NOT_CONTINUED = {
    "cut off": (lambda p: p.write_bytes(p.read_bytes()[:-99]), "JSON"),
    "empty": (lambda p: p.write_bytes(b""), "JSON"),
    "a bit flipped": (
        lambda p: p.write_bytes(p.read_bytes().replace(b'"typical"', b'"typicam"')),
        "sha256",
    ),
    "anybody's": (lambda p: p.chmod(0o666), "anybody"),
    "no samples": (lambda p: changed(p, unfinished__samples=5), "samples"),
    "samples of text": (
        lambda p: changed(p, unfinished__samples={"x": [1, {"seconds": [["a", 1.0]]}]}),
        "samples",
    ),
    "samples of nothing": (
        lambda p: changed(p, unfinished__samples={"x": [1, {"minutes": []}]}),
        "samples",
    ),
    "no time": (lambda p: changed(p, unfinished__updated="yesterday"), "yesterday"),
    "a day old": (lambda p: changed(p, unfinished__updated=aged), "a day"),
    "another CPU": (lambda p: changed(p, fingerprint__cpu__name="Z80"), "'Z80'"),
    "other threads": (lambda p: changed(p, fingerprint__blas__blas_threads=99), "was 99"),
    "another version": (lambda p: changed(p, fingerprint__hetero="0.0.1"), "'0.0.1'"),
    "another budget": (lambda p: changed(p, unfinished__wanted__budget__point=1.0), "other times"),
    "a full one": (lambda p: changed(p, unfinished__wanted__budget__quick=False), "a full one"),
    "other devices": (lambda p: changed(p, unfinished__wanted__devices=["cuda:0"]), "cuda:0"),
}


@pytest.mark.parametrize("case", NOT_CONTINUED)
def test_what_is_not_continued(case, few, monkeypatch, warnings_of, profile_file):
    path = interrupted(monkeypatch, few, 1)
    spoil, said = NOT_CONTINUED[case]
    spoil(path)
    made = []
    monkeypatch.setattr(sampling, "take", lambda *_: made.append(1) or Samples({(4, 4): 1.0}))
    hetero.calibrate(True, devices=["cpu"])
    assert len(made) == len(cases_here())
    (text,) = (t for t in warnings_of() if "not continued" in t)
    assert str(path) in text
    assert said in text
    assert not path.exists()


def test_devices_that_are_not_measured_do_not_matter(few, monkeypatch, profile_file):
    """Such as an OpenCL device that is the CPU once more, whose memory is what is free."""
    path = interrupted(monkeypatch, few)
    changed(path, fingerprint__devices={"opencl:9": {"name": "Z80", "memory_bytes": 1}})
    hetero.calibrate(True, devices=["cpu"])
    assert few == cases_here()[3:]


def test_a_fresh_one(few, monkeypatch, warnings_of, profile_file):
    interrupted(monkeypatch, few)
    hetero.calibrate(True, devices=["cpu"], fresh=True)
    assert few == cases_here()
    assert not any("going on" in text for text in warnings_of())


def test_a_disk_that_is_full_does_not_end_it(few, monkeypatch, warnings_of, profile_file):
    def full(path, *arguments, **options):
        if path.name.endswith(".partial"):
            raise OSError(28, "No space left on device")
        return real(path, *arguments, **options)

    real = checkpoint.paths.replace_file
    monkeypatch.setattr(checkpoint.paths, "replace_file", full)
    hetero.calibrate(True, devices=["cpu"])
    assert profile_file.exists()
    (text,) = (t for t in warnings_of() if "cannot be kept" in t)
    assert "No space" in text


SCRIPT = """
import dataclasses, sys, time
import hetero.ops
from hetero import cli
from hetero.calibration import request, checkpoint
from hetero.calibration.measure import sampling
from hetero import registry
registry._operations = {name: registry._operations[name] for name in sys.argv[2:]}
checkpoint._EVERY, checkpoint._MOST = 0.0, 1e9
request.QUICK = dataclasses.replace(request.QUICK, **eval(sys.argv[1]))
take, number = sampling.take, 0
def noted(*arguments):
    global number
    number += 1
    if number == 4:
        print("three are done", flush=True)
        time.sleep(60)
    return take(*arguments)
sampling.take = noted
sys.exit(cli.main(["calibrate", "--quick", "--device", "cpu"]))
"""


@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM"])
def test_a_process_that_is_ended(how, few, profile_file, monkeypatch):
    """In the middle of the fourth case: the three before it are not measured again."""
    fields = dataclasses.asdict(request.QUICK)
    if how == "SIGTERM":  # what was not due yet is written too
        text = SCRIPT.replace("_EVERY, checkpoint._MOST = 0.0, 1e9", "_EVERY = 1e9")
    else:
        text = SCRIPT
    command = [sys.executable, "-c", text, repr(fields), *FEW]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ)
    ) as running:
        assert running.stdout.readline() == b"three are done\n"
        running.send_signal(getattr(signal, how))
        running.communicate(timeout=60)
    assert running.returncode == (-9 if how == "SIGKILL" else 128 + 15)
    assert not profile_file.exists()
    hetero.calibrate(True, devices=["cpu"])
    assert few == cases_here()[3:]
    assert profile.read(profile_file).name == "measured"


def test_samples_come_back_as_they_were():
    values = {(4, 8): 1e-6, (16, 8): 2.0}
    one = Samples(values, {(5, 6): 3.0}, {(7,): 4.0}, {(4, 8): (1.0, 2.0)}, 0.5)
    again = checkpoint.unpacked(json.loads(json.dumps(checkpoint.packed(one))))
    assert again == one
    assert checkpoint.unpacked(json.loads(json.dumps(checkpoint.packed(Samples())))) == Samples()


def test_several_turns_of_a_case_are_counted(monkeypatch, profile_file):
    """Convolutions are gone through several times: an interrupted round is finished."""
    given = []

    def take(case, bench, budget, share, host=None, before=None):
        times = () if before is None else next(iter(before.typical.values()))
        given.append((str(case), len(times)))
        if len(given) == stop:
            raise KeyboardInterrupt
        return Samples(
            dict.fromkeys(case.how.knots, 2e-3), typical=dict.fromkeys(case.how.knots, (*times, 1))
        )

    name = "convolve2d"
    monkeypatch.setattr(registry, "_operations", {name: registry._operations[name]})
    monkeypatch.setattr(sampling, "take", take)
    monkeypatch.setattr(machine.compiling, "compile_ahead", lambda *_: None)
    monkeypatch.setattr(loop.repeating, "settle", lambda *_: (0, 0, 0))
    monkeypatch.setattr(machine.overheads, "pack", lambda budget: PACK)
    stop = 15
    with pytest.raises(KeyboardInterrupt):
        hetero.calibrate(devices=["cpu"])
    before, stop = given[: stop - 1], None
    given.clear()
    hetero.calibrate(devices=["cpu"])
    done = [*before, *given]
    passes = 1 + max(turn for _, turn in done)
    cases = {case for case, _ in done}
    assert sorted(done) == sorted((case, turn) for case in cases for turn in range(passes))
    assert passes > 1
