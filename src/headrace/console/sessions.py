"""Sessions of a broker, through its admin HTTP."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlencode

from headrace.console.admin import AdminClient, AdminRefused
from headrace.errors import BrokersOwn, NotThere


def dropped_there(admin: AdminClient, tenant: str, client_id: str) -> dict[str, Any]:
    """Have a broker drop a session, and return what that was. Raises NotThere, BrokersOwn, Unreachable, AdminRefused."""
    return named(admin, "DELETE", "sessions", tenant, client_id)


def named(
    admin: AdminClient, method: str, what: str, tenant: str, name: str, parameter: str = "client"
) -> dict[str, Any]:
    """Return what a broker answers about one of `what`, "sessions", "clients" or "retained". Its name is in the query, as
    `parameter`, where nothing on the way makes another one of it. Raises NotThere, BrokersOwn, Unreachable,
    AdminRefused."""
    asked = urlencode({"tenant": tenant, parameter: name}, quote_via=quote, safe="")
    try:
        found = admin.ask(method, f"/v1/{what}?{asked}")
    except AdminRefused as error:
        if error.status == HTTPStatus.NOT_FOUND:
            raise NotThere(error.detail) from None
        if error.status == HTTPStatus.CONFLICT:
            raise BrokersOwn(error.detail) from None
        raise
    return dict(found)
