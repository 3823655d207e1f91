"""One connection to an admin HTTP, which is kept from one request to the next: JSON in and out.

A change is sent once: what became of one whose connection broke is for who asked to find out. A request that only looks
is sent again, on a new connection, if the kept one was closed meanwhile.
"""

from __future__ import annotations

import http.client
import json
import select
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPMethod, HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from headrace.clients.admin.errors import Unreachable, problem_of

PORT = 18830


class AdminConnection:
    """Asks the admin HTTP at `url` (`http://HOST[:PORT]`, or `https`, with the system's authorities without a `context`).
    `token`: "" for none. For one thread at a time. Raises ValueError for a URL that is none of those."""

    def __init__(
        self, url: str, token: str = "", context: ssl.SSLContext | None = None, timeout_s: float = 10.0
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
            raise ValueError(f"{url!r} is no address of the form http[s]://HOST[:PORT]")
        self.url = f"{parts.scheme}://{parts.netloc}"
        self._host, self._port = parts.hostname, parts.port or PORT
        self._context = (context or ssl.create_default_context()) if parts.scheme == "https" else None
        self._token = token
        self._timeout_s = timeout_s
        self._kept: http.client.HTTPConnection | None = None

    def ask(self, method: str, target: str, content: object = None) -> Any:
        """Return the JSON of the answer, None if it has none. Raises Unreachable, Problem."""
        with self._explained():
            status, body = self._exchange(method, target, content)
            answer = json.loads(body) if body else None
        self._check(status, answer)
        return answer

    def text(self, target: str) -> str:
        """Return the answer to GET as it is. Raises Unreachable, Problem."""
        with self._explained():
            status, body = self._exchange(HTTPMethod.GET, target, None)
            answer = json.loads(body) if status >= HTTPStatus.BAD_REQUEST else None
        self._check(status, answer)
        return body.decode("utf-8", "replace")

    def close(self) -> None:
        """End the connection; the next request makes another one."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise Unreachable, with the address, for whatever is no answer."""
        try:
            yield
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise Unreachable(f"no broker answers at {self.url}: {why}") from None
        except BaseException:
            self.close()  # whatever its answer is, it is not that of the next request
            raise

    def _check(self, status: int, answer: object) -> None:
        if status >= HTTPStatus.BAD_REQUEST:
            raise problem_of(status, answer if isinstance(answer, dict) else {})
        if status >= HTTPStatus.MULTIPLE_CHOICES:
            raise Unreachable(f"no broker answers at {self.url}: it redirects ({status})")

    def _exchange(self, method: str, target: str, content: object) -> tuple[int, bytes]:
        """Send a request and return status and body."""
        kept = self._kept is not None and not self._was_closed()
        try:
            return self._once(method, target, content)
        except (OSError, http.client.HTTPException):
            self.close()
            if not kept or method != HTTPMethod.GET:
                raise
            return self._once(method, target, content)

    def _was_closed(self) -> bool:
        """Return whether the other side has closed the kept connection, which then is kept no more: nothing is due on it
        between two requests."""
        sock = None if self._kept is None else self._kept.sock
        if sock is not None:
            looking = select.poll()  # select() has no place for a descriptor above 1023
            looking.register(sock, select.POLLIN)
            if looking.poll(0):
                self.close()
        return self._kept is None

    def _once(self, method: str, target: str, content: object) -> tuple[int, bytes]:
        if self._kept is None:
            self._kept = self._connect()
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        body = None
        if content is not None:
            body, headers["Content-Type"] = json.dumps(content).encode(), "application/json"
        self._kept.request(method, target, body, headers)
        answer = self._kept.getresponse()
        return answer.status, answer.read()

    def _connect(self) -> http.client.HTTPConnection:
        if self._context is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=self._timeout_s, context=self._context
        )
