"""Files of `user:hash` lines, out of which users are imported."""

from __future__ import annotations

from pathlib import Path

from headrace.directory.errors import InvalidField
from headrace.directory.hashes import checked_hash
from headrace.directory.names import user_name


def read_hash_file(file: Path, field: str = "FILE") -> dict[str, str]:
    """Return the hash of each user of a file; of two lines about one user the last one counts, as in Mosquitto. Raises
    InvalidField, which has the number of a line and never the line."""
    try:
        text = file.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        number = error.object.count(b"\n", 0, error.start) + 1
        raise InvalidField(field, f"{file}, line {number}: not UTF-8") from None
    except OSError as error:
        raise InvalidField(field, f"{file}: {error.strerror}") from None
    found: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip(" \t\r")
        if not line or line.startswith("#"):
            continue
        name, colon, hashed = line.partition(":")
        try:
            if not colon:
                raise InvalidField("line", "is not written USER:HASH")
            user_name(name)
            found[name] = checked_hash(hashed)
        except InvalidField as error:
            raise InvalidField(field, f"{file}, line {number}: {error}") from None
    if not found:
        raise InvalidField(field, f"{file}: has no user")
    return found
