"""What is wrong with a sink is named by its key."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.kafka.settings import OURS, SinkSettings

GOOD = SinkSettings("s", ("127.0.0.1:9092", "[::1]:9092", "kafka-1.example:9092"), "d/+/#", "telemetry")


def test_a_good_one_has_no_mistakes_and_is_read_back() -> None:
    one = replace(GOOD, tenant="acme", client={"security.protocol": "SSL"})
    assert list(one.mistakes()) == []
    assert SinkSettings.unpack(one.pack()) == one
    assert one.consumer == "sink.s"


@pytest.mark.parametrize("server", ["", "host", "host:", "host:0", "host:65536", "kafka://host:1", "a b:1"])
def test_a_server_is_host_and_port(server: str) -> None:
    assert [key for key, _ in replace(GOOD, servers=(server,)).mistakes()] == ["servers"]


@pytest.mark.parametrize("topic_filter", ["", "a/#/b", "a+", "$share/g/a"])
def test_a_filter_is_one_that_somebody_could_subscribe_to_alone(topic_filter: str) -> None:
    assert [key for key, _ in replace(GOOD, topic_filter=topic_filter).mistakes()] == ["topic_filter"]


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "ä", "x" * 250])
def test_a_topic_of_kafka_has_a_name_that_kafka_takes(topic: str) -> None:
    assert [key for key, _ in replace(GOOD, kafka_topic=topic).mistakes()] == ["kafka_topic"]


def test_positions_are_not_among_the_messages() -> None:
    found = replace(GOOD, positions_topic=GOOD.kafka_topic).mistakes()
    assert [key for key, _ in found] == ["positions_topic"]


@pytest.mark.parametrize("name", [*OURS, "error_cb"])
def test_what_the_promise_rests_on_is_not_to_be_set(name: str) -> None:
    assert [key for key, _ in replace(GOOD, client={name: "x"}).mistakes()] == [f"client.{name}"]
