"""The user name of a client by its certificate: a template, as `{o}/{cn}`, that the certificate fills in.

Fields are cn, o and ou of the subject, and dns, uri and email of the subject alternative names. A certificate that has
none of a field, or several, names nobody; nor does one whose value holds a text that stands anywhere behind its
field in the template, since it could pass for two values: for a tenant, and what is behind its separator. Where names
divide into tenant and user the first separator of the name is the first one of the template.
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
    """A template of user names. `separator` stands between tenant and user, "": there are no tenants. Raises ValueError
    where it is none."""

    def __init__(self, text: str, separator: str = "") -> None:
        self._separator = separator
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
        for at, field in enumerate(self._fields, 1):
            values, behind = _values(certificate, field), self._literals[at:]
            if len(values) != 1 or not values[0] or any(text and text in values[0] for text in behind):
                return None
            found += [values[0], behind[0]]
        return "".join(found) if self._is_divided_right(found) else None

    def _is_divided_right(self, parts: list[str]) -> bool:
        """Return whether it is the template that says which tenant the parts of a name name, literals and values in turn:
        no value that stands before its separator brings one along. One field alone may be the whole name."""
        separator, name = self._separator, "".join(parts)
        if not separator or (len(self._fields) == 1 and not self._literals[0] + self._literals[1]):
            return True
        wanted, at = -1, 0
        for part in range(len(parts)):
            inside = parts[part].find(separator) if part % 2 == 0 else -1
            if inside >= 0:
                wanted = at + inside
                break
            at += len(parts[part])
        return name.find(separator) == wanted


def _values(certificate: Mapping[str, Any], field: str) -> list[str]:
    """Return all values of a field."""
    kind = _SUBJECT.get(field)
    if kind is None:
        wanted = _ALTERNATIVE[field]
        return [str(value) for key, value in certificate.get("subjectAltName", ()) if key == wanted]
    return [str(value) for names in certificate.get("subject", ()) for key, value in names if key == kind]
