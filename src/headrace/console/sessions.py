"""Sessions of a broker, through its admin HTTP."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlencode

from headrace.console.admin import AdminClient, Refused
from headrace.errors import BrokersOwn, NotThere


def dropped_there(admin: AdminClient, tenant: str, client_id: str) -> dict[str, Any]:
    """Have a broker drop a session, and return what that was. The client id is in the query, where nothing on the way
    makes another one of it. Raises NotThere, BrokersOwn, Unreachable, Refused."""
    named = urlencode({"tenant": tenant, "client": client_id}, quote_via=quote, safe="")
    try:
        found = admin.ask("DELETE", f"/v1/sessions?{named}")
    except Refused as error:
        if error.status == HTTPStatus.NOT_FOUND:
            raise NotThere(error.detail) from None
        if error.status == HTTPStatus.CONFLICT:
            raise BrokersOwn(error.detail) from None
        raise
    return dict(found)
