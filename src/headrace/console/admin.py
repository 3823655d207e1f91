"""A client of the admin HTTP: one connection that is kept, JSON in and out, errors of one line that name the address."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError

TIMEOUT_S = 10.0


class Unreachable(HeadraceError):
    """Says that nobody answers there, or nobody that speaks HTTP. The message names the address."""

    retry_helps = True


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
        self._host, self._port, self._context = host, port, context
        self._token = token
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None

    def get(self, path: str) -> Any:
        """Return the JSON of a GET. Raises Unreachable, AdminRefused."""
        return self.ask("GET", path)

    def ask(self, method: str, path: str, content: object = None) -> Any:
        """Return the answer's JSON, None if it has none. Raises Unreachable, AdminRefused."""
        with self._explained():
            status, body = self._exchange(method, path, content)
            answer = json.loads(body) if body else None
        self._check(status, answer)
        return answer

    def text(self, path: str) -> str:
        """Return the answer as it is. Raises Unreachable, AdminRefused."""
        with self._explained():
            status, body = self._exchange("GET", path, None)
            answer = json.loads(body) if status >= HTTPStatus.BAD_REQUEST else None
        self._check(status, answer)
        return body.decode("utf-8", "replace")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise Unreachable(f"no broker answers at {self.address}: {why}") from None

    def _check(self, status: int, answer: object) -> None:
        if status >= HTTPStatus.BAD_REQUEST:
            detail = str(answer.get("detail", "")) if isinstance(answer, dict) else ""
            said = detail or HTTPStatus(status).phrase
            raise AdminRefused(status, f"{self.address} answers {status}: {said}", detail)

    def _exchange(self, method: str, path: str, content: object) -> tuple[int, bytes]:
        """Send a request and return status and body; a connection that has been idle may be gone: then once more, on a
        new one."""
        kept = self._connection is not None
        try:
            return self._once(method, path, content)
        except (OSError, http.client.HTTPException):
            self.close()
            if not kept:
                raise
            return self._once(method, path, content)

    def _once(self, method: str, path: str, content: object) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = self._connect()
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        body = None if content is None else json.dumps(content).encode()
        self._connection.request(method, path, body, headers)
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def _connect(self) -> http.client.HTTPConnection:
        if self._context is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=self._timeout_s, context=self._context
        )

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def token_of(file: Path) -> str:
    """Return the token in a file: its first line, without a role in front of it; of several the first that may operate.
    Raises OSError."""
    tokens = []
    for line in file.read_text(encoding="utf-8").splitlines():
        role, _, token = line.strip().rpartition(" ")
        if token and not line.startswith("#"):
            tokens.append((role == "read", token))
    return min(tokens, default=(False, ""), key=lambda found: found[0])[1]
