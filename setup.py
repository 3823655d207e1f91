"""Build switch: HEADRACE_COMPILE=1 compiles the hot modules with mypyc, otherwise the wheel is pure Python.

One group, so that calls between the modules are direct C calls; `syscalls` alone is Cython (ADR 0007).
`__init__.py` files stay interpreted: they hold no code, and an interpreted package may have compiled and interpreted
modules side by side.
The same source runs both ways, and the test suite runs both ways.
"""

from __future__ import annotations

import os
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
COMPILED = (
    "errors.py",
    "mqtt/*.py",
    "core/*.py",
    "net/connection.py",
    "sockets/*.py",
    "bridge/link.py",
    "bridge/rendering.py",
    "bridge/terms.py",
    "bridge/topics.py",
    "bridge/counters.py",
    "stores/*.py",
    "journal/active.py",
    "journal/catalog.py",
    "journal/writer.py",
    "clients/load.py",
    "clients/publisher.py",
    "clients/subscriber.py",
    "clients/tally.py",
    "services/ticks.py",
    "services/watchdog.py",
)


def compiled_modules() -> list[str]:
    """Paths of the modules in the compiled group, relative to the root, in a stable order."""
    found = (path.relative_to(ROOT) for pattern in COMPILED for path in (ROOT / "src/headrace").glob(pattern))
    return sorted(str(path) for path in found if path.name != "__init__.py")


if os.environ.get("HEADRACE_COMPILE") == "1":
    from Cython.Build import cythonize
    from mypyc.build import mypycify

    extensions = mypycify(
        compiled_modules(), opt_level="3", debug_level="0", multi_file=False, strip_asserts=False
    )
    # So that calls within the group may be inlined, and pass no table of exports.
    for extension in extensions:
        extension.extra_compile_args = [*extension.extra_compile_args, "-fvisibility=hidden"]
    extensions += cythonize(["src/headrace/syscalls.pyx"], build_dir="build", quiet=True)
else:
    extensions = []

setup(ext_modules=extensions)
