"""Passwords out of files and standard input: one line, that nobody else may read."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Final

from headrace.directory.errors import InvalidField

_BYTES_MAX: Final = 65_536


def secret_of(file: Path, field: str) -> bytes:
    """Return the first line of a file, or of standard input for `-`. Raises InvalidField, also for a file that everybody
    on this machine may read."""
    if str(file) == "-":
        return _first_line(sys.stdin.buffer.readline(_BYTES_MAX + 1), field)
    try:
        with file.open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            if mode & stat.S_IROTH and stat.S_ISREG(mode):
                raise InvalidField(field, f"{file}: everybody on this machine may read it (chmod o-rwx)")
            return _first_line(opened.readline(_BYTES_MAX + 1), field)
    except OSError as error:
        raise InvalidField(field, f"{file}: {error.strerror}") from None


def _first_line(line: bytes, field: str) -> bytes:
    secret = line.rstrip(b"\r\n")
    if not secret:
        raise InvalidField(field, "its first line is empty")
    if len(secret) >= _BYTES_MAX:
        raise InvalidField(field, "its first line is too long")
    return secret
