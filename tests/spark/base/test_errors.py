"""Out of Spark's pages comes one sentence, with the exit code of what was raised."""

from __future__ import annotations

import pytest

from headrace_spark.base.errors import BadOption, QueryFailed, first_line

TRACE = """[STREAM_FAILED] Query [id = 1] terminated with exception: Traceback (most recent call last):
  File "/x/headrace_spark/source.py", line 100, in latestOffset
    raise DataLoss("...")
{last}

== Progress ==
Streaming Query: [id = 1]
"""


@pytest.mark.parametrize(
    ("last", "message", "code"),
    [
        ("headrace_spark.base.errors.DataLoss: offsets 5 to 9 are gone", "offsets 5 to 9 are gone", 1),
        ("headrace_spark.base.errors.BadOption: option a='b': c", "option a='b': c", 2),
        ("headrace.journal.errors.CorruptBatch: f, byte 3: bad", "f, byte 3: bad", 1),
        ("headrace.errors.CorruptRecord: too short", "too short", 1),
    ],
)
def test_our_errors_are_found(last: str, message: str, code: int) -> None:
    found = QueryFailed.from_spark(RuntimeError(TRACE.format(last=last)))
    assert (str(found), found.exit_code, found.is_ours) == (message, code, True)


def test_other_errors_keep_their_first_line() -> None:
    found = QueryFailed.from_spark(RuntimeError("\nJob aborted\n\tat org.apache.spark"))
    assert (str(found), found.exit_code, found.is_ours) == ("Job aborted", 1, False)
    assert str(QueryFailed.from_spark(RuntimeError())) == "RuntimeError"


def test_what_was_behind_it_is_told_too() -> None:
    text = """Task failed
Caused by: org.apache.spark.api.python.PythonException: [X] An exception was thrown: Traceback (most recent call last):
  File "/x/worker.py", line 1, in main
ModuleNotFoundError: No module named 'pyarrow'

\tat org.apache.spark.Driver"""
    assert str(QueryFailed.from_spark(RuntimeError(text))) == (
        "Task failed (ModuleNotFoundError: No module named 'pyarrow')"
    )


def test_bad_option_says_what_was_given() -> None:
    assert str(BadOption("partitions", "x", "a number")) == "option partitions='x': a number"


def test_what_java_said_is_found_behind_python_s_name_for_it() -> None:
    text = (
        "[STREAM_FAILED] Query terminated with exception: Traceback (most recent call last):\n"
        "py4j.protocol.Py4JJavaError: An error occurred while calling o718.save.\n"
        ": org.apache.spark.sql.delta.DeltaInvariantViolationException: CHECK constraint few violated\n"
        "\tat org.apache.spark.Something\n"
    )
    failure = QueryFailed.from_spark(Exception(text))
    assert str(failure).endswith(
        "(org.apache.spark.sql.delta.DeltaInvariantViolationException: CHECK constraint few violated)"
    )


def test_the_first_line_of_an_error_is_one_line_of_java_s_and_never_nothing() -> None:
    assert first_line(ValueError("no table a\u2028b\n\tat org.apache")) == "no table a\u2028b"
    assert first_line(ValueError("\nbehind an empty line\nmore")) == "behind an empty line"
    assert first_line(KeyboardInterrupt()) == "KeyboardInterrupt"
