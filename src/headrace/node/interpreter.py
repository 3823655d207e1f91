"""How a process of ours is started that runs the same headrace as this one."""

from __future__ import annotations

import os
import sys
from contextlib import suppress


def python_options() -> list[str]:
    """Return how the Python of another process is to find modules: where this one does, and not in the current directory
    unless this one does."""
    with suppress(OSError):
        if os.getcwd() in sys.path or "" in sys.path:
            return []
    return ["-P"]
