"""What the directory holds, as it is handed out: tenants, users, rules, quotas, settings, bans, tokens and changes.

`revision` of an entry is that of its last change, counted over the whole directory. No entry shows a password's hash.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace.directory.errors import InvalidField
from headrace.directory.names import NUMBER_MAX, whole_number

ACTIVE: Final = "active"
DISABLED: Final = "disabled"
DELETING: Final = "deleting"

ALLOW: Final = "allow"
DENY: Final = "deny"
ACTIONS: Final = ("publish", "subscribe", "retain")
SUBJECTS: Final = ("tenant", "group", "user", "client")

# The limits of a tenant, over all its connections; what is not set is not limited. 0 allows nothing.
QUOTAS: Final = (
    "connections",
    "connects_per_s",
    "publish_messages_per_s",
    "publish_bytes_per_s",
    "deliver_messages_per_s",
    "deliver_bytes_per_s",
    "sessions",
    "subscriptions",
    "retained_messages",
    "backlog_bytes",
    "packet_bytes",
)

VIEWER: Final = "viewer"
OPERATOR: Final = "operator"
TENANT_ADMIN: Final = "tenant-admin"
OWNER: Final = "owner"
ROLES: Final = (VIEWER, OPERATOR, TENANT_ADMIN, OWNER)

BANNED: Final = ("client", "user", "address")

# The settings of a tenant with the values that each may have; numbers are seconds.
CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "client_ids": ("any", "first-user"),
    "over_rate": ("wait", "disconnect"),
    "archive": ("yes", "no"),
    "maximum_qos": ("0", "1", "2"),
    "retain": ("yes", "no"),
    "wildcard_subscriptions": ("yes", "no"),
    "shared_subscriptions": ("yes", "no"),
    "session_type": ("device", "application"),
}
NUMBERS: Final = ("message_expiry_s", "session_expiry_s_max")
SETTINGS: Final = (*CHOICES, *NUMBERS)


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant. `state`: active, disabled (nobody is let in), or deleting (its name is not free until it is
    released)."""

    name: str
    state: str
    created_us: int
    revision: int


@dataclass(frozen=True, slots=True)
class User:
    """A user of a tenant. `hashed` is the hash of the password."""

    tenant: str
    name: str
    disabled: bool
    created_us: int
    revision: int
    hashed: str = field(repr=False)
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: what of `actions` is allowed or denied to whom, on topics that the filter matches. `subject` names the
    group, user or client; of the tenant it is empty."""

    tenant: str
    number: int
    effect: str
    actions: tuple[str, ...]
    filter: str
    kind: str = "tenant"
    subject: str = ""


@dataclass(frozen=True, slots=True)
class Ban:
    """A ban of a client, a user or an address; `tenant` is empty for addresses. `until_us` 0: without end."""

    tenant: str
    kind: str
    subject: str
    until_us: int
    reason: str
    revision: int


@dataclass(frozen=True, slots=True)
class Token:
    """A token for the admin HTTP, without the token itself. `tenant` empty: of all. `until_us` 0: without end."""

    number: str
    role: str
    tenant: str
    created_us: int
    until_us: int
    note: str
    revision: int


@dataclass(frozen=True, slots=True)
class Change:
    """A row of the table of changes. `stamp` is random, so that a directory which was put back is seen to be another
    one."""

    revision: int
    tenant: str
    what: str
    subject: str
    detail: Mapping[str, object]
    who: str
    came_from: str
    at_us: int
    stamp: int


@dataclass(frozen=True, slots=True)
class Actor:
    """A person or a program that changes something, and from where: an address, or the command line of a machine."""

    who: str
    came_from: str


def action_names(text: str, name: str = "allow") -> tuple[str, ...]:
    """Return the actions of `publish,subscribe`, or `all`, in their order. Raises InvalidField."""
    wanted = set(ACTIONS) if text == "all" else set(text.split(","))
    if not wanted <= set(ACTIONS):
        raise InvalidField(name, f"is all, or some of {', '.join(ACTIONS)} with commas between them")
    return tuple(action for action in ACTIONS if action in wanted)


def quota(name: str, text: str) -> int | None:
    """Return the number of a quota, None for `none`. Raises InvalidField."""
    if name not in QUOTAS:
        raise InvalidField("quota", f"{name!r} is none of {', '.join(QUOTAS)}")
    if text == "none":
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > len(str(NUMBER_MAX)):
        raise InvalidField(name, f"is a whole number from 0 to {NUMBER_MAX}, or none")
    return whole_number(int(text), name)


def setting(name: str, text: str) -> str | None:
    """Return the value of a tenant's setting, None for `default`. Raises InvalidField."""
    if name not in SETTINGS:
        raise InvalidField("setting", f"{name!r} is none of {', '.join(SETTINGS)}")
    if text == "default":
        return None
    if name in CHOICES:
        if text not in CHOICES[name]:
            raise InvalidField(name, f"is one of {', '.join(CHOICES[name])}, default")
        return text
    digits = text.lstrip("0") or text[:1]
    if not digits.isascii() or not digits.isdecimal() or len(digits) > 10 or int(digits) >= 2**32:
        raise InvalidField(name, f"is a whole number of seconds up to {2**32 - 1}, or default")
    return digits
