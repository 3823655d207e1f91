"""When certificates and revocation lists begin and end to count: two fields of their DER encoding (RFC 5280, 4.1.2.5 and
5.1.2.4), for every one in a PEM file."""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from headrace.net.der import CONTEXT_0, INTEGER, Element, inside, one

_PEM: Final = re.compile(
    b"-----BEGIN (X509 CRL|(?:TRUSTED |X509 )?CERTIFICATE)-----(.+?)-----END \\1-----", re.DOTALL
)
_UTC_TIME, _GENERALIZED_TIME = 0x17, 0x18


def complaints(file: Path, now: datetime | None = None) -> list[str]:
    """Return what is wrong with the times in a PEM file. What cannot be read is left to OpenSSL. Raises OSError."""
    now = now or datetime.now(UTC)
    found = []
    for kind, text in _PEM.findall(file.read_bytes()):
        try:
            fields = inside(inside(one(base64.b64decode(text)))[0])
            is_list = kind == b"X509 CRL"
            since, until = _of_list(fields) if is_list else _of_certificate(fields)
        except (ValueError, IndexError):
            continue
        what = "the revocation list" if is_list else "the certificate"
        if until is not None and now > until:
            found.append(f"{what} expired on {until:%Y-%m-%d %H:%M} UTC")
        elif now < since:
            found.append(f"{what} does not count before {since:%Y-%m-%d %H:%M} UTC")
    return found


def _of_certificate(fields: list[Element]) -> tuple[datetime, datetime]:
    validity = fields[4 if fields[0][0] == CONTEXT_0 else 3]
    since, until = inside(validity)
    return _time(since), _time(until)


def _of_list(fields: list[Element]) -> tuple[datetime, datetime | None]:
    first = 3 if fields[0][0] == INTEGER else 2
    until = fields[first + 1] if len(fields) > first + 1 else None
    named = until is not None and until[0] in (_UTC_TIME, _GENERALIZED_TIME)
    return _time(fields[first]), _time(until) if until is not None and named else None


def _time(element: Element) -> datetime:
    text = element[1].decode("ascii")
    if element[0] == _UTC_TIME:  # years from 50 on are of the century before
        text = ("19" if text[:2] >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
