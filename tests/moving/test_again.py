"""`hetero explain --again`: the calls of a loop, as they then happen."""

import pytest
import watches
from test_kept_copies import device, operands  # noqa: F401

import hetero
from hetero.calling import planner
from hetero.host import write_tracking
from hetero.moving import keeping

CALLS = 30


def course(problem, calls=CALLS):
    return keeping.course(problem, calls, planner.plan)


@pytest.mark.skipif(write_tracking.obstacle() is not None, reason=str(write_tracking.obstacle()))
@pytest.mark.parametrize("n", [512, 600, 800, 1024])
def test_it_is_what_happens(device, monkeypatch, n):  # noqa: F811
    monkeypatch.delenv("HETERO_WATCH", raising=False)
    watches.forget()
    A, x = operands(n)
    expected = course(hetero.plan("matvec", A, x).problem)
    ran = []
    for _ in range(CALLS):
        computed, moved = device.log.count("compute"), device.uploads
        hetero.matvec(A, x)
        on = "cuda:0" if device.log.count("compute") > computed else "cpu"
        ran.append((on, device.uploads > moved))
    watches.forget()
    steps = [s for s in expected.steps for _ in range(s.first, s.last + 1)]
    assert ran == [(step.device, step.moves == (1,)) for step in steps]
    assert sum(step.seconds for step in steps) == pytest.approx(expected.seconds)
    assert expected.without == CALLS * steps[0].seconds
    assert expected.seconds <= 2.0 * expected.without, "as `keeping.placed` promises"
    if n == 1024:
        assert [step.moves for step in expected.steps] == [(), (1,), ()]


def test_the_command(run, data):
    words = ("explain", "matvec", "8192", "8192", "--dtype", "float32", "--profile", "h200")
    for number in ("0", "-3", "100001", "x"):
        code, _, err = run(*words, "--again", number)
        assert code != 0
        assert "--again" in err
    words = ("explain", "solve_poisson", "512", "512", "--profile", "h200")
    assert len(data(*words, "--again", "60")["again"]["steps"]) == 1, "it keeps no operand"
