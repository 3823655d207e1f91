"""What can go wrong for a client. Each says whether trying again may help."""

from __future__ import annotations

import errno
import os
import re

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


def unreachable(address: str, error: OSError) -> OSError:
    """Return an error of the same class and number that says in words that nobody answers at `address`, and why."""
    found = type(error)(f"no broker answers at {address}: {_why(error)}")
    found.errno = error.errno
    return found


def _why(error: OSError) -> str:
    """Return what the system says, without its numbers; asyncio puts the errors of several addresses into one text."""
    number = error.errno or 0
    if number in errno.errorcode:
        return os.strerror(number)
    several = {int(found) for found in re.findall(r"\[Errno (\d+)\]", str(error))}
    return ", ".join(os.strerror(one) for one in sorted(several)) or error.strerror or str(error)
