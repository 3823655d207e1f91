"""Odd payloads and properties, drawn by a seed: JSON of the types that schemas ask for, nearly so, and not at all."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from typing import Any

from spark.journals import EPOCH

TYPES: dict[str, Any] = {
    "s": "string",
    "l": "long",
    "d": "double",
    "b": "boolean",
    "day": "date",
    "t": "timestamp",
    "ts": "timestamp_s",
    "tms": "timestamp_ms",
    "tus": "timestamp_us",
    "list": ["string"],
    "longs": ["long"],
    "in": {"s": "string", "d": "double", "deep": [{"tms": "timestamp_ms"}]},
}
KINDS: dict[str, Any] = {
    "whole": TYPES,
    "name": "string",
    "level": "long",
    "heat": "double",
    "names": ["string"],
    "grid": [["double"]],
    "since": "timestamp_ms",
    "raw": None,
}
FILE = """
[[schema]]
name = "whole"
topics = ["whole/#"]
event_time = "tms"
required = ["s"]
rescue = true
[schema.fields]
s = "string"
l = "long"
d = "double"
b = "boolean"
day = "date"
t = "timestamp"
ts = "timestamp_s"
tms = "timestamp_ms"
tus = "timestamp_us"
list = ["string"]
longs = ["long"]
in = { s = "string", d = "double", deep = [{ tms = "timestamp_ms" }] }
""" + "".join(
    f'[[schema]]\nname = "{name}"\ntopics = ["{name}/#"]\n'
    + (f"payload = {json.dumps(kind)}\n" if kind else "")
    for name, kind in KINDS.items()
    if name != "whole"
)
ENDS_OF_LINES = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
"""Characters at which Python's `splitlines` ends a line, or Java does."""
ODD_TEXTS = (
    json.dumps(ENDS_OF_LINES),
    '"a"',
    '""',
    '"é😀\\u2028\\u0000"',
    '"\\ud83d\\ude00"',
    '"\\ud800"',
    '"\\udc00x"',
    '"1"',
    '"NaN"',
    '"null"',
    '"a} rest"',
    '"\\"],[\\""',
)
ODD_NUMBERS = (
    "0",
    "-0",
    "1",
    "-1",
    "1.0",
    "1.10",
    "1e3",
    "1E400",
    "-1e400",
    "1e-400",
    "0.1",
    "9007199254740993",
    "123456789.123457",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775808",
    "1" * 60,
    "253402300799999",
    "253402300800000",
    "-62135596800000",
    "-62135596800001",
    "253402300799",
    "253402300799999999",
    "1760054400.123457",
    "253402300799.99997",
)
ODD_TIMES = (
    '"2025-10-10"',
    '"2025-10-10\\n"',
    '"2025-10-10T05:06:07Z\\u2028"',
    '"2025-10-10T05:06:07Z"',
    '"2025-10-10 05:06:07.123456789+02:00"',
    '"2025-10-10T05:06"',
    '"2025-02-30"',
    '"0001-01-01T00:00:00Z"',
    '"0001-01-01T00:00:00+01:00"',
    '"9999-12-31T23:59:59.999999Z"',
    '"9999-12-31T23:59:59-01:00"',
    '"12:30"',
    '"12345"',
    '"2025"',
    '"now"',
    '"+10000-01-01"',
    '" 2025-10-10"',
    '"2025-10-10T25:00:00Z"',
)
NOT_JSON = (
    "",
    " ",
    "a",
    "'a'",
    "NaN",
    "Infinity",
    "01",
    ".5",
    "+1",
    "[1,]",
    '{"a":1,}',
    "/*c*/1",
    '"\t"',
    "tru",
    "[1 2]",
)
BEHIND = (
    " rest",
    ',"value":[9,9]',
    '],"value":[',
    "} rest",
    "}",
    "]",
    ",1",
    '"',
    "\0",
    " 7",
    "{}",
    '","x"]',
    "//",
)
PAIRS = (
    ("message-id", ""),
    ("message-id", "m"),
    ("message-id", "a/b"),
    ("message-id", "x" * 65_535),
    ("Message-Id", "no"),
    ("", ""),
    ("a", "1"),
    ("a", "1"),
    ("a", "2"),
    ("producer-owner", "0" * 32),
)


class Draw(random.Random):
    """Draws JSON, mostly of the type that a schema asks for."""

    def json(self, kind: Any) -> str:
        roll = self.random()
        if roll < 0.04:
            return self.choice(("null", "true", "{}", "[]", '{"x":1}', *ODD_TEXTS, *ODD_NUMBERS, *ODD_TIMES))
        if isinstance(kind, dict):
            return self.object(kind)
        if isinstance(kind, list):
            items = ",".join(self.json(kind[0]) for _ in range(self.randrange(4)))
            return f"[{self.space()}{items}]"
        return self.scalar(kind)

    def scalar(self, kind: str) -> str:
        odd = self.random() < 0.2
        if kind == "string":
            return self.choice(ODD_TEXTS) if odd else json.dumps(f"t{self.random()}")
        if kind == "boolean":
            return self.choice(("true", "false"))
        if kind in ("date", "timestamp"):
            at = EPOCH + timedelta(days=self.randrange(20_000), microseconds=self.randrange(86_400_000_000))
            return self.choice(ODD_TIMES) if odd else f'"{at.date() if kind == "date" else at.isoformat()}"'
        if odd:
            return self.choice(ODD_NUMBERS)
        if kind in ("double", "timestamp_s"):
            return repr(self.uniform(-1e10, 2e11))
        return str(self.randrange(-(10**12), 10**14))

    def object(self, kinds: dict[str, Any]) -> str:
        members = [(name, self.json(kind)) for name, kind in kinds.items() if self.random() < 0.9]
        if self.random() < 0.3:
            members.append(
                (self.choice(("more", "S", "é")), self.json(self.choice(("string", "double", ["long"]))))
            )
        self.shuffle(members)
        gap = self.space()
        return (
            "{"
            + gap
            + f",{gap}".join(f"{json.dumps(name)}{gap}:{gap}{value}" for name, value in members)
            + gap
            + "}"
        )

    def space(self) -> str:
        return self.choice(("", "", "", " ", "\r\n\t"))

    def payload(self, kind: Any) -> bytes:
        roll = self.random()
        if kind is None or roll < 0.05:
            return self.randbytes(self.choice((0, 1, 30)))
        text = self.choice(NOT_JSON) if roll < 0.1 else self.json(kind)
        if roll > 0.9:
            text += self.choice(BEHIND)
        if roll > 0.97:
            text = text[: self.randrange(len(text) + 1)]
        mark = "\ufeff" if 0.1 < roll < 0.13 else ""
        return f"{mark}{text}".encode()
