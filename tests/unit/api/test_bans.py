"""Bans over the admin HTTP: what is answered is what is described, and a tenant has to do with its own alone."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from headrace.api.bans import ADD_BAN, BANS, REMOVE_BAN, NewBan, of_bans
from headrace.api.tenants import CREATE_TENANT, NewTenant
from headrace.directory.errors import InvalidField
from headrace.errors import NotThere
from unit.api.test_tenants import Office


@pytest.fixture
def office(tmp_path: Path) -> Office:
    made = Office(tmp_path)
    made.answers |= of_bans(made)
    made.ask(CREATE_TENANT, body=NewTenant("acme"))
    return made


def test_a_ban_from_its_beginning_to_its_end(office: Office) -> None:
    of_client = {"kind": "client", "tenant": "acme", "subject": "a/b"}
    made = office.ask(ADD_BAN, **of_client, body=NewBan(60, "loud"))
    assert (made["subject"], made["reason"], made["until_us"] > 0) == ("a/b", "loud", True)
    again = office.ask(ADD_BAN, **of_client, body=NewBan())
    assert again["until_us"] == 0
    of_address = office.ask(ADD_BAN, kind="address", tenant="", subject="192.0.2.7", body=NewBan())
    assert of_address["subject"] == "192.0.2.7/32"
    listed = office.ask(BANS, tenant="")
    assert [row["kind"] for row in listed["rows"]] == ["address", "client"]
    assert msgspec.to_builtins(msgspec.convert(listed, BANS.answer, strict=True)) == listed
    assert office.ask(BANS, tenant="acme")["rows"] == [again]
    assert office.ask(REMOVE_BAN, **of_client) is None
    with pytest.raises(NotThere):
        office.ask(REMOVE_BAN, **of_client)
    assert office.ask(BANS, tenant="acme")["rows"] == []
    changes = office.store.changes.since(1)
    assert {(one.who, one.came_from) for one in changes} == {("token 77", "192.0.2.1:5")}


def test_what_is_no_ban_is_refused(office: Office) -> None:
    with pytest.raises(InvalidField, match="tenant"):  # as a token of the tenant asks
        office.ask(ADD_BAN, kind="address", tenant="acme", subject="192.0.2.7", body=NewBan())
    with pytest.raises(InvalidField):
        office.ask(ADD_BAN, kind="client", tenant="acme", subject="", body=NewBan())
    with pytest.raises(NotThere):
        office.ask(ADD_BAN, kind="user", tenant="none", subject="u", body=NewBan())
    [kind, *_] = ADD_BAN.parameters
    with pytest.raises(ValueError, match="kind: it is one of client, user, address"):
        kind.value("planet")
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"for_s": -1}', type=NewBan)
