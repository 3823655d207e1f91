"""Build switch: with a C compiler at hand the hot modules are compiled with mypyc, otherwise the wheel is pure Python.

HEADRACE_COMPILE=1 insists on the compiled build and fails where it cannot be made; HEADRACE_COMPILE=0 makes the pure one.
Without it a compiler decides, and a pure wheel, which serves a ninth of the messages, is said aloud here and by
`headrace serve`.

One group, so that calls between the modules are direct C calls; `syscalls` alone is Cython (ADR 0007).
`__init__.py` files stay interpreted: they hold no code, and an interpreted package may have compiled and interpreted
modules side by side.
The same source runs both ways, and the test suite runs both ways.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
COMPILED = (
    "errors.py",
    "stream.py",
    "links/frame_link.py",
    "links/mqtt_link.py",
    "links/stream_link.py",
    "mqtt/*.py",
    "frames/*.py",
    "core/*.py",
    "core/*/*.py",
    "net/connection.py",
    "net/frame_connection.py",
    "sockets/*.py",
    "bridge/link.py",
    "bridge/rendering.py",
    "bridge/suspect.py",
    "bridge/terms.py",
    "bridge/topics.py",
    "bridge/counters.py",
    "storage/memory.py",
    "storage/embedded/local.py",
    "journal/active.py",
    "journal/catalog.py",
    "journal/writer.py",
    "clients/load.py",
    "clients/publisher.py",
    "clients/subscriber.py",
    "clients/tally.py",
    "services/ticks.py",
    "services/watchdog.py",
    "peers/channel.py",
    "peers/peer_frames.py",
    "peers/peer_link.py",
    "peers/relay.py",
    "peers/wires.py",
)


def compiled_modules() -> list[str]:
    """Paths of the modules in the compiled group, relative to the root, in a stable order."""
    found = (path.relative_to(ROOT) for pattern in COMPILED for path in (ROOT / "src/headrace").glob(pattern))
    return sorted(str(path) for path in found if path.name != "__init__.py")


def is_compiled() -> bool:
    """Whether this build compiles: as HEADRACE_COMPILE says, else if there is a compiler and the headers of Python."""
    wanted = os.environ.get("HEADRACE_COMPILE", "")
    if wanted:
        return wanted == "1"
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    found = shutil.which(str(compiler).split()[0]) is not None and headers.exists()
    if not found and {"bdist_wheel", "install"} & set(sys.argv):
        print(
            "headrace: no C compiler: a pure Python wheel, a ninth as fast as the compiled one",
            file=sys.stderr,
        )
    return found


def extensions() -> list[object]:
    """The compiled group and the system calls. Needs mypy and Cython, which are asked for where something is built."""
    from Cython.Build import cythonize
    from mypyc.build import mypycify

    found = mypycify(
        compiled_modules(), opt_level="3", debug_level="0", multi_file=False, strip_asserts=False
    )
    # So that calls within the group may be inlined, and pass no table of exports; and that how much is inlined on the hot
    # path does not depend on how much code there is elsewhere. Nobody reads warnings about generated C, and gcc takes
    # longer to look for them than to compile it.
    for extension in found:
        more = ["-fvisibility=hidden", "--param=inline-unit-growth=100", "-Wno-all"]
        extension.extra_compile_args = [*extension.extra_compile_args, *more]
    return [*found, *cythonize(["src/headrace/syscalls.pyx"], build_dir="build", quiet=True)]


# The list of sources and the metadata of an sdist need no compiler.
builds = bool({"bdist_wheel", "build_ext", "build", "install", "develop", "editable_wheel"} & set(sys.argv))
setup(ext_modules=extensions() if builds and is_compiled() else [])
