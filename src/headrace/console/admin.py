"""A client of the admin HTTP for commands: JSON in and out, errors of one line that name the address."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.clients.admin.connection import AdminConnection
from headrace.clients.admin.errors import Problem, Unreachable, phrase_of
from headrace.errors import HeadraceError

__all__ = ["AdminClient", "AdminRefused", "Unreachable", "token_of"]

TIMEOUT_S = 10.0


class AdminRefused(HeadraceError):
    """The broker has answered, and said no. `status` is HTTP's; the message is the broker's `detail`, and what helps."""

    def __init__(self, status: int, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.detail = detail


class AdminClient:
    """A client of the admin HTTP at `host` and `port`; with a `context` over TLS. `token`: "" for none."""

    def __init__(
        self,
        host: str,
        port: int,
        context: ssl.SSLContext | None = None,
        token: str = "",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        scheme = "http" if context is None else "https"
        self.address = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        self._connection = AdminConnection(self.address, token, context, timeout_s)

    def get(self, path: str) -> Any:
        """Return the JSON of a GET. Raises Unreachable, AdminRefused."""
        return self.ask("GET", path)

    def ask(self, method: str, path: str, content: object = None) -> Any:
        """Return the answer's JSON, None if it has none. Raises Unreachable, AdminRefused."""
        with self._named():
            return self._connection.ask(method, path, content)

    def text(self, path: str) -> str:
        """Return the answer as it is. Raises Unreachable, AdminRefused."""
        with self._named():
            return self._connection.text(path)

    def close(self) -> None:
        """End the connection; the next request makes another one."""
        self._connection.close()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Name the address in what is refused."""
        try:
            yield
        except Problem as error:
            said = error.detail or phrase_of(error.status)
            message = f"{self.address} answers {error.status}: {said}"
            raise AdminRefused(error.status, message, error.detail) from None


def token_of(file: Path) -> str:
    """Return the token in a file: its first line, without a role in front of it; of several the first that may operate.
    Raises OSError."""
    tokens = []
    for line in file.read_text(encoding="utf-8").splitlines():
        role, _, token = line.strip().rpartition(" ")
        if token and not line.startswith("#"):
            tokens.append((role == "read", token))
    return min(tokens, default=(False, ""), key=lambda found: found[0])[1]
