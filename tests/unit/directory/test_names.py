"""Names of the directory: what is refused names its field, all else is kept byte for byte."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.directory import names
from headrace.directory.errors import InvalidField

ODD = [
    "a'; DROP TABLE directory_users; --",
    'a"b',
    "a\\b",
    "%_%",
    "a`b",
    "A",
    "a ",
    " a",
    "é",
    "e\u0301",
    "😀",
    "$SYS",
    "a/b",
]


@pytest.mark.parametrize("name", ["a", "0", "a-", "acme", "a" * 63, "0-9"])
def test_names_of_tenants(name: str) -> None:
    assert names.tenant_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "-a", "A", "a" * 64, "a b", "a/b", "a\n", "é", "a_b", "a\0", "٣", "a.b"]
)
def test_what_is_no_name_of_a_tenant(name: str) -> None:
    with pytest.raises(InvalidField, match=r"^tenant: "):
        names.tenant_name(name)


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("check", [names.user_name, names.group_name, names.client_id])
def test_odd_names_are_names(check: Callable[[str], str], name: str) -> None:
    assert check(name) == name


@pytest.mark.parametrize(
    "name", ["", "a\0", "\x01", "\x7f", "\x85", "\ud800", "\u2028", "a\nb", "\ufffe", "\U0001ffff", "\ufdd0"]
)
@pytest.mark.parametrize("field", ["user", "group", "client"])
def test_what_no_name_may_have_is_refused_with_its_field(field: str, name: str) -> None:
    check = {"user": names.user_name, "group": names.group_name, "client": names.client_id}[field]
    with pytest.raises(InvalidField, match=f"^{field}: ") as caught:
        check(name)
    assert caught.value.field == field


@given(st.text(max_size=300))
def test_a_name_comes_back_as_it_is_or_is_refused(name: str) -> None:
    field, found = "", ""
    try:
        found = names.user_name(name)
    except InvalidField as error:
        field = error.field
    assert (field, found) in ([("user", ""), ("", name)] if name else [("user", "")])
    assert len(found.encode()) <= names.NAME_BYTES_MAX


def test_lengths_count_bytes() -> None:
    assert names.user_name("é" * 127) == "é" * 127
    with pytest.raises(InvalidField, match="longer than 255 bytes"):
        names.user_name("é" * 128)
    assert len(names.client_id("😀" * 256)) == 256
    with pytest.raises(InvalidField, match=r"^client: longer than 1024"):
        names.client_id("😀" * 257)


@pytest.mark.parametrize("filters", ["#", "a/+/b", "up/%u/#", "a/b", "$share/g/a", "a'b", "😀/#"])
def test_filters(filters: str) -> None:
    assert names.topic_filter(filters) == filters


@pytest.mark.parametrize("filters", ["", "a#", "a/#/b", "a+", "a\0", "a" * 65_536, "é" * 32_768])
def test_what_is_no_filter(filters: str) -> None:
    with pytest.raises(InvalidField, match=r"^filter: "):
        names.topic_filter(filters)


def test_a_full_name_is_divided_at_the_first_slash() -> None:
    assert names.tenant_and("acme/site/gw", "user") == ("acme", "site/gw")
    for wrong in ("acme", "acme/", "/a", "Acme/a"):
        with pytest.raises(InvalidField, match=r"^user: "):
            names.tenant_and(wrong, "user")


def test_addresses_have_one_form() -> None:
    assert names.network("192.0.2.1") == "192.0.2.1/32"
    assert names.network("192.0.2.9/24") == "192.0.2.0/24"
    assert names.network("2001:DB8:0::1") == "2001:db8::1/128"
    for wrong in ("", "a", "1.2.3", "192.0.2.1/33", "fe80::1%eth0", "1.2.3.4 ", "1.2.3.4\n"):
        with pytest.raises(InvalidField, match=r"^address: "):
            names.network(wrong)


def test_durations() -> None:
    assert [names.duration_s(text) for text in ("30s", "10m", "12h", "7d")] == [30, 600, 43_200, 604_800]
    for wrong in ("", "10", "m", "0s", "-1m", "1.5h", "99999d", "9999999999d", "١0m", "10m\n"):
        with pytest.raises(InvalidField, match=r"^for: "):
            names.duration_s(wrong)


def test_passwords_are_never_said() -> None:
    for secret in (b"", b"s3cret" * 20_000):
        with pytest.raises(InvalidField) as caught:
            names.password_of(secret)
        assert "s3cret" not in str(caught.value)


def test_a_terminal_is_not_turned_round() -> None:
    assert names.shown("a\u202eb 😀é") == "a\\u202eb 😀é"
