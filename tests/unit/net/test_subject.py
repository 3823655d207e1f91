"""User names that certificates fill into a template."""

from __future__ import annotations

import pytest

from headrace.net.address import parse
from headrace.net.subject import SubjectTemplate

PUMP = {
    "subject": (
        (("organizationName", "acme"),),
        (("organizationalUnitName", "pumps"), ("commonName", "pump 7")),
    ),
    "subjectAltName": (
        ("DNS", "a.example"),
        ("DNS", "b.example"),
        ("URI", "urn:pump:7"),
        ("email", "p@a.example"),
    ),
}


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{o}/{cn}", "acme/pump 7"),
        ("acme/{cn}", "acme/pump 7"),
        ("{ou}.{o}", "pumps.acme"),
        ("x/{uri}", "x/urn:pump:7"),
        ("{o}/{email}", "acme/p@a.example"),
        ("acme/{dns}", None),  # it has two
        ("{uri}:{cn}", None),  # which could be urn, and pump:7:pump 7
    ],
)
def test_a_template_is_filled_in_or_names_nobody(template: str, name: str | None) -> None:
    assert SubjectTemplate(template).name(PUMP) == name


@pytest.mark.parametrize(
    "certificate",
    [
        {},
        {"subject": ((("commonName", "gw"),),)},
        {"subject": ((("organizationName", "acme/admin"),), (("commonName", "gw"),))},
        {"subject": ((("organizationName", ""),), (("commonName", "gw"),))},
        {
            "subject": (
                (("organizationName", "acme"),),
                (("organizationName", "blue"),),
                (("commonName", "gw"),),
            )
        },
    ],
)
def test_no_certificate_passes_for_another_tenant(certificate: dict[str, object]) -> None:
    assert SubjectTemplate("{o}/{cn}").name(certificate) is None


def test_no_first_field_of_several_brings_the_separator_along() -> None:
    names = ("organizationalUnitName", "victim/x"), ("organizationName", "evil"), ("commonName", "gw")
    certificate = {"subject": tuple((name,) for name in names)}
    assert SubjectTemplate("{ou}-{o}/{cn}").name(certificate) is None
    assert SubjectTemplate("{o}-{cn}/{ou}").name(certificate) == "evil-gw/victim/x"


def signed(o: str, cn: str) -> dict[str, object]:
    return {"subject": ((("organizationName", o),), (("commonName", cn),))}


@pytest.mark.parametrize(
    ("template", "o", "cn", "name"),
    [
        ("{o}/dev-{cn}", "blue/x", "gw", None),  # "/" is not all of the text behind it
        ("{o}/dev-{cn}", "blue", "gw", "blue/dev-gw"),
        ("{o}.{cn}", "blue/x", "gw", None),
        ("{o}.{cn}", "blue", "x/gw", None),
        ("{o}.{cn}", "blue", "gw", "blue.gw"),
        ("{o}/{cn}", "blue", "a/b", "blue/a/b"),
        ("acme/{cn}", "", "a/b", "acme/a/b"),
        ("acme-{cn}", "", "x/b", None),
        ("{cn}", "", "acme/gw", "acme/gw"),
        ("{o}{cn}", "blue/", "gw", None),
        ("x/{o}/{cn}", "blue", "gw", "x/blue/gw"),
    ],
)
def test_the_template_says_where_the_tenant_ends(template: str, o: str, cn: str, name: str | None) -> None:
    assert SubjectTemplate(template, "/").name(signed(o, cn)) == name


def test_a_separator_of_several_characters_does_not_come_about_between_values() -> None:
    assert SubjectTemplate("{o}:-{cn}", "::").name(signed("blue:", "gw")) is None
    assert (
        SubjectTemplate("{o}::{cn}", "::").name(signed("blue:", "gw")) is None
    )  # it would be of "blue", as ":gw"
    assert SubjectTemplate("{o}::{cn}", "::").name(signed("blue", ":gw")) == "blue:::gw"


@pytest.mark.parametrize("template", ["", "acme", "{}", "{name}", "{cn", "cn}", "{{cn}}", "{cn}/{x}"])
def test_what_is_no_template_is_refused(template: str) -> None:
    with pytest.raises(ValueError, match=r"none of|neither"):
        SubjectTemplate(template)
    with pytest.raises(ValueError, match=r"identity|not one of"):
        parse(f"tls://h:1?identity={template}")


def test_a_listener_has_one() -> None:
    for said in ("cn", "{o}/{cn}"):
        assert parse(f"tls://h:1?client_cert=require&identity={said}").options.identity == said
