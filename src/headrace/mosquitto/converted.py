"""What a conversion has made so far: our keys, and a remark for every line that could not become one."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from headrace.mosquitto.closing import SECRETS
from headrace.mosquitto.lines import Line

Table = dict[str, Any]


@dataclass
class Converted:
    """What a conversion has made. `tables` as TOML has them. `remarks`: place, what stands there, and what became of
    it. `accepted`: options that may be left out although they close a door. `left_out`: what is not in the result, since
    without its option it would let in more than before; `is_made`: False when that is all of it."""

    tables: Table = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    accepted: frozenset[str] = frozenset()
    left_out: list[str] = field(default_factory=list)
    is_made: bool = True

    def set(self, key: str, value: object) -> None:
        """Set a key: `session.inflight_max` is a key of the table `session`."""
        table, _, name = key.rpartition(".")
        (self.tables.setdefault(table, {}) if table else self.tables)[name] = value

    def get(self, key: str) -> Any:
        table, _, name = key.rpartition(".")
        return (self.tables.get(table, {}) if table else self.tables).get(name)

    def remark(self, line: Line, why: str) -> None:
        self.remarks.append(f"{line.place}: {_shown(line)}: {why}")

    def closes(self, line: Line, why: str, what: str) -> bool:
        """Return whether `what` must be left out, since this line closes a door and `why` nothing of ours does: unless
        its option was accepted. Either is said."""
        if line.option in self.accepted:
            self.remark(line, f"{why}; accepted")
            return False
        if what not in self.left_out:
            self.left_out.append(what)
        self.remark(line, f"{why}; {what} is left out, unless you say --accept {line.option}")
        return True

    def toml(self) -> str:
        """Return the configuration as a file: keys, tables, bridges, with the remarks in front."""
        said = [
            "# " + "".join(one if one.isprintable() else "?" for one in remark) for remark in self.remarks
        ]
        head = (
            ["# Made from mosquitto.conf. What has no counterpart, or is not quite the same:", *said]
            if said
            else []
        )
        lines = _table("", self.tables)
        return "\n".join([*head, *([""] if head else []), *lines]) + "\n"


def _shown(line: Line) -> str:
    """Return a line for people, without secrets."""
    value = "(a secret)" if line.option in SECRETS else line.value
    return f"{line.option} {value}".rstrip()


def _table(name: str, table: Table) -> list[str]:
    inner = {key: value for key, value in table.items() if isinstance(value, dict)}
    lists = {key: value for key, value in table.items() if _is_tables(value)}
    lines = [
        f"{key} = {json.dumps(value, ensure_ascii=False)}"
        for key, value in table.items()
        if key not in inner and key not in lists
    ]
    for key, value in inner.items():
        if value:
            path = f"{name}.{key}".lstrip(".")
            lines += ["", f"[{path}]", *_table(path, value)]
    for key, value in lists.items():
        path = f"{name}.{key}".lstrip(".")
        for one in value:
            lines += ["", f"[[{path}]]", *_table(path, one)]
    return lines


def _is_tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)
