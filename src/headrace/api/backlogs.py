"""What the admin HTTP lets who operates a broker see of what waits for a session, without taking it.

    GET /v1/backlogs/CLIENT?tenant=T&limit=N&from=PLACE   {"rows", "next"}: what is in flight and waits, oldest first
    GET /v1/backlogs?tenant=T&client=CLIENT&...           the same, for a name that a path does not carry unharmed

The owner of the session's shard answers. It has a path of its own, since `/v1/sessions/a/backlog` is the session
`a/backlog`.
"""

from __future__ import annotations

from typing import Final

from headrace.api.names import ONE_CLIENT
from headrace.api.pages import Page, page_of
from headrace.api.resource import Answer, AtHome, Resource, Values, paging
from headrace.api.tokens import READ
from headrace.services.backlog_rows import BacklogRow, BacklogRows
from headrace.services.paging import ByHome

LIMIT_MAX: Final = 100

BACKLOG: Final = Resource(
    "GET",
    "/v1/backlogs/{client:path}",
    READ,
    AtHome(lambda homes, values: homes.of_client(values["tenant"], values["client"])),
    (*ONE_CLIENT, *paging(20, LIMIT_MAX)),
    summary="Peek into what waits for a session",
    answer=Page[BacklogRow],
)


def of_backlogs(found: ByHome[BacklogRows]) -> dict[Resource, Answer]:
    """Return what lists the entries that wait for a session."""

    async def waiting(values: Values) -> object:
        tenant, client = values["tenant"], values["client"]
        rows = found.of(tenant, client)
        return page_of(*await rows.page(tenant, client, values["limit"], values["from"]))

    return {BACKLOG: waiting}
