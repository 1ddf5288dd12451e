"""Commands that take long show on a terminal what they do and how far it is; in a pipe, nothing."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from hetero import cli, registry
from hetero.evaluation import problems

COMMANDS = {
    "info": (),
    "calibrate": ("--quick", "--device", "cpu"),
    "verify": ("matvec", "--count", "2", "--largest", "32"),
    "bench matvec": ("--device", "cpu"),
    "demo": ("--largest", "16"),
}


@pytest.fixture
def small(monkeypatch, hasty):
    """A bench of a single small case."""
    kind = type(problems.of(registry.operation("matvec")))
    monkeypatch.setattr(kind, "sizes", ((64, 64),))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_bar_on_a_terminal_and_none_in_a_pipe(command, small, monkeypatch, capsys, profile_file):
    arguments = [*command.split(), *COMMANDS[command], "--json"]
    if command in ("demo", "calibrate"):  # test_runtimes.py and test_cli.py run these in a pipe
        monkeypatch.setattr(registry, "operations", lambda: (registry.operation("matvec"),))
    else:
        assert cli.main(arguments) == 0
        assert "\r" not in capsys.readouterr().err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert cli.main(arguments) == 0
    captured = capsys.readouterr()
    assert captured.err.count("\r[") >= 1, "no bar"
    assert "\r" not in captured.out
    # In the end the line is free: the bar is taken away.
    assert captured.err.endswith("\r")


def test_a_warning_has_a_line_of_its_own(monkeypatch, capsys):
    import logging

    from hetero import terminal

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    bar = terminal.progress_bar()
    bar(0.5, "half")
    handler = terminal.LogHandler(sys.stderr)
    handler.emit(logging.LogRecord("hetero", logging.WARNING, "", 0, "a warning", (), None))
    assert "\ra warning\n\r[" in capsys.readouterr().err
    terminal.clear()


def test_a_shell_completes_commands_and_their_options():
    script = subprocess.run(
        [sys.executable, "-m", "hetero", "completion", "bash"], capture_output=True, text=True
    ).stdout
    ask = f"""{script}
    complete() {{ COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)); COMPREPLY=(); _shtab_hetero; }}
    complete hetero cal; echo "${{COMPREPLY[@]}}"
    complete hetero verify --se; echo "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True)
    assert done.stdout.split("\n")[:2] == ["calibrate", "--seconds --seed"], done.stderr


def test_a_script_for_each_shell(capsys):
    for shell in ("bash", "zsh", "fish"):
        assert cli.main(["completion", "--json", shell]) == cli.DONE
        found = json.loads(capsys.readouterr().out)
        assert found["shell"] == shell
        assert "calibrate" in found["script"]
