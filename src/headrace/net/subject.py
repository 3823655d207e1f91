"""The user name of a client by its certificate: a template, as `{o}/{cn}`, that the certificate fills in.

Fields are cn, o and ou of the subject, and dns, uri and email of the subject alternative names. A certificate that has
none of a field, or several, names nobody; nor does one whose value holds the text behind its field in the template, since
it could pass for two values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

COMMON_NAME: Final = "cn"  # alone: the common name as it is
_SUBJECT: Final = {"cn": "commonName", "o": "organizationName", "ou": "organizationalUnitName"}
_ALTERNATIVE: Final = {"dns": "DNS", "uri": "URI", "email": "email"}
FIELDS: Final = (*_SUBJECT, *_ALTERNATIVE)
_FIELD: Final = re.compile("[{]([^{}]*)[}]")


class SubjectTemplate:
    """A template of user names. Raises ValueError where it is none."""

    def __init__(self, text: str) -> None:
        parts = _FIELD.split(text)
        self._literals, self._fields = parts[::2], parts[1::2]
        if not self._fields or any(mark in literal for literal in self._literals for mark in "{}"):
            raise ValueError(f"{text!r} is neither cn nor a template, as {{o}}/{{cn}}")
        for name in self._fields:
            if name not in FIELDS:
                raise ValueError(f"{{{name}}} is none of {', '.join(f'{{{one}}}' for one in FIELDS)}")

    def name(self, certificate: Mapping[str, Any]) -> str | None:
        """Return the user name of a certificate, as `ssl` shows it; None if it names nobody."""
        found = [self._literals[0]]
        for field, literal in zip(self._fields, self._literals[1:], strict=True):
            values = _values(certificate, field)
            if len(values) != 1 or not values[0] or (literal and literal in values[0]):
                return None
            found += [values[0], literal]
        return "".join(found)


def _values(certificate: Mapping[str, Any], field: str) -> list[str]:
    """Return all values of a field."""
    kind = _SUBJECT.get(field)
    if kind is None:
        wanted = _ALTERNATIVE[field]
        return [str(value) for key, value in certificate.get("subjectAltName", ()) if key == wanted]
    return [str(value) for names in certificate.get("subject", ()) for key, value in names if key == kind]
