"""What can be wrong with a request to the directory, and with the database behind it."""

from __future__ import annotations

from typing import ClassVar

from headrace.errors import ConfigError, HeadraceError


class InvalidField(ConfigError):
    """A field has a value that it cannot have. The message begins with the field, and never has a password."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class AlreadyThere(HeadraceError):
    """A name is taken already. The message says by what."""


class NotInThatState(HeadraceError):
    """A tenant is in a state in which this cannot be done to it. The message says what to do first."""


class ChangedMeanwhile(HeadraceError):
    """Somebody else has changed what this was to change: look at it again. Nothing was done."""

    retry_helps: ClassVar[bool] = True


class DirectoryUnavailable(HeadraceError):
    """The database cannot be reached, or does not answer in time."""

    retry_helps: ClassVar[bool] = True


class OutcomeUnknown(DirectoryUnavailable):
    """The connection broke while a change was committed: it was made as a whole or not at all."""


class WrongSchema(HeadraceError):
    """The tables of the database are not those of this headrace. The message says whose they are, and what to do."""


class TooManyWaiting(HeadraceError):
    """There is no room for another call that waits for the directory."""

    retry_helps: ClassVar[bool] = True
