"""What goes wrong when a broker is asked over its admin HTTP: nobody answers, or the broker says no, and why."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from headrace.errors import HeadraceError


class AdminError(HeadraceError):
    """Root of what the client of the admin HTTP raises."""


class Unreachable(AdminError):
    """There is no answer, or none of an admin HTTP. The message names the address. What was asked
    for may have been done where it was a change."""

    retry_helps = True


class Problem(AdminError):
    """The broker has answered, and said no. `status` is HTTP's, `detail` the broker's words, `reason_code` MQTT's where
    it has one (else None), `members` the whole problem document."""

    def __init__(self, status: int, members: Mapping[str, Any]) -> None:
        detail = str(members.get("detail", ""))
        super().__init__(f"{status}: {detail or phrase_of(status)}")
        self.status = status
        self.detail = detail
        self.reason_code: int | None = members.get("reason_code")
        self.members = dict(members)


class Unauthorized(Problem):
    """The token is none of the broker's, or there is none."""


class Forbidden(Problem):
    """The token may not do this, or nobody may."""


class NotFound(Problem):
    """What was named is not there."""


class Conflict(Problem):
    """What was named is in use, is the broker's own, or is in another state."""


class PreconditionFailed(Problem):
    """Somebody has changed it since it was looked at."""


class Unavailable(Problem):
    """A worker, a shard, a journal or a database is away now."""

    retry_helps = True


class InsufficientStorage(Problem):
    """The disk is full, or a quota of the tenant is."""


_KINDS: Final[Mapping[int, type[Problem]]] = {
    HTTPStatus.UNAUTHORIZED: Unauthorized,
    HTTPStatus.FORBIDDEN: Forbidden,
    HTTPStatus.NOT_FOUND: NotFound,
    HTTPStatus.CONFLICT: Conflict,
    HTTPStatus.PRECONDITION_FAILED: PreconditionFailed,
    HTTPStatus.SERVICE_UNAVAILABLE: Unavailable,
    HTTPStatus.INSUFFICIENT_STORAGE: InsufficientStorage,
}


def problem_of(status: int, members: Mapping[str, Any]) -> Problem:
    """Return the error that a refusal is."""
    return _KINDS.get(status, Problem)(status, members)


def phrase_of(status: int) -> str:
    """Return what HTTP calls a status, "" for one that it does not know."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
