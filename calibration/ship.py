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

    def without_samples(part: dict[str, Any]) -> dict[str, Any]:  # of the load their number stays
        return {k: v for k, v in part.items() if k != "samples" or not isinstance(v, dict)}

    kept = json.loads(json.dumps(data), object_hook=without_samples)
    return profile.encode({**kept, "name": name})


if __name__ == "__main__":
    measured, name, target = sys.argv[1:]
    content = shipped(json.loads(Path(measured).read_bytes()), name)
    profile.parse(content)
    Path(target).write_bytes(content)
    print(f"{target}: {len(content)} bytes")
