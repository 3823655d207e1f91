"""What can go wrong for a client. Each says whether trying again may help."""

from __future__ import annotations

from headrace.errors import HeadraceError


class ConnectRefused(HeadraceError):
    """The server answered CONNECT with a refusal. `reason_code` is the server's, in its version."""

    def __init__(self, reason_code: int, why: str) -> None:
        super().__init__(f"the server refused the connection: {why}")
        self.reason_code = reason_code


class ConnectionLost(HeadraceError):
    """The connection ended before the answer came."""

    retry_helps = True

    def __init__(self, why: str, reason_code: int = 0) -> None:
        super().__init__(f"connection lost: {why}")
        self.reason_code = reason_code


class NotSupported(HeadraceError):
    """The server said in its CONNACK that it does not take this."""
