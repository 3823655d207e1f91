"""What each shard knows of sessions and groups that one journal had: nothing is lost, and nothing is known twice."""

from __future__ import annotations

import random
from typing import Any

import pytest

from headrace.core.homes import MEMBER_PREFIX, Homes
from headrace.mqtt.topics import SHARE_PREFIX, split_share
from headrace_spark.metrics.division import divided
from headrace_spark.metrics.remembered import Remembered
from headrace_spark.metrics.sessions import Sessions, groups_of, members_of
from headrace_spark.source.journal_range import Place
from spark.metrics.test_remembered import GROUP, known, session, subscription, told


def names(of: Remembered) -> dict[int, str]:
    return dict(zip(of.incarnations.tolist(), of.client_ids.to_pylist(), strict=True))


@pytest.mark.parametrize("shards", [2, 5])
@pytest.mark.parametrize("seed", range(10))
def test_everything_is_in_one_shard(seed: int, shards: int) -> None:
    dice, homes = random.Random(seed), Homes(shards)
    groups = {-number: f"$share/g{number}/work/{number}" for number in range(1, 6)}
    rows: list[dict[str, Any]] = [
        session(number, 5, dice.randint(1, 99), client_id=name) for number, name in groups.items()
    ]
    rows += [subscription(number, split_share(name)[1], 5) for number, name in groups.items()]
    members: dict[str, set[int]] = {name: set() for name in groups.values()}
    own: set[tuple[int, str]] = set()
    for incarnation in range(1, 40):
        rows.append(session(incarnation, 6, dice.randint(1, 99)))
        for topic_filter in dice.sample(["a/#", "b", *groups.values()], dice.randint(0, 3)):
            rows.append(subscription(incarnation, topic_filter, 6))
            own.add((incarnation, topic_filter))
            if topic_filter.startswith(SHARE_PREFIX):
                members[topic_filter].add(incarnation)
    before = known(*rows)
    found = [divided(before, Place(shard, shards)) for shard in range(shards)]
    for shard, one in enumerate(found):
        sessions = Sessions(one, Place(shard, shards))
        assert all(sessions.session(incarnation) is not None for incarnation in names(one))
        assert not one.is_online.any()
    clients = [
        (incarnation, name)
        for one in found
        for incarnation, name in names(one).items()
        if incarnation > 0 and not name.startswith(MEMBER_PREFIX)
    ]
    assert sorted(clients) == [(number, f"client-{number}") for number in range(1, 40)]
    for number, name in groups.items():
        home = homes.of_group("default", *split_share(name))
        there = [shard for shard in range(shards) if number in names(found[shard])]
        assert there == ([home] if members[name] else [])
        if members[name]:
            assert members_of(found[home])["default", name] == len(members[name])
            assert groups_of(found[home])["default", name] == number
    for incarnation, topic_filter in own:
        at = homes.of_client("default", f"client-{incarnation}")
        assert (incarnation, topic_filter) in told(found[at])[1]


def test_who_was_there_for_one_connection_is_gone_and_his_group_with_him() -> None:
    before = known(
        session(-7, 5, client_id=GROUP),
        subscription(-7, "a", 5),
        session(1, 5, -3, connected_offset=4, connected_timestamp=9),
        subscription(1, GROUP, 5),
        subscription(1, "b", 5),
        session(2, 5, 8, connected_offset=4, connected_timestamp=9),
        subscription(2, "c", 5),
    )
    found = [divided(before, Place(shard, 2)) for shard in range(2)]
    assert [incarnation for one in found for incarnation in names(one)] == [2]
    assert set().union(*(told(one)[1] for one in found)) == {(2, "c")}
    assert not any(one.is_online.any() for one in found)


def test_a_member_of_a_group_elsewhere_has_a_stand_in_with_its_shared_subscriptions_alone() -> None:
    homes = Homes(2)
    home = homes.of_group("default", *split_share(GROUP))
    away = next(number for number in range(1, 99) if homes.of_client("default", f"client-{number}") != home)
    before = known(
        session(-7, 5, 4, client_id=GROUP),
        subscription(-7, "a", 5),
        session(away, 5, 8),
        subscription(away, GROUP, 5),
        subscription(away, "own", 5),
    )
    found = divided(before, Place(home, 2))
    assert names(found) == {-7: GROUP, away: f"{MEMBER_PREFIX}{1 - home}/{away}"}
    assert told(found)[1] == {(-7, "a"), (away, GROUP)}
    assert names(divided(before, Place(1 - home, 2))) == {away: f"client-{away}"}
