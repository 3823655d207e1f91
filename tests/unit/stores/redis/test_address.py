"""Addresses of a Redis, and what is wrong with others."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.stores.redis.address import parse


def test_an_address_says_where_and_how() -> None:
    address = parse("redis://user:p%40ss@one:7000,[::1]:7001,two/3?prefix=plant")
    assert address.places == (("one", 7000), ("::1", 7001), ("two", 6379))
    assert (address.username, address.password, address.database) == ("user", "p@ss", 3)
    assert address.prefix == "plant"
    assert address.tls is None
    assert address.copies
    assert not parse("redis://one?replicas=0").copies


def test_the_shortest_one_has_the_usual_port_and_nobody_signs_in() -> None:
    address = parse("redis://localhost")
    assert address.places == (("localhost", 6379),)
    assert (address.username, address.password, address.database, address.prefix) == ("", "", 0, "headrace")


def test_over_tls_certificates_are_checked() -> None:
    address = parse("rediss://localhost")
    assert address.tls is not None
    assert address.tls.check_hostname


def test_a_password_may_lie_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("s3cret\n", encoding="utf-8")
    assert parse(f"redis://:other@host?password_file={tmp_path}/password").password == "s3cret"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://host", "a Redis is at redis://"),
        ("redis://", "is no host:port"),
        ("redis://a,,b", "is no host:port"),
        ("redis://a:x", "[Pp]ort"),
        ("redis://a:99999", "[Pp]ort"),
        ("redis://a/zero", "no number of a database"),
        ("redis://a?prefx=x", "option prefx is not one of"),
        ("redis://a?prefix=", "has no value"),
        ("redis://a?prefix=x%7By%7D", "has a brace"),
        ("redis://a?prefix=x&prefix=y", "more than one"),
        ("redis://a?replicas=2", "how many there are is seen"),
        ("redis://a?ca=/x", "is of rediss://"),
        ("rediss://a?ca=/not/there", "cannot be used"),
        ("rediss://a?key=/x", "without certificate"),
        ("redis://:pa#ss@a", "#"),
        ("redis://a?password_file=/not/there", "password_file cannot be read"),
    ],
)
def test_what_is_wrong_is_said(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse(url)


def test_a_password_is_not_in_the_words() -> None:
    with pytest.raises(ValueError) as caught:
        parse("redis://user:s3cret@host:x")
    assert "s3cret" not in str(caught.value)


def test_a_store_has_the_name_that_it_is_given_else_that_of_its_places() -> None:
    assert parse("redis://b,a:7000/2?prefix=p").name == parse("redis://user:s3cret@a:7000,b/2?prefix=p").name
    assert parse("redis://a").name == "a:6379/0?prefix=headrace"
    assert (
        len({parse(url).name for url in ("redis://a", "redis://b", "redis://a/1", "redis://a?prefix=x")}) == 4
    )
    assert parse("redis://elsewhere?name=devices").name == "devices"


def test_an_address_can_be_shown_to_everybody() -> None:
    assert parse("redis://user:s3cret@a,[::1]:7000/3?prefix=p").url == "redis://a:6379,[::1]:7000/3"
    assert parse("rediss://a").url == "rediss://a:6379"
