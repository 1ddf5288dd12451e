"""Tuning tables: the figures that were measured on one card, by name, and where they lie.

A table is one JSON object: the card, and its figures as {name: {"unit", "meaning", "value"}}. The
formulas that use them stand in the families' plans. Those that come with hetero lie in
`kernels/tuning/`; `hetero calibrate --kernels` measures one of the machine at hand.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

__all__ = [
    "SCHEMA_VERSION",
    "Table",
    "Target",
    "default",
    "nearest",
    "parse",
    "shipped",
    "shipped_names",
]

SCHEMA_VERSION = 1
_DEFAULT = "h200"
_MEASURED = ("s", "B", "B/s", "FLOP/s", "share")  # units of real numbers; others are counts


class Table:
    """The figures of one card; compared by identity, so that plans can be remembered by it.

    Parameters
    ----------
    data : dict
        The content of a table's file, checked by `parse`.
    name : str
        Of the shipped table, or "measured".

    Attributes
    ----------
    card, architecture : str
        Such as "NVIDIA H200" and "sm_90".
    multiprocessors : int
    """

    def __init__(self, data: Mapping[str, Any], name: str) -> None:
        self.data = data
        self.name = name
        self.card: str = data["card"]
        self.architecture: str = data["architecture"]
        self.multiprocessors: int = data["multiprocessors"]
        self._values = {key: figure["value"] for key, figure in data["figures"].items()}

    def __getitem__(self, figure: str) -> Any:
        return self._values[figure]

    def __repr__(self) -> str:
        return f"<Table {self.name!r} of {self.card}>"

    def replaced(self, values: Mapping[str, Any], **card: Any) -> dict[str, Any]:
        """The content of a table with other values for some figures, of another card."""
        figures = {
            name: {**figure, "value": values.get(name, figure["value"])}
            for name, figure in self.data["figures"].items()
        }
        return {**self.data, **card, "figures": figures}


class Target(NamedTuple):
    """The device that launches are planned for.

    Attributes
    ----------
    multiprocessors : int
    block_limit : int
        Most threads of a block.
    table : Table or None
        The figures that blocks are chosen by; None: the `default`.
    warps : bool
        Whether it is NVIDIA's, whose lanes exchange through registers.
    """

    multiprocessors: int
    block_limit: int = 1024
    table: Table | None = None
    warps: bool = False

    def figure(self, name: str) -> Any:
        """A figure of the table."""
        return (self.table or default())[name]


def parse(data: Any, name: str = "measured") -> Table:
    """Check a table's content. A figure that it lacks is taken from the default table.

    Raises
    ------
    ValueError
        If the content is of another schema, or a value not of the default's form.
    """
    if not isinstance(data, dict) or data.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"a tuning table of schema_version {SCHEMA_VERSION} is wanted")
    for key, kind in (("card", str), ("architecture", str), ("multiprocessors", int)):
        if not isinstance(data.get(key), kind):
            raise ValueError(f"{key} must be {kind.__name__}, got {data.get(key)!r}")
    known = default().data["figures"]
    figures = dict(known)
    for key, figure in data["figures"].items():
        if key in known:
            _check(key, figure["value"], known[key]["value"], known[key]["unit"])
            figures[key] = figure
    return Table({**data, "figures": figures}, name)


def _check(name: str, value: Any, like: Any, unit: str) -> None:
    """Raise unless a value has the keys, lengths and kinds of the default's, all positive.

    What is counted is a whole number where the default's is; threads are a power of two.
    """
    if isinstance(like, dict):
        if not isinstance(value, dict) or value.keys() != like.keys():
            raise ValueError(f"{name} must have the keys {', '.join(like)}")
        for key in like:
            _check(f"{name} {key}", value[key], like[key], unit)
    elif isinstance(like, list):
        if not isinstance(value, list) or len(value) != len(like):
            raise ValueError(f"{name} must have {len(like)} values")
        for one, other in zip(value, like, strict=True):
            _check(name, one, other, unit)
    elif type(value) not in (int, float) or not 0 < value < math.inf:
        raise ValueError(f"{name} must be positive, got {value!r}")
    elif type(like) is int and unit not in _MEASURED and type(value) is not int:
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    elif unit == "threads" and value & (value - 1):
        raise ValueError(f"{name} must be a power of two, got {value!r}")


@cache
def default() -> Table:
    """The table that is used unless another one is named."""
    return Table(_read(_DEFAULT), _DEFAULT)


@cache
def shipped(name: str) -> Table:
    """A table that comes with hetero.

    Raises
    ------
    ValueError
        If there is none of this name; the message tells those that there are.
    """
    if name not in shipped_names():
        valid = ", ".join(map(repr, shipped_names()))
        raise ValueError(f"a tuning table must be one of {valid}, got {name!r}")
    return default() if name == _DEFAULT else parse(_read(name), name)


@cache
def shipped_names() -> tuple[str, ...]:
    """The names of the tables that come with hetero, the default's first."""
    files = (file.name for file in _folder().iterdir())
    names = (file.removesuffix(".json") for file in files if file.endswith(".json"))
    return tuple(sorted(names, key=lambda name: (name != _DEFAULT, name)))


def nearest(card: str = "", architecture: str = "", multiprocessors: int = 0) -> Table:
    """The shipped table for a card: its own, else of its architecture, else the default.

    Of several, the one with the nearest number of multiprocessors.
    """
    tables = [shipped(name) for name in shipped_names()]
    for table in tables:
        if card.startswith(table.card):
            return table
    alike = [table for table in tables if table.architecture == architecture]
    return min(
        alike, key=lambda table: abs(table.multiprocessors - multiprocessors), default=default()
    )


def _folder() -> Any:
    return resources.files(__package__.rpartition(".")[0]) / "tuning"


def _read(name: str) -> Any:
    return json.loads((_folder() / f"{name}.json").read_text(encoding="utf-8"))
