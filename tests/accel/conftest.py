"""Calls under `hetero.install`, whatever their size."""

from __future__ import annotations

import math
import signal

import numpy as np
import pytest

import hetero
from hetero import accel


@pytest.fixture
def all_calls(monkeypatch):
    """Each call is looked at, and taken unless the plan is the plain library's."""
    monkeypatch.setenv("HETERO_ACCEL_LEAST", "0")
    with hetero.install(recording=True) as installed:
        yield installed


@pytest.fixture
def noted(all_calls):
    """Makes a call, compares its result with the plain library's, and gives its note."""

    def note_of(call):
        result, note, session = call(), accel.last(), all_calls.session
        session.least = math.inf
        np.testing.assert_allclose(np.copy(result), call(), rtol=1e-9, atol=1e-12)
        session.least = 0.0
        return note

    return note_of


@pytest.fixture
def alarm():
    """Makes a call during which, after so many seconds, a signal's handler raises TimeoutError."""

    def handler(*_):
        raise TimeoutError("late")

    def limited(seconds, call):
        signal.setitimer(signal.ITIMER_REAL, seconds)
        call()

    previous = signal.signal(signal.SIGALRM, handler)
    yield limited
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, previous)
