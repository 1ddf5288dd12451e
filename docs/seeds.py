"""Writes seeds.md from seeds.json: the figures of five reports, and what makes them here.

    python docs/seeds.py

A row has what the report shows; `commands`, each with what a machine without a GPU runs of it in
small ("": the same; null: nothing); `python`, an expression, and what it `gives`; a `remark`.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
HEAD = """\
# Your report, as commands

Five reports on older cards, and what makes each of their figures and tables on this machine, or why
nothing does. Commands that name a profile need no GPU; the others use the first GPU, or without one
the first OpenCL device where they take one. `--plot` needs the extra `plot`
([install.md](install.md)). Rungs are named as `hetero ladder` prints them, and
[procedure.md](procedure.md) compares what came out on an H200 with what the reports found. The
lines of Python begin with

    from hetero.kernels.procedure import metrics
    from hetero.kernels.procedure.card import CARDS, T10

This page is written by `docs/seeds.py` from `docs/seeds.json`; a test runs what needs no GPU.
"""


def rows(data: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Title and card of each report, and each of its rows as it is now."""
    for report in data["reports"]:
        for row in report["rows"]:
            yield report["title"], report["card"], row


def page(data: Mapping[str, Any]) -> str:
    """The page in Markdown."""
    lines, last = [HEAD], ""
    for title, card, row in rows(data):
        if title != last:
            last = title
            lines += [f"## {title.partition(',')[0]}", ""]
            lines += [*textwrap.wrap(f"{title} ({card}).", 100), ""]
            lines += ["| there | what it shows | here | remarks |", "|---|---|---|---|"]
        made = [f"`{command}`" for command, _ in row.get("commands", ())]
        if "python" in row:
            made.append(f"`{row['python']}` gives {row['gives']}")
        cells = row["what"], row["shows"], "<br>".join(made), row.get("remark", "")
        lines.append("| " + " | ".join(cells) + " |")
    text = "\n".join(lines).replace("|  |", "| |")
    return text.replace("|\n## ", "|\n\n## ") + "\n"


def read() -> dict[str, Any]:
    """What seeds.json has."""
    return json.loads((HERE / "seeds.json").read_text("utf-8"))


if __name__ == "__main__":
    (HERE / "seeds.md").write_text(page(read()), "utf-8")
