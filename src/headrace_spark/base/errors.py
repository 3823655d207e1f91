"""What can go wrong in the pipeline, one class for each thing a person does differently about.

A class carries the exit code of the command: 1 failed, 2 wrong use. Spark wraps an exception of a Python
source into pages of Java and Python traces; `QueryFailed.from_spark` finds the one sentence that says what to
do.
"""

from __future__ import annotations

import re
from typing import Final


class PipelineError(Exception):
    """Root of what the pipeline raises on purpose; the message says what and what to do."""

    exit_code: int = 1


class BadOption(PipelineError):
    """An option of the source or of a command has a value that cannot be used."""

    exit_code = 2

    def __init__(self, option: str, value: object, problem: str) -> None:
        super().__init__(option, value, problem)
        self.option = option
        self.value = value
        self.problem = problem

    def __str__(self) -> str:
        return f"option {self.option}={self.value!r}: {self.problem}"


class EngineMissing(PipelineError):
    """Java or Spark cannot be started here."""


class EngineLost(PipelineError):
    """Spark's process ended in the middle of a job."""


class JournalMissing(PipelineError):
    """There is no journal where one was expected."""

    exit_code = 2


class JournalUnreachable(PipelineError):
    """A broker that should serve its journal does not answer. A job that follows it waits."""


class JournalRefused(JournalUnreachable):
    """A broker does not let us in, or says that what is asked for is wrong: waiting changes nothing."""


class ForeignOffset(PipelineError):
    """The checkpoint belongs to another journal, or to this one before it was cut back."""


class DataLoss(PipelineError):
    """Records that were still to be read are gone from the journal."""


class LakeConflict(PipelineError):
    """Lake, checkpoint and journal do not belong together, or somebody else is writing."""


class TableMoved(PipelineError):
    """The table is not where this driver left it. Whoever looks again may go on from there."""


class LakeUnreachable(PipelineError):
    """The store of a lake behind a URL does not answer, does not let us in, or lacks what a lake needs."""


class PageUnwritten(PipelineError):
    """The page of a report has no place on the disk, or may not be written there."""


class BrokerUnreachable(PipelineError):
    """No connection to the broker, or no acknowledgement for too long."""


class BrokerRefused(PipelineError):
    """The broker does not let us in, or does not take a message; trying again changes nothing."""


class BadRow(PipelineError):
    """A row cannot be a message. `problem`: the same words for every such row."""

    def __init__(self, row: str, problem: str) -> None:
        super().__init__(row, problem)
        self.row = row
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.row}: {self.problem}"


class Superseded(PipelineError):
    """Another attempt at the same task has taken over."""


# `package.module.Class: message`, as Python prints the last line of a traceback.
_OURS: Final = re.compile(r"^(headrace(?:_spark)?(?:\.\w+)*)\.(\w+): (.+)$", re.MULTILINE)
# The same of anybody, and Java's way to say what was behind an exception.
_CAUSE: Final = re.compile(r"^(?:Caused by: |: )?([\w.$]*(?:Error|Exception): .+)$", re.MULTILINE)
# Python's own name for any failure of Java's.
_BRIDGE: Final = "Py4JJavaError: "


# Ours, and of the kind that passes.
_TRIED_AGAIN: Final = frozenset({"TableMoved", "LakeUnreachable"})


class QueryFailed(PipelineError):
    """A query ended with an exception. `is_ours`: headrace raised it, so that a retry is useless; but for
    `is_outage`: then it helps once the broker answers again."""

    def __init__(
        self, message: str, exit_code: int = 1, is_ours: bool = False, is_outage: bool = False
    ) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.is_ours = is_ours
        self.is_outage = is_outage

    @classmethod
    def from_spark(cls, error: BaseException) -> QueryFailed:
        """Return the error with the sentence a person needs, out of the pages that Spark makes of an exception."""
        text = str(error)
        ours = _OURS.findall(text)
        if ours:
            _, name, message = ours[-1]
            exit_code = getattr(globals().get(name), "exit_code", 1)
            return cls(message, exit_code, name not in _TRIED_AGAIN, name == JournalUnreachable.__name__)
        lines = [line for line in text.split("\n") if line.strip()]
        first = lines[0] if lines else type(error).__name__
        causes = [cause for cause in _CAUSE.findall(text) if cause not in first and _BRIDGE not in cause]
        return cls(f"{first} ({causes[-1]})" if causes else first)


def is_outage(error: BaseException) -> bool:
    """Return whether a broker did not answer, and nothing else was wrong."""
    return type(error) is JournalUnreachable or (isinstance(error, QueryFailed) and error.is_outage)


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, behind which there may be pages of Java's; its name if it says
    nothing. What else ends a line for Python may be in a name that it quotes."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
