"""What a command's exit code says."""

from __future__ import annotations

DONE = 0
FAILED = 1  # a file that cannot be written, a device that fails, a calibration not to trust
USAGE = 2  # unknown operation, device, method or profile, wrong dimensions; no command
NO_CHOICE = 3  # no candidate could be chosen, as the printed reasons say
INTERRUPTED = 130
