"""Names of MQTT in a request are checked as those in packets."""

from __future__ import annotations

import pytest

from headrace.api.names import ONE_CLIENT, TENANT, TOPIC, checked_topic_name, client_id, filter_of, topic_name


def test_names_are_themselves() -> None:
    for text in ("a", "a//b", "größe/日本", " "):
        assert (topic_name(text), filter_of(text), client_id(text)) == (text, text, text)
    assert (TENANT.value(None), TOPIC.value("a/b"), ONE_CLIENT[1].value("c")) == ("default", "a/b", "c")


@pytest.mark.parametrize("text", ["", "a/#", "+", "a\x00", "x" * 65_536])
def test_what_is_no_topic_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="it is no topic name, which has no wildcards"):
        topic_name(text)
    with pytest.raises(ValueError, match="it is no topic name: exactly"):
        checked_topic_name(": exactly", text)


@pytest.mark.parametrize("text", ["", "a/#/b", "a+", "$share/g", "$share//a"])
def test_what_is_no_filter_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        filter_of(text)


def test_a_session_has_a_name() -> None:
    with pytest.raises(ValueError, match="named exactly"):
        client_id("")
