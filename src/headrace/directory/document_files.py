"""Documents of tenants as files: JSON, which has everything, and CSV, which has its users or its rules.

name,state,groups,hash,password              groups with ; between them; a column that is missing is empty
effect,actions,filter,kind,subject           actions with ; between them
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.directory.documents import RuleDocument, TenantDocument, UserDocument
from headrace.directory.errors import InvalidField

USERS: Final = "users"
RULES: Final = "rules"
PARTS: Final = (USERS, RULES)
_SEPARATOR: Final = ";"
_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    USERS: ("name", "state", "groups", "hash", "password"),
    RULES: ("effect", "actions", "filter", "kind", "subject"),
}
_LISTS: Final = ("groups", "actions")
_NEEDED: Final = {USERS: "name", RULES: "effect"}
Entry = UserDocument | RuleDocument


def as_json(document: TenantDocument) -> str:
    """Return a document as JSON, in the same order each time."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def as_csv(document: TenantDocument, part: str) -> str:
    """Return the users or the rules of a document as CSV. Raises InvalidField for a name that it cannot hold."""
    entries: Sequence[Any] = (document.users if part == USERS else document.rules) or []
    text = io.StringIO()
    written = csv.writer(text, lineterminator="\n")
    names = [name for name in _FIELDS[part] if name != "password"]
    written.writerow(names)
    for one in entries:
        written.writerow([_cell(name, getattr(one, name)) for name in names])
    return text.getvalue()


def read_document(content: bytes, field: str = "FILE", is_csv: bool = False) -> TenantDocument:
    """Return the document in a file. Raises InvalidField, with the place in it."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidField(field, f"byte {error.start + 1} is not UTF-8") from None
    if is_csv:
        return _of_csv(text, field)
    try:
        return msgspec.json.decode(text, type=TenantDocument)
    except msgspec.MsgspecError as error:
        raise InvalidField(field, str(error)) from None


def is_csv(file: Path) -> bool:
    """Return whether a file is called as one of CSV is."""
    return file.suffix.lower() == ".csv"


def _cell(name: str, value: Any) -> str:
    if name not in _LISTS:
        return str(value)
    for one in value:
        if _SEPARATOR in one:
            raise InvalidField(name, f"{one!r} has a {_SEPARATOR}, which divides a list in CSV: take JSON")
    return _SEPARATOR.join(value)


def _of_csv(text: str, field: str) -> TenantDocument:
    rows = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        names = list(rows.fieldnames or ())
        part = next((part for part in PARTS if _NEEDED[part] in names), "")
        if not part or set(names) - set(_FIELDS[part]) or len(set(names)) < len(names):
            known = " or ".join(",".join(_FIELDS[part]) for part in PARTS)
            raise InvalidField(field, f"line 1: the columns are some of {known}")
        kind: type[Entry] = UserDocument if part == USERS else RuleDocument
        entries = [_entry(row, kind, f"{field}, line {rows.line_num}") for row in rows]
    except csv.Error as error:
        raise InvalidField(field, f"line {rows.line_num}: {error}") from None
    return msgspec.convert({part: msgspec.to_builtins(entries)}, TenantDocument)


def _entry(row: Mapping[str | None, Any], kind: type[Entry], place: str) -> Entry:
    """Return the entry of a row; a cell that is empty is as if it were not there."""
    if None in row or None in row.values():
        raise InvalidField(place, "it has not as many cells as the first line")
    found = {name: text.split(_SEPARATOR) if name in _LISTS else text for name, text in row.items() if text}
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        raise InvalidField(place, str(error)) from None
