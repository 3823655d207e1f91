"""A list yields the rows of all pages, asks for no page before it is needed, and for none twice."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.clients.admin import Pages, Unreachable
from headrace.clients.admin.rows import Kicked

ROW = {"tenant": "t", "client_id": "c", "session_kept": True, "of_a_later_broker": 1}


class Broker:
    """Has three pages, the second one empty with a shard that did not answer. `fails` times a page is not given."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.fails = 0

    def page(self, place: str) -> Any:
        self.asked.append(place)
        if self.fails:
            self.fails -= 1
            raise Unreachable("gone")
        return {
            "": {"rows": [ROW, ROW], "next": "1", "unanswered": []},
            "1": {"rows": [], "next": "2", "unanswered": [1]},
            "2": {"rows": [ROW], "next": None},
        }[place]


def test_all_pages() -> None:
    broker = Broker()
    pages = Pages(broker.page, Kicked)
    assert broker.asked == []
    next(pages)
    assert (broker.asked, pages.unanswered) == ([""], [])
    assert len(list(pages)) == 2
    assert (broker.asked, pages.unanswered, list(pages)) == (["", "1", "2"], [1], [])


def test_a_page_that_did_not_come_is_asked_for_again() -> None:
    broker = Broker()
    pages = Pages(broker.page, Kicked)
    next(pages), next(pages)
    broker.fails = 1
    with pytest.raises(Unreachable):
        next(pages)
    assert len(list(pages)) == 1
    assert broker.asked == ["", "1", "1", "2"]
