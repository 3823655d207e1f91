"""What one source is told, and what is wrong with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.kafka.source_settings import OURS, SourceSettings

GOOD = SourceSettings("s", ("127.0.0.1:9092",), "commands", "plant/{key}/do")


def test_a_good_one_has_no_mistakes_and_is_read_back() -> None:
    one = replace(GOOD, url="tls://broker.example", ca_file="/ca.pem", client={"security.protocol": "SSL"})
    assert list(one.mistakes()) == []
    assert SourceSettings.unpack(one.pack()) == one


@pytest.mark.parametrize(
    ("key", "topic"),
    [
        (b"a/b", b"plant/a/b/do"),
        (None, b"plant//do"),
        (b"#", b""),
        (b"+", b""),
        (b"\xff", b""),
        (b"a\0", b""),
    ],
)
def test_a_key_makes_a_topic_or_none(key: bytes | None, topic: bytes) -> None:
    assert GOOD.topic_of(key) == topic


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"servers": ("nowhere",)}, "servers"),
        ({"kafka_topic": "a b"}, "kafka_topic"),
        ({"topic": "a/#"}, "topic"),
        ({"topic": ""}, "topic"),
        ({"topic": "$SYS/{key}"}, "topic"),
        ({"url": "http://h"}, "url"),
        ({"ca_file": "/ca.pem"}, "ca_file"),
        ({"password_file": "/p"}, "username"),
        *(({"client": {name: "x"}}, f"client.{name}") for name in OURS),
    ],
)
def test_what_is_wrong_is_named(changed: dict[str, object], key: str) -> None:
    assert [found for found, _ in replace(GOOD, **changed).mistakes()] == [key]  # type: ignore[arg-type]
