"""How far a calibration is and how long it will take yet, by a fake clock."""

from __future__ import annotations

import pytest

from hetero import terminal
from hetero.calibration import progress
from hetero.calibration.progress import Schedule


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def run(patch, took, planned=1.0, number=10):
    """Steps that all take the same; (fraction, text) at the begin of each, and at the end."""
    clock, found = Clock(), []
    patch.setattr(progress.time, "perf_counter", clock)
    schedule = Schedule(lambda *seen: found.append(seen), number * planned)
    for step in range(number):
        schedule.begin(planned, f"step {step}")
        clock.now += took
    schedule.done()
    return found


@pytest.mark.parametrize("took", [1.0, 5.0, 25.0])
def test_what_steps_take_corrects_the_plan(took, monkeypatch):
    found = run(monkeypatch, took, planned=5.0)
    for step, (fraction, text) in enumerate(found[1:-1], 1):
        assert text.startswith(f"step {step}, ")
        number, unit, _ = text.rpartition(", ")[2].split()
        seconds = float(number) * {"min": 60.0, "s": 1.0}[unit]
        assert seconds == pytest.approx(took * (10 - step), rel=0.02, abs=1.0)
        assert fraction == pytest.approx(step / 10, abs=0.1)
    fractions = [fraction for fraction, _ in found]
    assert fractions == sorted(fractions)
    assert found[-1] == (1.0, "done")
    assert found[0] == (0.0, "step 0"), "nothing is known yet"


def test_without_a_terminal_there_is_a_line_now_and_then(capsys, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(terminal.time, "monotonic", clock)
    lines = terminal.Lines()
    for step in range(30):
        lines(step / 30, f"step {step}")
        clock.now += 1.0
    assert capsys.readouterr().err == ("hetero: 33% done, step 10\nhetero: 67% done, step 20\n")


def test_a_long_text_keeps_its_end(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    bar = terminal.bar
    bar(0.5, "poisson multigrid 3d float32 on cuda:0, 1.3 min left")
    err = capsys.readouterr().err
    assert err.startswith("\r[###############...............] poisson")
    assert err.endswith("1.3 min left")
    assert len(err) == 70
    terminal.clear()
    assert capsys.readouterr().err == "\r" + " " * 69 + "\r"
