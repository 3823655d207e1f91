"""Whose an SN is, over several shards: one answer, whichever connection, shard and operation it is asked by."""

from __future__ import annotations

from itertools import product
from typing import Final

import pytest

from frame_doors import Door, Node
from harness import Client
from headrace.core.ports.settings import BrokerSettings
from headrace.core.records.queue_record import DEVICE_OWNED, queue_record
from headrace.frames.frame import ACK, HELLO, JOIN, LEAVE, PING, PUBLISH, PULL
from headrace.mqtt import reason_codes as rc

pytestmark = pytest.mark.interpreted  # the doors' links are classes of their own

OPERATIONS: Final = [PUBLISH, JOIN, LEAVE, PULL, ACK, PING, HELLO]


def may_say(opcode: int, sn: bytes) -> list[int | bytes]:
    """An operation, with what must come before it for it to be no error of its own."""
    return [JOIN, sn, PULL, sn] if opcode == PULL else [opcode, sn]


@pytest.mark.parametrize("shards", [1, 2, 3])
@pytest.mark.parametrize("opcode", OPERATIONS)
def test_another_user_may_do_nothing_as_an_sn_and_its_own_everything_at_every_shard(
    shards: int, opcode: int
) -> None:
    node = Node(shards)
    for home, first, thief in product(range(shards), repeat=3):
        sn = node.name_in(home, f"sn-{first}-{thief}-")
        begun = Door(node, first, "ada")
        begun.send(PUBLISH, sn)
        assert begun.told(sn) == [(PUBLISH, 0)], "whoever comes first has it"
        eve = Door(node, thief, "eve")
        eve.send(*may_say(opcode, sn))
        assert eve.refused == rc.NOT_AUTHORIZED
        assert [one for one in eve.told(sn) if one != (HELLO, rc.NOT_AUTHORIZED)] == []
        for shard in range(shards):
            own = Door(node, shard, "ada")
            own.send(*may_say(opcode, sn))
            assert own.refused == 0
            assert [of for of, _ in own.told(sn)] == [int(of) for of in may_say(opcode, sn)[::2]]
        assert node.owners(sn) == ["ada"]


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_what_follows_a_frame_whose_home_is_asked_is_answered_once(shards: int) -> None:
    node = Node(shards)
    one, two = node.name_in(0, "one"), node.name_in(shards - 1, "two")
    door = Door(node, shards - 1, "ada")
    door.send(PUBLISH, one, PING, two, PUBLISH, one, JOIN, one, HELLO, one, PUBLISH, two, LEAVE, one)
    assert sorted(door.told(one)) == [(HELLO, 0), (PUBLISH, 0), (PUBLISH, 0), (JOIN, 0), (LEAVE, 0)]
    assert door.told(two) == [(PING, 0), (PUBLISH, 0)]
    assert [of for opcode, of, _ in door.answers.told if opcode == PUBLISH] == [one, one, two]
    assert door.refused == 0


@pytest.mark.parametrize("shards", [2, 3])
def test_two_users_who_come_at_once_by_two_shards_are_not_both_let_in(shards: int) -> None:
    node = Node(shards)
    sn = node.name_in(0, "sn")
    doors = [Door(node, shard, user) for shard, user in ((0, "ada"), (1, "eve"), (shards - 1, "joe"))]
    for door in doors:
        door.frames.receive_data(door.frame(PUBLISH, sn))
    node.carry()
    assert [door.refused for door in doors] == [0, rc.NOT_AUTHORIZED, rc.NOT_AUTHORIZED]
    assert node.owners(sn) == ["ada"]


def test_an_answer_of_the_home_is_durable_before_it_is_given() -> None:
    node = Node(2)
    sn = node.name_in(0, "sn")
    door = Door(node, 1, "ada")
    door.send(PUBLISH, sn)
    node.wired.crash(0)
    node.begin(node.wired[0])
    node.wired.join_again(0)
    node.carry()
    assert node.owners(sn) == ["ada"]


def test_a_home_that_is_away_is_waited_for_and_then_the_connection_ends() -> None:
    node = Node(2)
    sn = node.name_in(0, "sn")
    lucky, late = Door(node, 1, "ada"), Door(node, 1, "ada")
    node.wired.disconnect(1, 0)
    lucky.send(PUBLISH, sn)
    assert lucky.told(sn) == []
    node.wired.connect(1, 0)
    node.carry()
    assert lucky.told(sn) == [(PUBLISH, 0)]
    node.wired.disconnect(1, 0)
    late.send(PUBLISH, sn)
    node.wired.advance(4)
    assert late.refused == rc.SERVER_UNAVAILABLE


def test_owners_that_a_shard_has_written_down_by_itself_are_known_at_the_home_and_by_all() -> None:
    """A data directory of before: each shard had its own."""
    node = Node(3)
    sn, kept = node.name_in(0, "sn"), node.name_in(0, "kept")
    for shard, name, user in ((2, sn, "ada"), (2, kept, "eve"), (0, kept, "ada")):
        fields: dict[str, object] = {"t": "default", "c": name.decode(), "u": user}
        node.wired[shard].broker.commit.append(queue_record(DEVICE_OWNED, 1, fields))
    node.carry()
    for shard in (0, 2):
        node.wired.crash(shard)
        node.begin(node.wired[shard])
        node.wired.join_again(shard)
    node.carry()
    assert (node.owners(sn), node.owners(kept)) == (["ada"], ["ada"])
    eve, ada = Door(node, 1, "eve"), Door(node, 2, "ada")
    eve.send(PUBLISH, sn)
    ada.send(PUBLISH, sn, PUBLISH, kept)
    assert (eve.refused, ada.refused) == (rc.NOT_AUTHORIZED, 0)


def test_the_limit_of_a_user_counts_a_device_once_whatever_shards_it_speaks_in() -> None:
    settings = BrokerSettings()
    settings.user_devices_max = 3
    node = Node(2, settings)
    sn = node.name_in(0, "sn")
    for shard in (0, 1):
        door = Door(node, shard, "ada")  # which has an SN of its own
        door.send(PUBLISH, sn, PUBLISH, sn)
        assert door.refused == 0


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_a_session_and_an_sn_of_one_client_id_have_one_owner(shards: int) -> None:
    """Of MQTT it is asked where client ids are their first users'."""
    node = Node(shards)
    for home, other in product(range(shards), repeat=2):
        shard = node.wired[home]
        session: Client = shard.client(f"mqtt-{other}-")
        tenant = shard.broker.fold.tenant("default")
        tenant.sessions[session.link.client_id].own("ada")
        eve = Door(node, other, "eve")
        eve.send(PUBLISH, session.link.client_id.encode())
        assert eve.refused == rc.NOT_AUTHORIZED
        sn = node.name_in(home, f"sn-{other}-")
        ada = Door(node, other, "ada")
        ada.send(PUBLISH, sn)
        assert shard.broker.sessions.owner_of("default", sn.decode()) == "ada"
