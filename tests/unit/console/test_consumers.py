"""Having a broker remove a consumer: of all its shards, and what is said where some, or all, do not know it."""

from __future__ import annotations

from typing import Any, cast

import pytest

from headrace.console.admin import AdminClient, AdminRefused
from headrace.console.consumers import removed_there


class Broker:
    """A broker of so many shards, of which some know the consumer: shard -> offset."""

    def __init__(self, shards: int, known: dict[int, int], status: int = 404) -> None:
        self.shards = shards
        self.known = known
        self.status = status
        self.asked: list[str] = []

    def get(self, path: str) -> Any:
        assert path == "/v1/journal/shards"
        return {"shards": [{"shard": number} for number in range(self.shards)]}

    def ask(self, method: str, path: str) -> Any:
        assert method == "DELETE"
        self.asked.append(path)
        shard = int(path.split("/")[4])
        if shard not in self.known:
            raise AdminRefused(self.status, "no")
        return {"offset": self.known.pop(shard)}


def removed(broker: Broker, name: str = "archive", force: bool = False) -> list[tuple[str, int]]:
    return removed_there(cast(AdminClient, broker), name, force)


def test_a_broker_of_one_shard_needs_no_label() -> None:
    broker = Broker(1, {0: 7})
    assert removed(broker) == [("", 7)]
    assert broker.asked == ["/v1/journal/shards/0/consumers/archive?force=false"]


def test_it_goes_from_the_shards_that_know_it() -> None:
    broker = Broker(3, {0: 7, 2: 9})
    assert removed(broker, "a/b", force=True) == [("shard 0: ", 7), ("shard 2: ", 9)]
    assert broker.asked[1] == "/v1/journal/shards/1/consumers/a%2Fb?force=true"


@pytest.mark.parametrize("status", [404, 409])
def test_a_refusal_is_said_where_nothing_was_removed(status: int) -> None:
    with pytest.raises(AdminRefused):
        removed(Broker(2, {}, status))


def test_one_that_is_at_work_somewhere_ends_it() -> None:
    with pytest.raises(AdminRefused):
        removed(Broker(2, {0: 7}, 409))
