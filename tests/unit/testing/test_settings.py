"""Settings of a broker under test become what `--set` takes, whatever their type."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.config import load
from headrace.testing.settings import assignments


def test_two_underscores_are_a_dot_and_values_keep_their_types() -> None:
    given = assignments(
        {"session.inflight_max": 7, "response_information": 'say "hi" = ü'},
        {
            "limits__connect_timeout_s": 0.5,
            "allow_anonymous": False,
            "session__application_client_ids": ("a", "b,c"),
            "access__acl_file": Path("/nowhere/acl"),
        },
    )
    config = load(None, given)
    assert config.session.inflight_max == 7
    assert config.response_information == 'say "hi" = ü'
    assert config.limits.connect_timeout_s == 0.5
    assert config.allow_anonymous is False
    assert config.session.application_client_ids == ("a", "b,c")
    assert config.access.acl_file == "/nowhere/acl"


def test_no_space_is_reserved_unless_it_is_asked_for() -> None:
    assert load(None, assignments(None, {})).journal.reserve_bytes == 0
    assert load(None, assignments(None, {"journal__reserve_bytes": 4096})).journal.reserve_bytes == 4096


@pytest.mark.parametrize("key", ["data_dir", "listeners"])
def test_what_the_broker_of_a_test_decides_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match=key):
        assignments({key: "x"}, {})
