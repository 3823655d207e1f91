"""A trace of packets that a broker keeps while somebody asks for them."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from headrace.clients.admin.connection import AdminConnection
from headrace.clients.admin.errors import AdminError


class Trace:
    """A trace under way; as a context manager it ends at the end. It is over by itself after its seconds, or when nobody
    has asked for five."""

    def __init__(self, connection: AdminConnection, number: str) -> None:
        self.is_over = False
        self.left_out = 0
        self._connection = connection
        self._target = f"/v1/traces/{quote(number, safe='')}"

    def take(self) -> list[dict[str, Any]]:
        """Return what came since the last time; `left_out` packets more were too many, and `is_over` says that nothing
        comes any more. Raises NotFound once the broker has forgotten it, Unreachable, Problem."""
        found = self._connection.ask("GET", self._target)
        self.left_out += found["left_out"]
        self.is_over = bool(found["over"])
        rows: list[dict[str, Any]] = found["rows"]
        return rows

    def end(self) -> None:
        """End it; one that is over stays so."""
        if not self.is_over:
            self.is_over = True
            self._connection.ask("DELETE", self._target)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(AdminError):  # the broker ends it, too
            self.end()
