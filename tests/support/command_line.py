"""How a command refuses."""

from __future__ import annotations

OK, FAILED, USAGE, NO_CHOICE = 0, 1, 2, 3


def refused(run, *arguments, naming, code=USAGE):
    """The command must end with that code and one clear message, not with a traceback."""
    found, out, err = run(*arguments)
    assert found == code, err
    assert not out
    for name in naming:
        assert name in err
    assert "Traceback" not in err
