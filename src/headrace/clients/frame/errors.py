"""What the broker refuses by a reason code, and whether asking again may help."""

from __future__ import annotations

from typing import Final

from headrace.errors import HeadraceError
from headrace.mqtt import reason_codes as rc

_MAY_PASS: Final = frozenset(
    {
        rc.UNSPECIFIED_ERROR,
        rc.IMPLEMENTATION_SPECIFIC_ERROR,  # a fault in the broker, which has cost this connection
        rc.SERVER_UNAVAILABLE,
        rc.SERVER_BUSY,
        rc.SERVER_SHUTTING_DOWN,
        rc.KEEP_ALIVE_TIMEOUT,
        rc.RECEIVE_MAXIMUM_EXCEEDED,
        rc.MESSAGE_RATE_TOO_HIGH,
        rc.QUOTA_EXCEEDED,
        rc.ADMINISTRATIVE_ACTION,
        rc.USE_ANOTHER_SERVER,
        rc.SERVER_MOVED,
        rc.CONNECTION_RATE_EXCEEDED,
        rc.MAXIMUM_CONNECT_TIME,
    }
)


class Refused(HeadraceError):
    """The broker said no, and will say so again. `reason_code` is a reason code of MQTT 5."""

    def __init__(self, what: str, reason_code: int) -> None:
        super().__init__(f"{what}: {rc.name(reason_code)} (0x{reason_code:02X})")
        self.reason_code = reason_code


class RefusedForNow(Refused):
    """The broker said no, and may say yes later: its disk is full, it is busy, or it is shutting down."""

    retry_helps = True


class Closed(HeadraceError):
    """The producer was closed before the answer came, or is not open."""


class TransactionLost(HeadraceError):
    """The transaction was gone when the handler returned, and the note of the message's id with it: rolled back by the
    handler, or by the database behind an error that the handler has passed over. The message comes again."""

    retry_helps = True

    def __init__(self, message_id: bytes) -> None:
        super().__init__(
            f"the transaction of message {message_id.hex()} was rolled back before its handler returned"
        )


def refused(what: str, reason_code: int) -> Refused:
    """Return the error that a reason code stands for."""
    kind = RefusedForNow if reason_code in _MAY_PASS else Refused
    return kind(what, reason_code)
