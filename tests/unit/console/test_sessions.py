"""Sessions that a broker is asked to drop: the id as it is, and its refusals by what they mean."""

from __future__ import annotations

from typing import cast
from urllib.parse import parse_qs, urlsplit

import pytest

from headrace.console.admin import AdminClient, AdminRefused
from headrace.console.sessions import dropped_there
from headrace.errors import BrokersOwn, NotThere


class Fake:
    """A broker that answers with this status."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.asked: list[tuple[str, str]] = []

    def ask(self, method: str, path: str) -> dict[str, object]:
        self.asked.append((method, path))
        if self.status != 200:
            raise AdminRefused(self.status, "said", "why")
        return {"messages": 1}


@pytest.mark.parametrize("client_id", ["c", "a//b", "../x", "a%2Fb", "größe &=#?"])
def test_the_id_is_encoded_once_in_the_query(client_id: str) -> None:
    fake = Fake(200)
    assert dropped_there(cast(AdminClient, fake), "t&", client_id) == {"messages": 1}
    [(method, path)] = fake.asked
    parts = urlsplit(path)
    assert (method, parts.path, path.isascii()) == ("DELETE", "/v1/sessions", True)
    assert parse_qs(parts.query) == {"tenant": ["t&"], "client": [client_id]}


@pytest.mark.parametrize(("status", "kind"), [(404, NotThere), (409, BrokersOwn), (503, AdminRefused)])
def test_a_refusal_is_what_its_status_means(status: int, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="why" if status != 503 else "said"):
        dropped_there(cast(AdminClient, Fake(status)), "t", "c")
