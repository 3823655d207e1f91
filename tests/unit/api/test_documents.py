"""A tenant goes out and comes in over the admin HTTP, with bounds, and within what a token may."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.api.documents import EXPORT, IMPORT, OF_DOCUMENTS, of_documents
from headrace.api.openapi import document as described
from headrace.directory.documents import PASSWORDS_MAX, NotForThisToken, TenantDocument, UserDocument
from headrace.directory.errors import InvalidField
from unit.api.test_tenants import Office


@pytest.fixture
def office(tmp_path: Path) -> Office:
    made = Office(tmp_path)
    made.answers |= of_documents(made)
    return made


def brought_in(office: Office, document: TenantDocument, token_tenant: str = "", **flags: bool) -> Any:
    asked: dict[str, Any] = {"tenant": "acme", "prune": False, "dry_run": False, "body": document}
    return office.ask(IMPORT, **asked | flags, token_tenant=token_tenant)


def test_what_is_answered_is_what_is_described(office: Office) -> None:
    done = brought_in(office, TenantDocument(users=[UserDocument("gw", password="secret")]))
    assert done["users_created"] == ["gw"]
    found = office.ask(EXPORT, tenant="acme", hashes=False)
    assert "hash" not in str(found)
    assert "hash" in office.ask(EXPORT, tenant="acme", hashes=True)["users"][0]
    for resource, content in ((IMPORT, done), (EXPORT, found)):
        assert msgspec.to_builtins(msgspec.convert(content, resource.answer, strict=True)) == content
    paths = described(OF_DOCUMENTS)["paths"]
    assert {"/v1/export", "/v1/import"} == set(paths)
    changes = office.store.changes.since(0)
    assert {(one.who, one.came_from) for one in changes} == {("token 77", "192.0.2.1:5")}


def test_a_token_of_the_tenant_changes_no_quotas(office: Office) -> None:
    brought_in(office, TenantDocument(quotas={"sessions": 1}))
    whole = msgspec.convert(office.ask(EXPORT, tenant="acme", hashes=True), TenantDocument)
    assert brought_in(office, whole, "acme")["tenant_changes"] == []
    with pytest.raises(NotForThisToken):
        brought_in(office, TenantDocument(quotas={"sessions": 2}), "acme")


def test_passwords_have_a_bound(office: Office) -> None:
    users = [UserDocument(f"u{n}", password="x") for n in range(PASSWORDS_MAX + 1)]
    with pytest.raises(InvalidField, match="give hashes"):
        brought_in(office, TenantDocument(users=users))
