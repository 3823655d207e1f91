"""A drain lets nobody in, asks clients away at its rate, and can be undone; other processes of the node hear of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness import Harness
from headrace.mqtt import reason_codes as rc
from headrace.mqtt.codec import encode_disconnect
from headrace.services.draining import LOOK_S, TURN_S, Draining


class Lasting:
    """A connection that notes when it is put out, and is open still."""

    closed = False

    def __init__(self, asked: list[object]) -> None:
        self.broker = self
        self._asked = asked

    def put_out(self, link: object, code: int, why: str) -> None:
        assert link is self
        self._asked.append(link)


class Entrance:
    """The doors of a process, as a drain sees them: clients of a harness."""

    def __init__(self, clients: int) -> None:
        self.harness = Harness()
        self.clients = [self.harness.client(f"c{number}", version=5) for number in range(clients)]
        self.refuses = False

    def refuse_all(self, refuses: bool) -> None:
        self.refuses = refuses

    def sockets(self) -> list[Any]:
        return [one.link for one in self.clients if not one.link.closed]


class Rig:
    """A drain with a clock of its own."""

    def __init__(self, clients: int, workers: int = 1, told: Path | None = None) -> None:
        self.now_s = 100.0
        self.entrance = Entrance(clients)
        doors: Any = self.entrance
        self.draining = Draining(doors, lambda: self.now_s, workers, told)

    def pass_time(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += min(self.draining.turn(), 0.01)

    @property
    def left(self) -> int:
        return self.draining.progress().left


def test_clients_are_asked_away_so_many_a_second_and_nobody_is_let_in() -> None:
    rig = Rig(50)
    rig.pass_time(2)
    assert (rig.left, rig.draining.trouble, rig.entrance.refuses) == (50, "", False)
    rig.draining.begin(20, "use_another_server")
    assert (rig.draining.trouble != "", rig.entrance.refuses) == (True, True)
    rig.pass_time(1)
    assert 28 <= rig.left <= 31
    rig.pass_time(2)
    found = rig.draining.progress()
    assert (found.left, found.asked, found.draining, found.rate) == (0, 50, True, 20)
    assert found.seconds == pytest.approx(3, abs=0.2)
    assert all(one.link.closed for one in rig.entrance.clients)


@pytest.mark.parametrize(
    ("reason", "code"),
    [("use_another_server", rc.USE_ANOTHER_SERVER), ("server_shutting_down", rc.SERVER_SHUTTING_DOWN)],
)
def test_a_client_of_mqtt_5_is_told_why(reason: str, code: int) -> None:
    rig = Rig(1)
    [client] = rig.entrance.clients
    rig.draining.begin(100, reason)
    rig.pass_time(1)
    rig.entrance.harness.sync()
    client.link.flush()
    assert client.link.sent.endswith(encode_disconnect(5, code))


def test_who_has_something_to_read_before_the_end_is_asked_once() -> None:
    """A socket that nobody reads from is there for a while behind its DISCONNECT."""
    rig = Rig(3)
    asked: list[object] = []
    links = [Lasting(asked) for _ in range(3)]
    looks: list[float] = []

    def sockets() -> list[Any]:
        looks.append(rig.now_s)
        return list(links)

    rig.entrance.sockets = sockets  # type: ignore[method-assign]
    rig.draining.begin(1000, "use_another_server")
    rig.pass_time(3)
    assert sorted(map(id, asked)) == sorted(map(id, links))
    assert rig.draining.progress().asked == 3
    assert len(looks) <= 6  # there may be very many, who came in at other nodes
    rig.draining.begin(1000, "server_shutting_down")
    rig.pass_time(1)
    assert rig.draining.progress().asked == 3
    rig.draining.end()
    rig.draining.begin(1000, "use_another_server")
    rig.pass_time(1)
    assert (len(asked), rig.draining.progress().asked) == (6, 3)


def test_a_drain_that_is_undone_leaves_the_others_and_lets_clients_in() -> None:
    rig = Rig(50)
    rig.draining.begin(20, "use_another_server")
    rig.pass_time(1)
    rig.draining.end()
    left = rig.left
    rig.pass_time(5)
    assert (rig.left, rig.draining.trouble, rig.entrance.refuses) == (left, "", False)
    assert left > 0
    found = rig.draining.progress()
    assert (found.draining, found.rate, found.reason, found.seconds) == (False, 0, "", 0.0)
    rig.draining.begin(20, "use_another_server")
    assert rig.draining.progress().asked == 0


def test_what_was_slept_over_is_not_asked_at_once() -> None:
    rig = Rig(500)
    rig.draining.begin(100, "use_another_server")
    rig.draining.turn()
    rig.now_s += 60
    rig.draining.turn()
    assert rig.left >= 490


def test_another_rate_goes_on_with_the_same_drain() -> None:
    rig = Rig(100)
    rig.draining.begin(1, "use_another_server")
    rig.pass_time(1)
    rig.draining.begin(1000, "use_another_server")
    rig.pass_time(1)
    assert (rig.left, rig.draining.progress().asked) == (0, 100)


def test_other_workers_hear_of_it_and_share_the_rate(tmp_path: Path) -> None:
    told = tmp_path / "drain"
    one, other = Rig(50, 2, told), Rig(50, 2, told)
    one.draining.begin(20, "server_shutting_down")
    other.pass_time(2 * LOOK_S)
    assert other.entrance.refuses
    other.pass_time(2)
    assert 5 <= other.left <= 15  # of 50, behind 4 s
    again = Rig(5, 2, told)  # one that was started again
    again.pass_time(LOOK_S)
    assert again.draining.progress().reason == "server_shutting_down"
    told.unlink()  # somebody cleans up in /tmp
    again.pass_time(2 * LOOK_S)
    assert again.draining.trouble
    late = Rig(5, 2, told)  # and one is started again behind that
    late.pass_time(2 * LOOK_S)
    assert late.draining.trouble
    one.draining.end()
    for rig in (other, again, late):
        rig.pass_time(2 * LOOK_S)
        assert (rig.draining.trouble, rig.entrance.refuses) == ("", False)


def test_a_node_whose_disk_is_full_is_drained_and_let_in_again(tmp_path: Path) -> None:
    """What its workers hear of is written where there is room already; who starts again writes nothing over it."""
    told = tmp_path / "drain"
    one, other = Rig(1, 2, told), Rig(1, 2, told)
    other.pass_time(2 * LOOK_S)
    assert not other.draining.trouble
    before = (told.stat().st_ino, told.stat().st_blocks)
    assert told.read_bytes().isspace()
    one.draining.begin(10_000, "server_shutting_down")
    again = Rig(1, 2, told)
    for rig in (other, again):
        rig.pass_time(2 * LOOK_S)
        assert rig.draining.progress().reason == "server_shutting_down"
    again.draining.end()
    for rig in (one, other):
        rig.pass_time(2 * LOOK_S)
        assert not rig.draining.trouble
    assert (told.stat().st_ino, told.stat().st_blocks) == before
    assert [path.name for path in tmp_path.iterdir()] == ["drain"]


def test_nobody_is_asked_where_nothing_was_begun() -> None:
    rig = Rig(1)
    assert rig.draining.turn() == LOOK_S
    rig.draining.begin(5, "use_another_server")
    assert rig.draining.turn() == TURN_S
