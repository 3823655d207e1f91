"""Names and values in the directory, checked before any SQL is made of them: what is refused names its field.

Everything that passes comes back byte for byte. A name of the directory may hold anything that a name in MQTT may, and
is shorter; control characters, line ends and lone surrogates are in none, so that a line of a list is one entry.
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from typing import Final

from headrace.directory.errors import InvalidField
from headrace.mqtt.topics import malformed_filter

NAME_BYTES_MAX: Final = 255  # of a user or a group
CLIENT_ID_BYTES_MAX: Final = 1024  # in a rule or a ban: part of a key, and keys are bounded everywhere
FILTER_BYTES_MAX: Final = 65_535
TEXT_BYTES_MAX: Final = 1024
HASH_BYTES_MAX: Final = 1024
PASSWORD_BYTES_MAX: Final = 65_535  # of the field of a CONNECT
NUMBER_MAX: Final = 2**63 - 1
DURATION_S_MAX: Final = 100 * 365 * 86400
_TENANT: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_DURATION: Final = re.compile(r"([0-9]{1,10})(s|m|h|d)")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def tenant_name(name: str, field: str = "tenant") -> str:
    """Return the name of a tenant as it is. Raises InvalidField."""
    if _TENANT.fullmatch(name) is None:
        raise InvalidField(field, "1 to 63 of a-z, 0-9 and -, and no - in front")
    return name


def user_name(name: str, field: str = "user") -> str:
    """Return the name of a user, without its tenant, as it is. Raises InvalidField."""
    return line_of_text(name, field, NAME_BYTES_MAX)


def group_name(name: str, field: str = "group") -> str:
    """Return the name of a group as it is. Raises InvalidField."""
    return line_of_text(name, field, NAME_BYTES_MAX)


def client_id(name: str, field: str = "client") -> str:
    """Return a client id as it is. Raises InvalidField."""
    return line_of_text(name, field, CLIENT_ID_BYTES_MAX)


def tenant_and(name: str, field: str) -> tuple[str, str]:
    """Return the tenant and the rest of `acme/gateway-1`: the first slash divides them, and the rest may hold more.
    Raises InvalidField."""
    tenant, slash, rest = name.partition("/")
    if not slash or not rest:
        raise InvalidField(field, "is written TENANT/NAME")
    return tenant_name(tenant, field), rest


def line_of_text(text: str, field: str, bytes_max: int = TEXT_BYTES_MAX) -> str:
    """Return a text that is not empty as it is. Raises InvalidField."""
    if not text:
        raise InvalidField(field, "is empty")
    return note_of_text(text, field, bytes_max)


def note_of_text(text: str, field: str, bytes_max: int = TEXT_BYTES_MAX) -> str:
    """Return a text, which may be empty, as it is. Raises InvalidField."""
    if len(text) > bytes_max:
        raise InvalidField(field, f"longer than {bytes_max} bytes")
    for character in text:
        if unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") or _is_no_character(character):
            raise InvalidField(field, f"has the character U+{ord(character):04X}, which no name may have")
    if len(text.encode()) > bytes_max:
        raise InvalidField(field, f"longer than {bytes_max} bytes")
    return text


def _is_no_character(character: str) -> bool:
    """Return whether this is one of the code points that Unicode keeps free of characters [MQTT-1.5.4]."""
    number = ord(character)
    return number & 0xFFFE == 0xFFFE or 0xFDD0 <= number <= 0xFDEF


def topic_filter(text: str, field: str = "filter") -> str:
    """Return a topic filter of a rule as it is. Raises InvalidField."""
    wrong = malformed_filter(line_of_text(text, field, FILTER_BYTES_MAX))
    if wrong:
        raise InvalidField(field, wrong)
    return text


def password_of(secret: bytes, field: str = "password") -> bytes:
    """Return a password that a CONNECT can carry. Raises InvalidField, which says nothing of it."""
    if not secret:
        raise InvalidField(field, "is empty")
    if len(secret) > PASSWORD_BYTES_MAX:
        raise InvalidField(field, f"longer than {PASSWORD_BYTES_MAX} bytes")
    return secret


def network(text: str, field: str = "address") -> str:
    """Return an IP address or network as it is written canonically: 2001:DB8::1 is 2001:db8::1/128. Raises
    InvalidField."""
    try:
        found = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise InvalidField(field, "is no IP address and no network") from None
    if "%" in text:  # a scope is of this machine alone
        raise InvalidField(field, "has a zone")
    return str(found)


def duration_s(text: str, field: str = "for") -> int:
    """Return the seconds of `30s`, `10m`, `12h` or `7d`. Raises InvalidField."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise InvalidField(field, "is a number with s, m, h or d behind it, as 10m")
    seconds = int(found[1]) * _SECONDS[found[2]]
    if not 0 < seconds <= DURATION_S_MAX:
        raise InvalidField(field, "is more than nothing and at most 36500d")
    return seconds


def whole_number(value: int, field: str, least: int = 0, most: int = NUMBER_MAX) -> int:
    """Return a number within its bounds. Raises InvalidField."""
    if not least <= value <= most:
        raise InvalidField(field, f"is a whole number from {least} to {most}")
    return value


def shown(text: str) -> str:
    """Return a name for a terminal: what would not be seen, or would turn the line round, as an escape."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)
