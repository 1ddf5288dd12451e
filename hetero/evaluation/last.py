"""What was measured last on the machine: ladders of kernels, and verifications of its choices.

They are kept in a JSON file of its own, ``<profile>.latest``: kind of result -> key -> what was
measured. The page of `hetero report` shows them.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hetero import paths
from hetero.profile import inventory

VERIFY, LADDER = "verify", "ladder"
_LARGEST = 1 << 22  # bytes

log = logging.getLogger("hetero")


def file_of(profile: Path) -> Path:
    """The file that is kept with a profile."""
    return profile.with_name(profile.name + ".latest")


def keep_ladder(ladder: dict[str, Any]) -> None:
    """Keep a ladder in place of the one before."""
    key = f"{ladder['operation']} {ladder['dtype']} on {ladder['device']}"
    keep(LADDER, key, ladder)


def keep(kind: str, key: str, found: dict[str, Any]) -> None:
    """Keep a result of this machine in place of the one before; where it cannot be kept, it is not.

    The kind is `VERIFY` or `LADDER`; the key says what it is of, such as where the operands lie.
    """
    try:
        profile = inventory.place()
        with paths.locked(profile.with_name(profile.name + ".lock")):
            known = read(profile)
            when = datetime.now(UTC).isoformat(timespec="seconds")
            known.setdefault(kind, {})[key] = {"created": when, **found}
            paths.replace_file(file_of(profile), json.dumps(known).encode())
    except OSError as error:
        log.debug("%s is not kept: %s", kind, error)


def read(profile: Path) -> dict[str, dict[str, Any]]:
    """What is kept with a profile; nothing where there is no such file, or another one."""
    try:
        kept = json.loads(paths.read_file(file_of(profile), _LARGEST))
    except (OSError, ValueError):
        return {}
    is_ours = isinstance(kept, dict) and all(isinstance(v, dict) for v in kept.values())
    return kept if is_ours else {}
