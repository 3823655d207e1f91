"""What was in flight when the line was cut comes back: the unacknowledged ones, all of them
and no others, with DUP and the same packet id, in order, before the backlog (O3, P4).

One broker serves them all, killed and restarted on the way: what one test leaves behind must not disturb another.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker_process import BrokerProcess
from e2e.raw import RawClient
from e2e.wire import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, RECEIVE_MAXIMUM, SESSION_EXPIRY, Packet

Clients = Callable[..., RawClient]
CUTS = pytest.mark.parametrize("cut", ["end of stream", "reset", "takeover", "SIGTERM", "SIGKILL"])
KEEP = {"clean": False, "properties": {SESSION_EXPIRY: 600, RECEIVE_MAXIMUM: 20}}


def cut_line(cut: str, broker: BrokerProcess, client: RawClient) -> None:
    """Cuts after the broker has read, and with a later record made durable, all that the client sent."""
    with RawClient(broker.address, "barrier") as barrier:
        barrier.connect()
        barrier.deliver("barrier", b"", 1)
    if cut == "end of stream":
        client.leave()
    elif cut == "reset":
        client.abort()
    elif cut == "SIGTERM":
        broker.restart()
    elif cut == "SIGKILL":
        broker.crash()
    else:
        assert cut == "takeover"  # the next CONNECT does it


def summary(packets: list[Packet]) -> list[tuple[bytes, int, bool]]:
    return [(one.payload, one.packet_id, one.dup) for one in packets]


@pytest.mark.slow
@CUTS
@pytest.mark.parametrize("version", [4, 5])
def test_out_of_order_acks_then_a_cut(
    broker: BrokerProcess, clients: Clients, name: str, cut: str, version: int
) -> None:
    """5 before 3: the offset does not jump because a later ack came earlier."""
    keep = KEEP if version == 5 else {"clean": False}
    client = clients(broker, name, version, **keep)
    client.subscribe(name, qos=1)
    publisher = clients(broker)
    publisher.deliver_many(name, range(12))
    sent = [client.expect(PUBLISH) for _ in range(12)]
    for number in (5, 1, 10, 7):
        client.ack(PUBACK, sent[number].packet_id)
    assert client.ping() == []
    cut_line(cut, broker, client)
    if cut == "takeover":
        again = clients(broker, name, version, **keep)
        clients(broker).deliver_many(name, range(12, 30))
    else:
        clients(broker).deliver_many(name, range(12, 30))
        again = clients(broker, name, version, **keep)
    assert again.connack.session_present
    unacked = [number for number in range(12) if number not in (5, 1, 10, 7)]
    back = [again.receive() for _ in unacked]
    assert summary(back) == [(sent[n].payload, sent[n].packet_id, True) for n in unacked]
    backlog = [again.receive() for _ in range(18)]
    assert [int(one.payload) for one in backlog] == list(range(12, 30))
    if cut != "SIGKILL":  # after a kill, DUP may be set on what may have been sent
        assert not any(one.dup for one in backlog)
    assert again.ping() == []


@pytest.mark.slow
@CUTS
def test_again_and_again(broker: BrokerProcess, clients: Clients, name: str, cut: str) -> None:
    """A message that is never acknowledged comes back after every cut, once, under one id."""
    client = clients(broker, name, 4, clean=False)
    client.subscribe(name, qos=1)
    client.deliver(name, b"stubborn")
    first = client.expect(PUBLISH)
    for _ in range(3):
        cut_line(cut, broker, client)
        client = clients(broker, name, 4, clean=False)
        assert summary([client.expect(PUBLISH)]) == [(b"stubborn", first.packet_id, True)]
        assert client.ping() == []
    client.ack(PUBACK, first.packet_id)
    client.ping()
    cut_line(cut, broker, client)
    client = clients(broker, name, 4, clean=False)
    client.deliver(name, b"next")
    assert client.receive().payload == b"next"


@CUTS
def test_qos_2_states_come_back(broker: BrokerProcess, clients: Clients, name: str, cut: str) -> None:
    """One message in each state: sent, PUBREC sent, PUBREC sent and PUBREL seen, completed."""
    client = clients(broker, name, 4, clean=False)
    client.subscribe(name, qos=2)
    publisher = clients(broker)
    publisher.deliver_many(name, range(4), qos=2)
    sent = [client.expect(PUBLISH) for _ in range(4)]
    ids = [one.packet_id for one in sent]
    for number in (1, 2, 3):
        client.ack(PUBREC, ids[number])
        client.expect_ack(PUBREL, ids[number])
    client.ack(PUBCOMP, ids[3])
    assert client.ping() == []
    cut_line(cut, broker, client)
    client = clients(broker, name, 4, clean=False)
    back = [client.expect_any(PUBLISH, PUBREL) for _ in range(3)]
    assert [(one.kind, one.packet_id) for one in back if one.kind == PUBREL] == [
        (PUBREL, ids[1]),
        (PUBREL, ids[2]),
    ]
    assert summary([one for one in back if one.kind == PUBLISH]) == [(b"0", ids[0], True)]
    for packet_id in ids[1:3]:
        client.ack(PUBCOMP, packet_id)
    client.ack(PUBREC, ids[0])
    client.expect_ack(PUBREL, ids[0])
    client.ack(PUBCOMP, ids[0])
    client.deliver(name, b"next", 2)
    assert client.receive().payload == b"next"
    assert client.ping() == []


@CUTS
def test_a_smaller_window_on_return(broker: BrokerProcess, clients: Clients, name: str, cut: str) -> None:
    """Twenty were in flight, the client now allows three: it gets them by threes, still in order."""
    client = clients(broker, name, 5, **KEEP)
    client.subscribe(name, qos=1)
    clients(broker).deliver_many(name, range(30))
    sent = [client.expect(PUBLISH) for _ in range(20)]
    assert client.ping() == []
    cut_line(cut, broker, client)
    properties = {SESSION_EXPIRY: 600, RECEIVE_MAXIMUM: 3}
    client = clients(broker, name, 5, clean=False, properties=properties)
    got: list[Packet] = []
    while len(got) < 30:
        three = [client.expect(PUBLISH) for _ in range(min(3, 30 - len(got)))]
        assert client.ping() == [], "more than the Receive Maximum"
        for one in three:
            client.ack(PUBACK, one.packet_id)
        got += three
    assert summary(got[:20]) == [(one.payload, one.packet_id, True) for one in sent]
    assert [int(one.payload) for one in got] == list(range(30))


@CUTS
def test_qos_0_is_not_repeated(broker: BrokerProcess, clients: Clients, name: str, cut: str) -> None:
    client = clients(broker, name, 4, clean=False)
    client.subscribe((name, 1), (f"{name}/zero", 0))
    client.deliver(f"{name}/zero", b"zero", 1)
    assert client.receive().qos == 0
    cut_line(cut, broker, client)
    client = clients(broker, name, 4, clean=False)
    client.deliver(name, b"next")
    assert client.receive().payload == b"next"


def test_a_clean_session_leaves_nothing_in_flight(broker: BrokerProcess, clients: Clients, name: str) -> None:
    client = clients(broker, name, 4, clean=False)
    client.subscribe(name, qos=1)
    client.deliver(name, b"old")
    client.expect(PUBLISH)
    client.leave()
    client = clients(broker, name, 4, clean=True)
    client.subscribe(name, qos=1)
    client.deliver(name, b"new")
    found = client.receive()
    assert (found.payload, found.dup) == (b"new", False)
