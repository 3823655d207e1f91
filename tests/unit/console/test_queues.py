"""The lines of `headrace frame queue`, and what is asked of a broker that is to remove something."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

import pytest

from headrace.console.admin import AdminClient, AdminRefused
from headrace.console.queues import HEADER, line, pairs, removed
from headrace.errors import NotThere

ROW: dict[str, Any] = {
    "tenant": "default",
    "topic": "do\x1b[2Jors",
    "messages": 1500,
    "bytes": 3 << 20,
    "clusters": 2,
    "consumers": 3,
    "unfinished": 1200,
    "oldest_s": 3700.2,
    "user": "",
    "device": "d\n1",
}


class Fake(AdminClient):
    """A broker that answers so, or refuses with a status."""

    def __init__(self, status: int = 200) -> None:
        super().__init__("127.0.0.1", 1)
        self._status = status
        self.asked: list[tuple[str, str]] = []

    def ask(self, method: str, path: str, content: object = None) -> Any:
        self.asked.append((method, path))
        if self._status != 200:
            raise AdminRefused(self._status, "it says no", "there is no t")
        return {"unfinished": 1}


def test_a_line_stands_below_its_header_and_moves_no_cursor() -> None:
    found = line(ROW)
    assert "\x1b" not in found
    assert "\n" not in found
    assert found.endswith("default do\\x1b[2Jors")
    assert len(found) - len("default do\\x1b[2Jors") == len(HEADER) - len("tenant topic")
    assert line(ROW | {"device": "", "oldest_s": None}).split()[-4:-2] == ["-", "-"]


def test_each_figure_has_a_line() -> None:
    found = pairs(ROW)
    assert len(found) == len(ROW)
    assert found[0].split() == ["tenant", "default"]
    assert not any("\x1b" in one or "\n" in one for one in found)
    assert found[-2].split() == ["user", "-"]


@pytest.mark.parametrize("name", ["a//b", "%2F", "a b&c=d;e", "+", "../..", "größe/日本", "%", "?#"])
def test_names_are_encoded_once_and_none_is_taken_for_something_else(name: str) -> None:
    fake = Fake()
    named = {"topic": name, "cluster": name, "tenant": name}
    assert removed(fake, "clusters", named) == {"unfinished": 1}
    [(method, path)] = fake.asked
    assert (method, path.isascii()) == ("DELETE", True)
    place, _, query = path.partition("?")
    assert place == "/v1/clusters"
    assert dict(parse_qsl(query, strict_parsing=True)) == named
    assert "+" not in query, "some take it for a space, some do not"


def test_what_is_not_there_is_told_apart_from_what_is_refused() -> None:
    with pytest.raises(NotThere, match="there is no t"):
        removed(Fake(404), "queues", {"topic": "t"})
    with pytest.raises(AdminRefused, match="it says no"):
        removed(Fake(409), "queues", {"topic": "t"})
