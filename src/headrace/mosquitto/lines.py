"""mosquitto.conf taken apart: one option a line, its value behind the first space; `include_dir` reads more files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.errors import ConfigError


class InvalidLine(ConfigError):
    """The file cannot be read, or a value cannot be understood. The message has file and line."""


@dataclass(frozen=True, slots=True)
class Line:
    """An option of mosquitto.conf, with the file and line where it stands."""

    file: Path
    number: int
    option: str
    value: str

    @property
    def place(self) -> str:
        return f"{self.file}:{self.number}"

    def veiled(self) -> Line:
        """Return the line of an option that is not known, for people: its value may be a secret, and with a tab between
        them so may the end of its name."""
        found = re.match(r"[A-Za-z0-9_.]{1,60}", self.option)
        name = found[0] if found else "(no name)"
        return replace(self, option=name, value="(not shown)" if self.value or name != self.option else "")

    def text(self) -> str:
        """Return the value of a line. Raises InvalidLine if there is none."""
        if not self.value:
            raise InvalidLine(f"{self.place}: {self.option} needs a value")
        return self.value

    def flag(self) -> bool:
        """Return the value as true or false. Raises InvalidLine."""
        word = self.value.lower()
        if word not in ("true", "false", "1", "0"):
            raise InvalidLine(f"{self.place}: {self.option} {self.value}: true or false is needed")
        return word in ("true", "1")

    def integer(self) -> int:
        """Return the value as a number. Raises InvalidLine."""
        try:
            return int(self.value)
        except ValueError:
            raise InvalidLine(f"{self.place}: {self.option} {self.value}: no number") from None


def read_lines(file: Path, depth: int = 0) -> Iterator[Line]:
    """Yield every option of a file and of those it includes, in Mosquitto's order. Raises InvalidLine."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidLine(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidLine(f"{file}: not UTF-8") from None
    for number, raw in enumerate(text.split("\n"), 1):
        stripped = raw.strip()
        if not stripped or stripped.startswith("#"):
            continue
        option, _, value = stripped.partition(" ")
        line = Line(file, number, option, value.strip())
        if option == "include_dir" and depth == 0:
            for included in _included(line):
                yield from read_lines(included, depth + 1)
        else:
            yield line


def _included(line: Line) -> list[Path]:
    """Return the files of an `include_dir`, in Mosquitto's order: that of capital letters, which decides to which
    listener the options of the next file belong. Raises InvalidLine: what cannot be read may close a door."""
    folder = Path(line.text())
    try:
        names = [name for name in os.listdir(folder) if name.endswith(".conf") and name != ".conf"]
    except OSError as error:
        raise InvalidLine(f"{line.place}: {line.option} {line.value}: {error.strerror}") from None
    return [folder / name for name in sorted(names, key=_in_capitals)]


def _in_capitals(name: str) -> list[tuple[int, int]]:
    """Return what Mosquitto compares of a name: its bytes as capital letters, each behind it as it is."""
    signed = [byte - 256 if byte > 127 else byte for byte in os.fsencode(name)]
    return [(byte - 32 if 97 <= byte <= 122 else byte, byte) for byte in signed]
