"""`$SYS` of a node: sums over workers that come and go."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.services.sys_topics import CONNECTED, COUNTERS, EXPIRED, HEAP, SOCKETS
from headrace.workers.system import NodeSystem, Tally


class Member:
    def __init__(self) -> None:
        self.tally = Tally()
        self.told: list[dict[str, str]] = []

    def tell(self, values: Mapping[str, str]) -> None:
        self.told.append(dict(values))


def numbers(each: int, **other: int) -> dict[str, int]:
    names = [*COUNTERS, EXPIRED, SOCKETS, CONNECTED, *HEAP, "clients/total", "messages/stored"]
    return dict.fromkeys(names, each) | {name.replace("_", "/"): number for name, number in other.items()}


def test_all_workers_tell_the_same_sums() -> None:
    members = [Member() for _ in range(3)]
    system = NodeSystem(members, "1.2", 0.0)
    system.publish(0.0)
    assert members[0].told == []
    for each, member in enumerate(members):
        member.tally.heard(numbers(10 + each, clients_total=20) | {"messages/stored": 0})
    system.publish(60.0)
    told = members[0].told[-1]
    assert [member.told for member in members] == [[told]] * 3
    expected = {"bytes/sent": "33", "clients/connected": "33", "clients/disconnected": "27", "heap/current": "33",
                "messages/stored": "0",
                "clients/maximum": "33", "version": "headrace version 1.2", "uptime": "60 seconds",
                "load/sockets/1min": "20.86"}  # fmt: skip
    assert {name: told[name] for name in expected} == expected
    system.tell(members[1])
    assert members[1].told == [told, told]


def test_what_a_worker_has_counted_outlives_its_process() -> None:
    members = [Member() for _ in range(2)]
    system = NodeSystem(members, "1", 0.0)
    for member in members:
        member.tally.heard(numbers(100))
    system.publish(1.0)
    members[1].tally.ended()
    system.publish(2.0)
    gone = members[0].told[-1]
    names = ("messages/received", "clients/expired", "clients/total", "clients/connected", "heap/current")
    assert [gone[name] for name in names] == ["200", "200", "200", "100", "100"]
    members[1].tally.heard({})  # it recovers
    members[1].tally.heard(numbers(5, clients_total=7))
    members[1].tally.ended()
    members[1].tally.heard(numbers(1, clients_total=7))
    system.publish(3.0)
    back = members[0].told[-1]
    assert [back[name] for name in names] == ["206", "206", "107", "101", "101"]
    assert all(float(value) >= 0 for name, value in back.items() if name.startswith("load/"))
