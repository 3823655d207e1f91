"""What every request to the admin HTTP is asked before anything reads it: where it believes to be, and where it ends.

A page of the web that a person has open may send requests to 127.0.0.1, under a name of its own that it lets point there
(DNS rebinding). So an address that only this machine reaches answers to addresses, `localhost`, and the names of
`admin_names`, and to nothing else. A request with both Content-Length and Transfer-Encoding ends in two places (RFC 9112,
6.1): it is refused, and its connection closed.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.api.problem import problem

_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._~-]+))(?::[0-9]{0,5})?")
_CLOSE: Final = {"Connection": "close"}


class Checked:
    """An application whose requests are checked. `names`: what it answers to beside addresses and `localhost`; None: to
    any name."""

    def __init__(self, app: ASGIApp, names: Sequence[str] | None) -> None:
        self._app = app
        self._names = None if names is None else frozenset(name.lower() for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope["headers"]) if scope["type"] == "http" else None
        await (self._app if refusal is None else refusal)(scope, receive, send)

    def _refusal(self, headers: Sequence[tuple[bytes, bytes]]) -> Response | None:
        """Return why a request with these headers is not read, None if it is."""
        given = {
            name: value
            for name, value in headers
            if name in (b"host", b"content-length", b"transfer-encoding")
        }
        if b"content-length" in given and b"transfer-encoding" in given:
            detail = "Content-Length and Transfer-Encoding: a request ends in one place"
            return problem(HTTPStatus.BAD_REQUEST, detail, _CLOSE)
        if b"host" not in given:  # of HTTP 1.0, which browsers do not speak
            return None
        found = _HOST.fullmatch(given[b"host"].decode("latin-1"))
        if found is None:
            return problem(HTTPStatus.BAD_REQUEST, "Host: it is no host, with or without a port", _CLOSE)
        if self._names is not None and not self._is_ours(found[1] or found[2]):
            detail = (
                f"Host: {found[0]} is no name of this address, which only this machine reaches; "
                "the names that a proxy before it uses belong into admin_names"
            )
            return problem(HTTPStatus.MISDIRECTED_REQUEST, detail, _CLOSE)
        return None

    def _is_ours(self, host: str) -> bool:
        name = host.lower().removesuffix(".")
        if name == "localhost" or name.endswith(".localhost") or name in (self._names or ()):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def names_of(host: str, names: Sequence[str]) -> Sequence[str] | None:
    """Return what an admin address at `host` answers to: `names`, and None, any name, where other machines reach it."""
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    return names if loopback or names else None
