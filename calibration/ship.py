"""A measured profile as one that comes with hetero: the same constants, without raw samples.

python -m hetero.calibration.ship MEASURED.json NAME SHIPPED.json

The checksum is made anew: that of a profile which was edited need not be right.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from hetero import profile


def shipped(data: dict[str, Any], name: str) -> bytes:
    """The bytes of the profile to ship, from the content of a measured one and its new name."""
    kept = {part: data[part] for part in ("load",) if part in data}  # with the number of samples
    return profile.encode({**_without_samples(data), **kept, "name": name})


def _without_samples(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: _without_samples(part) for key, part in value.items() if key != "samples"}


def main(arguments: list[str]) -> None:
    """Make a profile to ship: MEASURED.json, its new name, the file to write."""
    measured, name, target = arguments
    content = shipped(json.loads(Path(measured).read_bytes()), name)
    profile.parse(content)
    Path(target).write_bytes(content)
    print(f"{target}: {len(content)} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
