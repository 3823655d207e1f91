"""What a node says of its cluster: Kafka is asked once for all, and nodes that are not heard are named."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from headrace.errors import HeadraceError, NotReadableNow
from headrace.node.member import Member


class Asked:
    """A Kafka that knows of three nodes, of which one is away."""

    def __init__(self) -> None:
        self.times = 0
        self.is_away = False

    def ask(self) -> dict[str, Any]:
        self.times += 1
        if self.is_away:
            time.sleep(0.05)
            raise HeadraceError("no broker answers")
        nodes = [{"node": f"n{number}", "lives": number != 2} for number in range(3)]
        return {"cluster": "fleet", "nodes": nodes, "problems": ["node n2 is away"]}


def test_kafka_is_asked_once_for_all_who_ask_at_once_and_silent_nodes_are_problems() -> None:
    async def body() -> None:
        asked, links = Asked(), {"n1": True, "n2": False}
        member = Member("n0", asked.ask, lambda: links)
        found = await asyncio.gather(*(member.status() for _ in range(5)))
        assert asked.times == 1
        assert found[0]["asked"] == "n0"
        assert found[4]["links"] == [{"node": "n1", "heard": True}, {"node": "n2", "heard": False}]
        assert found[0]["problems"] == ["node n2 is away"]
        links["n1"] = False
        assert (await member.status())["problems"] == ["node n2 is away", "node n0 hears nothing of node n1"]
        member._until_s = 0.0
        asked.is_away = True
        with pytest.raises(NotReadableNow, match="no broker answers"):
            await member.status()

    asyncio.run(body())


def test_who_asks_while_kafka_is_away_waits_for_one_answer_and_not_for_one_after_the_other() -> None:
    """Each takes 15 s and more, and whoever watches asks again and again."""

    async def body() -> None:
        asked = Asked()
        asked.is_away = True
        member = Member("n0", asked.ask, dict[str, bool])
        first = asyncio.ensure_future(member.status())
        others = [asyncio.ensure_future(member.status()) for _ in range(20)]
        await asyncio.sleep(0)
        others.pop().cancel()
        found = await asyncio.gather(first, *others, return_exceptions=True)
        assert [str(one) for one in found] == ["no broker answers"] * 20
        assert all(isinstance(one, NotReadableNow) for one in found)
        assert asked.times == 1
        asked.is_away = False
        assert (await member.status())["asked"] == "n0"

    asyncio.run(body())


def test_a_node_without_links_misses_none() -> None:
    async def body() -> None:
        found = await Member("n0", Asked().ask, dict[str, bool]).status()
        assert (found["links"], found["problems"]) == ([], ["node n2 is away"])

    asyncio.run(body())
