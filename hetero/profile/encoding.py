"""The bytes of a profile file, and the checksum in it."""

from __future__ import annotations

import hashlib
import json
from typing import Any

SCHEMA_VERSION = 2
LARGEST = 16 << 20  # bytes of a profile file; a full one of a machine with a GPU has half a million
UNITS = {"time": "seconds", "size": "bytes", "work": "flops"}


def digest(data: dict[str, Any]) -> str:
    """sha256 of a profile's content, less the sum itself."""
    body = {key: value for key, value in data.items() if key != "sha256"}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def encode(data: dict[str, Any]) -> bytes:
    """The bytes of a profile file, checksum included; one line for each device, link and model."""
    parts = []
    for key, value in {**data, "sha256": digest(data)}.items():
        text = json.dumps(value)
        if key in ("devices", "links", "models") and isinstance(value, dict) and value:
            rows = (f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in value.items())
            text = "{\n" + ",\n".join(rows) + "\n }"
        parts.append(f" {json.dumps(key)}: {text}")
    return ("{\n" + ",\n".join(parts) + "\n}\n").encode()
