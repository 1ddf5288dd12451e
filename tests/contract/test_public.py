"""Public names, their signatures, and the command line are those of `public.json`.

A change that is meant is written anew by ``python tests/contract/test_public.py``, and is seen in
the commit.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import inspect
import json
import re
from pathlib import Path

import pytest

import hetero
import hetero.errors
from hetero.cli.parser import parser

FILE = Path(__file__).with_name("public.json")
SKIPPED = re.compile("_|set_.*_request")  # scikit-learn adds the latter where it is installed
MODULES = ("hetero", "hetero.accel", "hetero.dask", "hetero.mpi")


def signature(function):
    """Names, kinds and defaults of parameters, without types."""
    found = inspect.signature(function)
    plain = [p.replace(annotation=p.empty) for p in found.parameters.values()]
    return str(found.replace(parameters=plain, return_annotation=found.empty))


def described(value):
    """What callers rely on: a signature; of a class also its own public names."""
    if not inspect.isclass(value):
        return signature(value) if callable(value) else type(value).__name__
    found = (
        {} if dataclasses.is_dataclass(value) else {"()": signature(value)}
    )  # nobody makes plans
    found |= dict.fromkeys(documented(value), "attribute")
    own = [vars(base) for base in value.__mro__ if base.__module__.startswith("hetero")]
    for name in sorted({name for base in own for name in base if not SKIPPED.match(name)}):
        called = inspect.isroutine(getattr(value, name, None))
        found[name] = signature(getattr(value, name)) if called else "attribute"
    return found


def documented(cls):
    """Names under "Attributes" in a docstring."""
    text = inspect.getdoc(cls) or ""
    section = re.search(r"^Attributes\n-+\n(.*?)(?=^\w+\n--|\Z)", text, re.M | re.S)
    lines = re.findall(r"^(\w.*?)(?: :|$)", section[1], re.M) if section else []
    return [name for line in lines for name in line.split(", ")]


def names_of(module):
    found = importlib.import_module(module)
    return {name: described(getattr(found, name)) for name in sorted(found.__all__)}


def errors():
    """Each class with its bases, by which callers catch it."""
    return {
        name: ", ".join(base.__name__ for base in value.__mro__[1:])
        for name, value in sorted(vars(hetero.errors).items())
        if inspect.isclass(value) and issubclass(value, Exception)
    }


def commands():
    """Command -> option or argument -> what it takes."""
    whole, _ = parser()
    (commands,) = (a for a in whole._actions if isinstance(a, argparse._SubParsersAction))
    found = {}
    for name, command in sorted(commands.choices.items()):
        if command.options is not None:
            command.options(command)
        taken = {}
        for action in command._actions:
            if not isinstance(action, argparse._HelpAction):
                parts = {"nargs": action.nargs, "choices": action.choices and [*action.choices]}
                parts |= {"default": action.default}
                words = [f"{key} {value!r}" for key, value in parts.items() if value is not None]
                taken["/".join(action.option_strings) or action.dest] = ", ".join(words)
        found[name] = taken
    return found


def public():
    candidate = type(hetero.plan("matvec", hetero.spec((2, 2)), hetero.spec((2,))).chosen)
    found = {module: names_of(module) for module in MODULES}
    return found | {
        "candidate of a plan": described(candidate),
        "hetero.errors": errors(),
        "commands": commands(),
    }


def flat(tree, path=""):
    """(path, leaf) of nested dictionaries."""
    for name, value in tree.items():
        here = f"{path} > {name}" if path else name
        if isinstance(value, dict) and value:
            yield from flat(value, here)
        else:
            yield here, value


def differences(before, now):
    """A line for each name that is gone, new or other than it was."""
    before, now = dict(flat(before)), dict(flat(now))
    lines = [f"gone: {name} = {before[name]}" for name in before.keys() - now.keys()]
    lines += [f"new: {name} = {now[name]}" for name in now.keys() - before.keys()]
    both = before.keys() & now.keys()
    lines += [f"{n}: {before[n]} -> {now[n]}" for n in both if before[n] != now[n]]
    return sorted(lines)


def test_public_names_and_commands_are_as_they_were():
    pytest.importorskip("dask.array")
    pytest.importorskip("mpi4py")
    found = differences(json.loads(FILE.read_text("utf-8")), json.loads(json.dumps(public())))
    assert not found, "\n".join(["not as in public.json:", *found])


def test_a_difference_is_readable():
    before = {"hetero": {"f": "(a)", "g": "()"}, "commands": {"info": {"--json": ""}}}
    now = {"hetero": {"f": "(a, b)", "h": "()"}, "commands": {"info": {"--json": ""}}}
    assert differences(before, now) == [
        "gone: hetero > g = ()",
        "hetero > f: (a) -> (a, b)",
        "new: hetero > h = ()",
    ]
    assert differences(before, before) == []


if __name__ == "__main__":
    FILE.write_text(json.dumps(public(), indent=1) + "\n", "utf-8")
