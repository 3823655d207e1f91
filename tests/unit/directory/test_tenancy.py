"""Whose a client is, by its user name or the name in its certificate."""

from __future__ import annotations

import pytest

from headrace.core.ports.tenancy import NO_TENANT
from headrace.directory.tenancy import ByPrefix

LISTENER = "tcp://127.0.0.1:1883"


@pytest.mark.parametrize(
    ("name", "tenant", "user"),
    [
        ("acme/gw", "acme", "gw"),
        ("acme/a/b", "acme", "a/b"),
        ("acme//x", "acme", "/x"),
        ("gw", "main", "gw"),
        ("a" * 63 + "/x", "a" * 63, "x"),
    ],
)
def test_the_first_separator_divides(name: str, tenant: str, user: str) -> None:
    names = ByPrefix("/", "main")
    assert (names.of_client(name, LISTENER, ""), names.user_of(name)) == (tenant, user)


@pytest.mark.parametrize(
    "name", ["/x", "acme/", "Acme/x", "a_b/x", "-a/x", "a" * 64 + "/x", "acme\0/x", "ä/x", "acme\n/x", "../x"]
)
def test_what_no_tenant_can_be_called_is_refused(name: str) -> None:
    assert ByPrefix("/", "main").of_client(name, LISTENER, "") == NO_TENANT


def test_a_certificate_counts_before_the_user_name() -> None:
    names = ByPrefix("/", "main")
    assert names.of_client("acme/gw", LISTENER, "blue/x") == "blue"
    assert names.of_client("acme/gw", LISTENER, None) == "acme"  # access control refuses that


def test_separator_and_default_are_configurable() -> None:
    names = ByPrefix("::", "")
    assert (names.of_client("acme::a/b", LISTENER, ""), names.user_of("acme::a/b")) == ("acme", "a/b")
    for name in ("acme/gw", "gw", "", None):
        assert names.of_client(name, LISTENER, "") == NO_TENANT
    assert ByPrefix("::", "main").of_client(None, LISTENER, "") == "main"


@pytest.mark.parametrize(
    ("default", "name", "one"),
    [
        ("acme", "gw", "gw"),
        ("acme", "acme/gw", "gw"),
        ("acme", "acme/a/b", "acme/a/b"),  # a/b would be user b of tenant a
        ("acme", "a/b", "a/b"),
        ("acme", "acme/", "acme/"),
        ("acme", "ACME/gw", "ACME/gw"),
        ("acme", "", ""),
        ("", "/gw", "/gw"),
        ("", "gw", "gw"),
    ],
)
def test_a_user_has_one_name_however_it_signs_in(default: str, name: str, one: str) -> None:
    names = ByPrefix("/", default)
    assert names.name_of(name) == one
    assert names.of_client(one, "", None) == names.of_client(name, "", None)
    assert names.user_of(one) == names.user_of(name)
