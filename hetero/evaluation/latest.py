"""What was measured last on a machine beside its calibration, kept beside the profile.

A JSON file of its own, ``<profile>.latest``: kind of result -> key -> what was found.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hetero import paths
from hetero.profile import places

VERIFY, LADDER = "verify", "ladder"
_LARGEST = 1 << 22  # bytes

log = logging.getLogger("hetero")


def beside(profile: Path) -> Path:
    """The file of a profile's."""
    return profile.with_name(profile.name + ".latest")


def keep(kind: str, key: str, found: dict[str, Any]) -> None:
    """Keep a result of this machine in place of the one before; where it cannot be kept, it is not.

    Parameters
    ----------
    kind, key : str
        `VERIFY` or `LADDER`, and what it is of, such as where the operands lie.
    found : dict
        As JSON can hold it.
    """
    try:
        profile = places.place()
        with paths.locked(profile.with_name(profile.name + ".lock")):
            known = read(profile)
            when = datetime.now(UTC).isoformat(timespec="seconds")
            known.setdefault(kind, {})[key] = {"created": when, **found}
            paths.replace_file(beside(profile), json.dumps(known).encode())
    except OSError as error:
        log.debug("%s is not kept: %s", kind, error)


def read(profile: Path) -> dict[str, dict[str, Any]]:
    """What is kept beside a profile; nothing where there is no such file, or another one."""
    try:
        found = json.loads(paths.read_file(beside(profile), _LARGEST))
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict) or not all(isinstance(v, dict) for v in found.values()):
        return {}
    return found
