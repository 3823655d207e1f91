"""What the admin HTTP lets who administers a directory write out and bring in: a tenant as one document.

    GET  /v1/export?tenant=T&hashes=true               its state, quotas, settings, users and rules
    POST /v1/import?tenant=T&prune=true&dry_run=true   has it be as the document says, which the second time is nothing

A token for one tenant brings in users and rules of that one; what else it has must be as it is already. Answers are made
on threads: the database blocks.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headrace.api.resource import Answer, Anyone, Resource, Values, flag
from headrace.api.tenants import OF_ONE_TENANT, REFUSALS, Desk, actor_of, on_a_thread
from headrace.api.tokens import ADMINISTER
from headrace.directory.documents import PASSWORDS_MAX, Imported, NotForThisToken, TenantDocument
from headrace.directory.errors import InvalidField

if TYPE_CHECKING:
    from headrace.directory.store import Store

BODY_BYTES_MAX: Final = 8 << 20
_REFUSALS: Final = REFUSALS | {NotForThisToken: HTTPStatus.FORBIDDEN}

EXPORT: Final = Resource(
    "GET",
    "/v1/export",
    ADMINISTER,
    Anyone(),
    (OF_ONE_TENANT, flag("hashes")),
    refusals=_REFUSALS,
    summary="Write a tenant out as one document",
    answer=TenantDocument,
)
IMPORT: Final = Resource(
    "POST",
    "/v1/import",
    ADMINISTER,
    Anyone(),
    (OF_ONE_TENANT, flag("prune"), flag("dry_run")),
    body=TenantDocument,
    body_bytes_max=BODY_BYTES_MAX,
    refusals=_REFUSALS,
    event="tenant imported",
    summary="Have a tenant be as a document says",
    answer=Imported,
)
OF_DOCUMENTS: Final = (EXPORT, IMPORT)


def of_documents(desk: Desk) -> dict[Resource, Answer]:
    """Return what writes tenants out and brings them in."""
    return {EXPORT: on_a_thread(desk, _export), IMPORT: on_a_thread(desk, _import)}


def _export(store: Store, values: Values) -> Any:
    return msgspec.to_builtins(store.documents.export(values["tenant"], values["hashes"]))


def _import(store: Store, values: Values) -> Any:
    document: TenantDocument = values["body"]
    if sum(one.password != "" for one in document.users or ()) > PASSWORDS_MAX:
        said = f"more than {PASSWORDS_MAX} passwords take too long over HTTP: give hashes, or bring fewer in at once"
        raise InvalidField("users", said)
    done = store.documents.bring_in(
        actor_of(values),
        values["tenant"],
        document,
        prune=values["prune"],
        dry_run=values["dry_run"],
        whole=not values["token_tenant"],
    )
    return msgspec.to_builtins(done)
