"""Options of the source: parsed as Spark users write them, refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace_spark.errors import BadOption
from headrace_spark.options import SourceOptions, check_consumer


def test_defaults() -> None:
    options = SourceOptions.parse({"path": "file:///var/lib/headrace"})
    assert options.data_dir == Path("/var/lib/headrace")
    assert (options.starting, options.ending, options.consumer) == ("earliest", None, None)
    assert (options.rows_per_trigger_max, options.bytes_per_trigger_max) == (None, None)
    assert options.partitions >= 1
    assert options.fail_on_data_loss


def test_names_are_case_insensitive() -> None:
    options = SourceOptions.parse(
        {"PATH": "d", "maxrowspertrigger": "5", "STARTINGOFFSETS": "Latest", "FailOnDataLoss": "FALSE"}
    )
    assert (options.rows_per_trigger_max, options.starting, options.fail_on_data_loss) == (5, "latest", False)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "option path=''"),
        ({"path": "d", "startingOffset": "1"}, "startingoffset='1': no such option"),
        ({"path": "d", "startingOffsets": "first"}, "earliest, latest or an offset"),
        ({"path": "d", "endingOffsets": "earliest"}, "latest or an offset"),
        ({"path": "d", "startingOffsets": "-1"}, "or an offset"),
        ({"path": "d", "maxRowsPerTrigger": "0"}, "a number above 0"),
        ({"path": "d", "maxBytesPerTrigger": "1e6"}, "a number above 0"),
        ({"path": "d", "partitions": "-2"}, "a number above 0"),
        ({"path": "d", "failOnDataLoss": "yes"}, "true or false"),
        ({"path": "d", "consumer": "../x"}, "letters, digits"),
    ],
)
def test_bad_values_name_the_option(given: dict[str, str], problem: str) -> None:
    with pytest.raises(BadOption, match=problem) as caught:
        SourceOptions.parse(given)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "a" * 101, "ä"])
def test_consumer_names_become_file_names(name: str) -> None:
    with pytest.raises(BadOption):
        check_consumer(name)
    assert check_consumer("archive-2.b_c") == "archive-2.b_c"
