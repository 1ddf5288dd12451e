"""What the arguments of commands are made of: their types, with what is said of bad ones."""

from __future__ import annotations

import argparse


def whole(text: str) -> int:
    """A whole number from an argument."""
    try:
        return int(text)
    except ValueError:  # not a number, or of thousands of digits
        shown = text if len(text) < 40 else f"{text[:20]}... ({len(text)} characters)"
        raise argparse.ArgumentTypeError(f"must be a whole number, got {shown!r}") from None


def file(text: str) -> str:
    """A file's name from an argument."""
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError(f"must name a file, got {text[:40]!r}")
    return text


DONE = 0
FAILED = 1  # a file that cannot be written, a device that fails, a calibration not to trust
USAGE = 2  # unknown operation, device, method or profile, wrong dimensions; no command
NO_CHOICE = 3  # no candidate could be chosen, as the printed reasons say
INTERRUPTED = 130
