"""Which build of headrace runs: the compiled one, or the same source as pure Python, which serves a ninth of it."""

from __future__ import annotations

import platform
from typing import Final

from headrace import __version__
from headrace.core import broker

COMPILED: Final = "compiled"
PURE: Final = "pure Python"


def build() -> str:
    """Return COMPILED or PURE, as the module of the broker was loaded."""
    return PURE if str(broker.__file__).endswith(".py") else COMPILED


def version_line() -> str:
    """Return the version, the build and the Python it runs on, as `headrace --version` prints them."""
    return f"{__version__} ({build()}, Python {platform.python_version()})"
