"""Run a script that knows nothing of hetero, its calls computed where it is fastest."""

from __future__ import annotations

import sys

from hetero.accel.running import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
