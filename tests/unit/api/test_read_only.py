"""A broker with files says of users and rules that they are read-only, to whoever may ask; and it describes them not."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.api.bans import OF_BANS
from headrace.api.documents import OF_DOCUMENTS
from headrace.api.openapi import document
from headrace.api.operations import RESOURCES
from headrace.api.read_only import READ_ONLY
from headrace.api.tenants import OF_DIRECTORY
from headrace.clients.admin import Admin, Conflict, Forbidden, Unauthorized
from unit.clients.admin.test_admin import Operated


def test_all_that_a_directory_has_is_read_only_without_one(tmp_path: Path) -> None:
    operated = Operated(tmp_path)
    of_directory = {(one.method, one.path) for one in (*OF_DIRECTORY, *OF_DOCUMENTS, *OF_BANS)}
    assert {(one.method, one.path) for one in READ_ONLY} == of_directory

    def work(admin: Admin) -> None:
        for method, path in sorted(of_directory):
            target = f"{path.replace('{tenant}', 'default')}?tenant=default"
            for body in (None, {"name": "x"}):
                with pytest.raises(Conflict, match=r"access\.password_file") as refused:
                    admin._connection.ask(method, target, body)
                assert (refused.value.status, refused.value.members["title"]) == (409, "Conflict")
        with Admin(operated.url, "looks") as looks:
            with pytest.raises(Conflict):
                looks._connection.ask("GET", "/v1/users")
            with pytest.raises(Forbidden):
                looks._connection.ask("POST", "/v1/users", {})
        with Admin(operated.url) as nobody, pytest.raises(Unauthorized):
            nobody._connection.ask("GET", "/v1/users")
        described = admin._connection.ask("GET", "/openapi.json")["paths"]
        assert set(described) == set(document(RESOURCES)["paths"])

    operated.run(work)
