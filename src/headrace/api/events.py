"""What the admin HTTP says of what was changed through it: the audit log.

GET /v1/events?tenant=T&limit=N&from=PLACE   {"rows", "next"}: what, by whom, when and from where, the newest first

Every worker has the events of what it has changed itself; pages are of all of them together.
"""

from __future__ import annotations

from typing import Final

import msgspec

from headrace.api.pages import Page
from headrace.api.resource import Answer, Parameter, Ranking, Resource, Values, limit, named
from headrace.api.tokens import READ
from headrace.services.events import Event, EventLog, key_of
from headrace.services.paging import LIMIT_MAX

EVENTS: Final = Resource(
    "GET",
    "/v1/events",
    READ,
    Ranking("rows", ("at_us", "worker", "number"), place="id"),
    (named("tenant"), limit(100, LIMIT_MAX), Parameter("from", key_of)),
    summary="List what was changed over the admin HTTP: what, by whom, when and from where",
    answer=Page[Event],
)


def of_events(events: EventLog) -> dict[Resource, Answer]:
    """Return what lists the events of a worker."""

    async def page(values: Values) -> object:
        rows, following = await events.page(values["tenant"], values["limit"], values["from"])
        return {"rows": msgspec.to_builtins(rows), "next": following}

    return {EVENTS: page}
