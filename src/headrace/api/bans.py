"""What the admin HTTP lets who administers a directory see and change of bans: of clients and users of a tenant, and of
addresses, which are banned for all tenants.

    GET    /v1/bans?tenant=T                            {"rows"}: those that hold; without a tenant all of them
    PUT    /v1/bans?kind=client&tenant=T&subject=NAME   {"for_s", "reason"}: turns it away, until then; 0: without end
    DELETE /v1/bans?kind=address&subject=NETWORK        lifts a ban

A token for one tenant names it, and so has nothing to do with addresses. Answers are made on threads: the database
blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from headrace.api.resource import Answer, Anyone, Parameter, Resource, Values, named
from headrace.api.tenants import REFUSALS, Desk, actor_of, on_a_thread
from headrace.api.tokens import ADMINISTER, READ
from headrace.directory.entries import BANNED, Ban
from headrace.directory.names import DURATION_S_MAX

if TYPE_CHECKING:
    from headrace.directory.store import Store


class NewBan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body that bans somebody: for so many seconds, 0: without end."""

    for_s: Annotated[int, msgspec.Meta(ge=0, le=DURATION_S_MAX)] = 0
    reason: str = ""


class BanRow(msgspec.Struct):
    """A ban; `until_us` in microseconds since 1970, 0: without end."""

    kind: str
    tenant: str
    subject: str
    until_us: int
    reason: str


class BanList(msgspec.Struct):
    """The bans that hold."""

    rows: list[BanRow]


def _kind(text: str) -> str:
    if text not in BANNED:
        raise ValueError(f"it is one of {', '.join(BANNED)}")
    return text


_KIND: Final = Parameter("kind", _kind, required=True, schema={"type": "string", "enum": list(BANNED)})
_ONE: Final = (_KIND, named("tenant"), Parameter("subject", str, required=True))
BANS: Final = Resource(
    "GET",
    "/v1/bans",
    READ,
    Anyone(),
    (named("tenant"),),
    refusals=REFUSALS,
    summary="List the bans that hold",
    answer=BanList,
)
ADD_BAN: Final = Resource(
    "PUT",
    "/v1/bans",
    ADMINISTER,
    Anyone(),
    _ONE,
    body=NewBan,
    refusals=REFUSALS,
    event="ban added",
    summary="Turn a client, a user or an address away",
    answer=BanRow,
)
REMOVE_BAN: Final = Resource(
    "DELETE",
    "/v1/bans",
    ADMINISTER,
    Anyone(),
    _ONE,
    refusals=REFUSALS,
    event="ban removed",
    summary="Lift a ban",
)
OF_BANS: Final = (BANS, ADD_BAN, REMOVE_BAN)


def of_bans(desk: Desk) -> dict[Resource, Answer]:
    """Return what lists bans, adds and lifts them."""
    return {
        BANS: on_a_thread(desk, _listed),
        ADD_BAN: on_a_thread(desk, _added),
        REMOVE_BAN: on_a_thread(desk, _removed),
    }


def _listed(store: Store, values: Values) -> object:
    return {"rows": [_row(one) for one in store.bans.all(values["tenant"])]}


def _added(store: Store, values: Values) -> object:
    whom, body = (values["kind"], values["tenant"], values["subject"]), values["body"]
    return _row(store.bans.add(actor_of(values), *whom, body.for_s, body.reason))


def _removed(store: Store, values: Values) -> None:
    store.bans.remove(actor_of(values), values["kind"], values["tenant"], values["subject"])


def _row(one: Ban) -> dict[str, object]:
    about = {"kind": one.kind, "tenant": one.tenant, "subject": one.subject}
    return about | {"until_us": one.until_us, "reason": one.reason}
