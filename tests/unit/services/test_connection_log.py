"""How connections and sessions begin and end, in the log: which events, with what, and how many lines of them."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.peer import Peer
from harness import Harness
from headrace.core.ports.settings import BrokerSettings
from headrace.services.audit import INTERVAL_S, LINES_MAX, Audit
from headrace.services.connection_log import ConnectionLog


class Log:
    """A harness whose broker writes here."""

    def __init__(self, settings: BrokerSettings | None = None) -> None:
        self.failures: list[tuple[str, dict[str, Any]]] = []
        self.news: list[tuple[str, dict[str, Any]]] = []
        self.now = 0.0
        self.harness = Harness(settings)
        self.audit = Audit(
            lambda event, **more: self.failures.append((event, more)),
            clock=lambda: self.now,
            tell_news=lambda event, **more: self.news.append((event, more)),
        )
        self.harness.worker.testimony.witness = ConnectionLog(self.audit)

    def events(self) -> list[str]:
        return [event for event, _ in self.news]


def test_a_life_in_four_lines() -> None:
    log = Log()
    first = Peer(log.harness, "c", clean=False, session_expiry_interval=60)
    second = Peer(log.harness, "c", clean=False, session_expiry_interval=60)
    assert log.events() == ["connected", "taken over"]
    assert log.news[0][1] == {
        "client": "c",
        "address": "memory",
        "version": "5.0",
        "keep_alive_s": "0",
        "session": "new",
    }
    log.now += INTERVAL_S
    second.lose()
    assert log.news[-1][0] == "disconnected"
    assert log.news[-1][1] | {"address": ""} == {
        "client": "c",
        "reason": "connection lost",
        "address": "",
        "session": "kept",
    }
    log.harness.advance(61)
    log.harness.sync()
    assert log.news[-1] == ("session ended", {"client": "c", "reason": "expired"})
    assert log.harness.broker.sessions.absences.expired == 1
    assert not log.failures
    assert first.link.closed


def test_a_session_that_ends_with_its_connection_takes_no_line_of_its_own() -> None:
    log = Log()
    Peer(log.harness, "c").lose()
    assert log.events() == ["connected", "disconnected"]
    assert log.news[-1][1]["session"] == "ended"


def test_who_is_refused_is_told_with_the_reason() -> None:
    settings = BrokerSettings()
    settings.allow_anonymous = False
    log = Log(settings)
    Peer(log.harness, "c")
    assert log.failures == [
        ("refused", {"reason": "not_authorized", "source": "memory", "client": "c", "address": "memory"})
    ]
    counters = log.harness.broker.fold.tenant("default").counters
    assert counters.refused == {("connect", 0x87): 1}


def test_what_is_refused_of_those_who_are_in() -> None:
    settings = BrokerSettings()
    settings.filter_levels_max = 2
    log = Log(settings)
    peer = Peer(log.harness, "c")
    peer.publish("$SYS/x", b"1", 1)
    peer.subscribe("a/b/c")
    told = [(event, more["topic"], more["reason"]) for event, more in log.failures]
    assert told == [
        ("publish rejected", "$SYS/x", "not_authorized"),
        ("subscribe rejected", "a/b/c", "quota_exceeded"),
    ]
    counters = log.harness.broker.fold.tenant("default").counters
    assert counters.refused == {("publish", 0x87): 1, ("subscribe", 0x97): 1}


def test_a_storm_of_clients_is_a_bounded_number_of_lines() -> None:
    log = Log()
    for number in range(3 * LINES_MAX):
        Peer(log.harness, f"c{number}")
    assert len(log.news) == LINES_MAX
    log.now += INTERVAL_S
    log.audit.flush()
    assert log.news[LINES_MAX:] == [("connected", {"client": "others", "suppressed": 2 * LINES_MAX})]


def test_a_client_that_comes_and_goes_takes_a_line_of_a_kind() -> None:
    log = Log()
    for _ in range(5):
        Peer(log.harness, "flapping").lose()
    assert log.events() == ["connected", "disconnected"]
    log.now += INTERVAL_S
    log.audit.flush()
    assert log.news[2:] == [
        ("connected", {"client": "flapping", "suppressed": 4}),
        ("disconnected", {"client": "flapping", "suppressed": 4}),
    ]


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[2Jb", "\u202egnp", "x\\ny"])
def test_a_name_breaks_no_line(name: str) -> None:
    log = Log()
    Peer(log.harness, name)
    [(_, told)] = [*log.news, *log.failures]
    assert all(value.isprintable() for value in told.values())
    assert name not in told.values()


def test_a_witness_that_fails_costs_nobody_anything() -> None:
    log = Log()

    class Failing(ConnectionLog):
        def connected(self, *_: object) -> None:
            raise RuntimeError

    log.harness.worker.testimony.witness = Failing(log.audit)
    peer = Peer(log.harness, "c")
    peer.subscribe("t")
    assert log.harness.worker.failures.counts["log"] == 1
    assert log.harness.broker.sessions.connected == 1


def test_a_packet_that_is_too_large_is_told_with_its_size_and_the_limit() -> None:
    log = Log()
    Peer(log.harness, "c").publish("a", bytes(1 << 20), 1)
    ((event, more),) = log.failures
    assert (event, more["reason"], more["client"]) == ("packet rejected", "packet_too_large", "c")
    assert more["detail"].startswith("packet of 10485")
    assert more["detail"].endswith("bytes, 1048576 are accepted")


def test_who_says_itself_that_a_packet_was_too_large_is_no_failure_of_its_own() -> None:
    log = Log()
    Peer(log.harness, "c").send(b"\xe0\x02\x95\x00")
    assert (log.failures, log.events()[-1]) == ([], "disconnected")


def test_that_nothing_is_delayed_is_told_once_for_a_client() -> None:
    log = Log()
    monitor = Peer(log.harness, "m")
    monitor.subscribe("$delayed/#")
    peer = Peer(log.harness, "c")
    for qos in (0, 1, 1):
        log.now += INTERVAL_S
        peer.publish("$delayed/5/a", b"1", qos)
    assert [(event, more["client"], more["topic"]) for event, more in log.failures] == [
        ("publish not delayed", "c", "$delayed/5/a")
    ]
    assert len(monitor.publishes()) == 3
