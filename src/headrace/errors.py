"""The one tree of errors. A class carries its answer: the MQTT 5 reason code, and whether a retry may help.

Code that meets an error asks the error what to send and what to do; nobody maps messages to codes elsewhere.
"""

from __future__ import annotations

from typing import ClassVar

from mypy_extensions import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class HeadraceError(Exception):
    """Root of everything headrace raises on purpose. `retry_helps`: the same request may succeed later."""

    retry_helps: ClassVar[bool] = False


@mypyc_attr(allow_interpreted_subclasses=True)
class ConfigError(HeadraceError):
    """A setting is unknown or has a bad value. The message names the key. The command exits with 2."""


@mypyc_attr(allow_interpreted_subclasses=True)
class ProtocolError(HeadraceError):
    """The peer broke the protocol; it costs that connection only.

    `reason_code` is the MQTT 5 code (section 4.13). `connack_code` is the MQTT 3.1/3.1.1 return code when the
    error is a refusal of CONNECT which those versions can express, 0 when they can only close. `silent`: the
    connection is closed without a word, since the peer does not frame packets or guesses credentials.
    """

    def __init__(self, reason_code: int, message: str, connack_code: int = 0, silent: bool = False) -> None:
        super().__init__(message)
        self.reason_code = reason_code
        self.connack_code = connack_code
        self.silent = silent
        self.message = message

    def __str__(self) -> str:
        return f"{self.message} (0x{self.reason_code:02X})"


@mypyc_attr(allow_interpreted_subclasses=True)
class MalformedPacket(ProtocolError):
    """The bytes are no packet of this version: reason code 0x81."""

    def __init__(self, message: str) -> None:
        super().__init__(0x81, message)


@mypyc_attr(allow_interpreted_subclasses=True)
class OddName(MalformedPacket):
    """A topic has characters that it should not have (MQTT 5, 1.5.4): whoever receives it may refuse or drop it."""


@mypyc_attr(allow_interpreted_subclasses=True)
class PacketTooLarge(ProtocolError):
    """The packet is longer than the receiver said it accepts: reason code 0x95."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(0x95, f"packet of {size} bytes, {limit} are accepted")


@mypyc_attr(allow_interpreted_subclasses=True)
class CorruptRecord(HeadraceError):
    """A record of the journal passed the CRC of its batch but does not add up: a newer version wrote it."""


@mypyc_attr(allow_interpreted_subclasses=True)
class NotReadableNow(HeadraceError):
    """A record that nothing goes on without cannot be read at the moment. At a start: start again."""

    retry_helps = True


@mypyc_attr(allow_interpreted_subclasses=True)
class NotThere(HeadraceError):
    """What somebody asks for by its name is not there. The message has the name."""


@mypyc_attr(allow_interpreted_subclasses=True)
class ShardAway(HeadraceError):
    """The shard where something is at home was given up for a failed journal, and is not back yet: nobody can tell now
    whether it is there. The message says why."""

    retry_helps = True

    def __init__(self, shard: int, why: str) -> None:
        super().__init__(f"away now: {why}")
        self.shard = shard


@mypyc_attr(allow_interpreted_subclasses=True)
class InUse(HeadraceError):
    """What somebody wants to remove is in use. The message says by whom."""

    retry_helps = True


@mypyc_attr(allow_interpreted_subclasses=True)
class BrokersOwn(HeadraceError):
    """What somebody wants to remove belongs to the broker itself. The message says what to do instead."""


@mypyc_attr(allow_interpreted_subclasses=True)
class NotTaken(HeadraceError):
    """A message that somebody posted is not taken. `reason_code` is what a client would have been answered."""

    def __init__(self, reason_code: int, message: str) -> None:
        super().__init__(message)
        self.reason_code = reason_code


def forget_calls(error: BaseException | None) -> None:
    """Have an error, and those that it came from, refer no more to the calls which raised them, once it has been told.

    What a call holds may hold the error: then neither goes before garbage is collected, nor does what they refer to.
    """
    found: list[BaseException | None] = [error]
    while found:
        one = found.pop()
        if one is not None and one.__traceback__ is not None:
            one.__traceback__ = None
            found += [one.__cause__, one.__context__]
