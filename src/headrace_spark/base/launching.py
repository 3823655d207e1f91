"""Spark's Java as we start it: deaf to stops, and without a word of its configuration in its command line.

Every user of a machine can read the command lines of all processes, and `spark.hadoop.fs.s3a.secret.key` and its like are
configuration. So it is handed over in a file that only its owner may read, beside Spark's own `spark-defaults.conf`.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pyspark import java_gateway

from headrace_spark.base.scratch import Scratch

_CONF: Final = "--conf"
_ESCAPED: Final = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
_ESCAPED_IN_KEYS: Final = {" ": "\\ ", "=": "\\=", ":": "\\:", "#": "\\#", "!": "\\!"} | _ESCAPED


@contextmanager
def java_as_we_start_it() -> Iterator[None]:
    """Let the Java that Spark starts within ignore SIGTERM, as Spark itself lets it ignore SIGINT, and read its
    configuration from a file.

    Who stops a job tells all of its processes, and a Spark that ends by itself in the middle of its work says so in pages
    of traces, its own and those of who still asks it. This process stops it, and it ends with this process in any case:
    when its standard input does.
    """
    of_spark: Any = java_gateway
    before = of_spark.Popen
    with Scratch("spark") as folder:

        def start(
            command: list[str], preexec_fn: Callable[[], None], **options: Any
        ) -> subprocess.Popen[bytes]:
            def prepare() -> None:
                preexec_fn()
                signal.signal(signal.SIGTERM, signal.SIG_IGN)

            private = conf_in_a_file(command, folder / "spark.properties")
            return subprocess.Popen(private, preexec_fn=prepare, **options)  # noqa: PLW1509  (as Spark does)

        of_spark.Popen = start
        try:
            yield
        finally:
            of_spark.Popen = before


def conf_in_a_file(command: Sequence[str], file: Path) -> list[str]:
    """Return a call of spark-submit with all that `--conf` says in a file, which is written."""
    program, *arguments = command
    said, rest = dict[str, str](), list[str]()
    given = iter(arguments)
    for argument in given:
        if argument == _CONF:
            key, _, value = next(given).partition("=")
            said[key] = value
        else:
            rest.append(argument)
    return [program, *read_from(file, said), *rest]


def read_from(file: Path, configuration: Mapping[str, str]) -> list[str]:
    """Write Spark's configuration to a file for its owner alone; return the options by which spark-submit reads it,
    besides the file of defaults."""
    lines = [
        f"{_escaped(key, _ESCAPED_IN_KEYS)}={_escaped(value, _ESCAPED)}\n"
        for key, value in sorted(configuration.items())
    ]
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as out:
        out.write("".join(lines))
    return ["--properties-file", str(file), "--load-spark-defaults"]


def _escaped(text: str, escapes: Mapping[str, str]) -> str:
    """Return a text as a line of Java's properties has it."""
    return "".join(escapes.get(character, character) for character in text)
