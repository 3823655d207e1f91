"""Files of settings for Kafka's clients, as every program has them that is built on librdkafka: a line `name=value` each,
as `security.protocol=SASL_SSL` or `sasl.password=...`; empty lines and lines that begin with # are passed over.

What is in one may be secret: no message repeats anything of it but names.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

Properties = tuple[tuple[str, str], ...]


def read_properties(path: str, ours: Collection[str]) -> Properties:
    """Return the settings in a file, none if `path` is empty. Raises ValueError where it cannot be read, has a line that
    is none, or has one of `ours`, which are not for a file to say."""
    if not path:
        return ()
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"properties_file cannot be read: {error}") from None
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, mark, value = (part.strip() for part in line.partition("="))
        if not mark or not name:
            raise ValueError(f"properties_file: line {number} is not name=value")
        if name in ours or name.endswith("_cb"):
            raise ValueError(f"properties_file: {name} is the broker's own")
        if name in found:
            raise ValueError(f"properties_file: {name} is given twice")
        found[name] = value
    return tuple(found.items())
