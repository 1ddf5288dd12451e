"""How far a calibration is and how long it will take yet, by a fake clock."""

from __future__ import annotations

import pytest

from hetero import terminal
from hetero.calibration.progress import Schedule, shown


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def run(took, planned=1.0, number=10):
    """Steps that all take the same; (fraction, text) at the begin of each, and at the end."""
    clock, found = Clock(), []
    schedule = Schedule(lambda *seen: found.append(seen), clock)
    for _ in range(number):
        schedule.plan(planned)
    for step in range(number):
        schedule.begin(planned, f"step {step}")
        clock.now += took
    schedule.done()
    return found


@pytest.mark.parametrize("took", [1.0, 5.0, 25.0])
def test_what_steps_take_corrects_the_plan(took):
    found = run(took, planned=5.0)
    for step, (fraction, text) in enumerate(found[1:-1], 1):
        assert text.startswith(f"step {step}, ")
        left, true = text.rpartition(", ")[2], took * (10 - step)
        number, unit, _ = left.split()
        minutes, _, seconds = number.rpartition(":")
        seconds = 60 * int(minutes or 0) + int(seconds)
        assert unit == ("min" if minutes else "s")
        assert seconds == pytest.approx(true, rel=0.01, abs=1.0)
        assert fraction == pytest.approx(step / 10, abs=0.1)
    fractions = [fraction for fraction, _ in found]
    assert fractions == sorted(fractions)
    assert found[-1] == (1.0, "done")
    assert found[0] == (0.0, "step 0"), "nothing is known yet"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (59.4, "59 s"), (59.6, "1:00 min"), (125, "2:05 min")]
)
def test_how_seconds_are_shown(seconds, text):
    assert shown(seconds) == text


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
    bar(0.5, "poisson multigrid 3d float32 on cuda:0, 1:20 min left")
    err = capsys.readouterr().err
    assert err.startswith("\r[###############...............] poisson")
    assert err.endswith("1:20 min left")
    assert len(err) == 70
    terminal.clear()
    assert capsys.readouterr().err == "\r" + " " * 69 + "\r"
