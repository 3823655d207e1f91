"""The server's side: what it tells the handler, and what it answers to a refusal."""

from __future__ import annotations

import pytest

from headrace.errors import ProtocolError
from headrace.mqtt import codec, states
from headrace.mqtt.packets import Connect, Disconnect, Subscribe, SubscriptionRequest, Unsubscribe
from headrace.mqtt.properties import Properties
from headrace.mqtt.protocol import ServerHandler, ServerProtocol
from headrace.stream import MORE, WHOLE
from unit.mqtt.wire import Server, ServerRecorder, feed, method


@pytest.mark.parametrize("version", [3, 4, 5])
def test_the_version_is_known_after_connect(version: int) -> None:
    side = Server()
    assert side.protocol.version == 0
    side.protocol.receive_data(codec.encode_connect(Connect(version, "a")))
    assert side.protocol.version == version
    assert side.protocol.state == states.CONNECTED


def test_packets_behind_connect_need_not_wait_for_connack() -> None:
    side = Server()
    side.protocol.receive_data(codec.encode_connect(Connect(4, "a")) + b"\xc0\x00")
    assert len(side.handler.events) == 2


def test_an_authentication_lasts_until_it_is_said_to_be_over() -> None:
    side = Server()
    side.protocol.receive_data(codec.encode_connect(Connect(5, "a", properties=method(5, "m"))))
    assert side.protocol.state == states.AUTHENTICATING
    auth = codec.encode_auth(0x18, method(5, "m"))
    side.protocol.receive_data(auth)
    side.protocol.authenticated()
    side.protocol.receive_data(auth + b"\xc0\x00")
    assert len(side.handler.events) == 4
    assert side.handler.errors == []


def test_authenticated_changes_nothing_else() -> None:
    side = Server(5)
    side.protocol.authenticated()
    assert side.protocol.state == states.CONNECTED


@pytest.mark.parametrize(
    ("expiry", "later", "code"), [(None, 1, 0x82), (0, 1, 0x82), (5, 1, 0), (5, 0, 0), (None, 0, 0)]
)
def test_session_expiry_in_disconnect(expiry: int | None, later: int, code: int) -> None:
    connect, disconnect = Properties(), Properties()
    connect.session_expiry_interval = expiry
    disconnect.session_expiry_interval = later
    side = Server()
    side.protocol.receive_data(codec.encode_connect(Connect(5, "a", properties=connect)))
    side.protocol.receive_data(codec.encode_disconnect(5, 0, disconnect))
    assert side.code == code


ANSWERS = [
    (5, True, ProtocolError(0x82, ""), "e00182"),
    (5, False, ProtocolError(0x87, ""), "2003008700"),
    (4, True, ProtocolError(0x82, ""), ""),
    (4, False, ProtocolError(0x85, "", 2), "20020002"),
    (4, False, ProtocolError(0x81, ""), ""),
    (3, False, ProtocolError(0x87, "", 5), "20020005"),
    (5, True, ProtocolError(0x81, "", silent=True), ""),
    (0, False, ProtocolError(0x82, ""), ""),
    (0, False, ProtocolError(0x84, ""), "2003008400"),
    (0, False, ProtocolError(0x84, "", 1), "20020001"),
]


@pytest.mark.parametrize(("version", "connack_sent", "error", "answer"), ANSWERS)
def test_refusal(version: int, connack_sent: bool, error: ProtocolError, answer: str) -> None:
    protocol = Server(version).protocol
    assert protocol.refusal(error, connack_sent).hex() == answer


def test_a_handler_needs_only_the_methods_it_uses() -> None:
    protocol = ServerProtocol(ServerHandler(), 1 << 20, 0)
    protocol.receive_data(codec.encode_connect(Connect(5, "a", properties=method(5, "m"))))
    protocol.authenticated()
    protocol.receive_data(codec.encode_auth(0x19, method(5, "m")))
    protocol.receive_data(bytes.fromhex("3004000161 00".replace(" ", "")))
    protocol.receive_data(bytes.fromhex("82070001000001610040020001a206000100000161c000e000"))
    assert protocol.state == states.CLOSED


def test_the_will_is_left_to_the_handler() -> None:
    side = Server(5)
    side.protocol.receive_data(codec.encode_disconnect(5, 4))
    assert side.handler.events == [("Disconnect", {"reason_code": 4, "properties": {}})]
    assert Disconnect(4, Properties()).reason_code == 4


FILTERS = [SubscriptionRequest(f"f/{number}", number % 3) for number in range(100)]


class Parts(ServerRecorder):
    """Keeps the parts as they come, and writes something on the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[Subscribe | Unsubscribe] = []

    def on_subscribe(self, packet: Subscribe) -> None:
        packet.answer = packet.answer or "of the first part"
        self.parts.append(packet)

    def on_unsubscribe(self, packet: Unsubscribe) -> None:
        packet.answer = packet.answer or "of the first part"
        self.parts.append(packet)


@pytest.mark.parametrize("step", [1, 7, 100_000])
@pytest.mark.parametrize("leaving", [False, True])
def test_a_packet_with_many_filters_is_handled_in_parts(step: int, leaving: bool) -> None:
    handler = Parts()
    protocol = ServerProtocol(handler, 1 << 20, 0)
    protocol.receive_data(codec.encode_connect(Connect(4, "a")))
    protocol.packets_at_once = 64
    handler.events.clear()
    names = [request.filter for request in FILTERS]
    packet = codec.encode_unsubscribe(4, 9, names) if leaving else codec.encode_subscribe(4, 9, FILTERS)
    protocol.receive_data(packet)
    feed(protocol, codec.PINGREQ * 3, step)
    calls = 1
    while protocol.outcome == MORE:
        assert (len(handler.parts), handler.events) == (calls, [])
        protocol.parse_on()
        calls += 1
    assert [len(part.filters) for part in handler.parts] == [32, 32, 32, 4]
    assert [part.more for part in handler.parts] == [True, True, True, False]
    assert {(part.packet_id, part.answer) for part in handler.parts} == {(9, "of the first part")}
    assert [_name(found) for part in handler.parts for found in part.filters] == names
    assert handler.events == [(12, 0, 0)] * 3


def _name(found: SubscriptionRequest | str) -> str:
    return found if isinstance(found, str) else found.filter


def test_what_is_wrong_in_a_later_part_undoes_nothing_and_is_the_end() -> None:
    side = Server(5)
    side.protocol.packets_at_once = 64
    packet = codec.encode_subscribe(5, 9, [*FILTERS[:40], SubscriptionRequest("a/#/b", 0)])
    side.protocol.receive_data(packet + codec.PINGREQ)
    assert (len(side.handler.events), side.protocol.outcome) == (1, MORE)
    side.protocol.parse_on()
    assert (side.code, side.protocol.outcome) == (0x81, WHOLE)
    side.protocol.parse_on()
    assert len(side.handler.events) == 1


def test_parts_wait_while_the_stream_is_held() -> None:
    side = Server(4)
    side.protocol.packets_at_once = 64
    side.protocol.receive_data(codec.encode_subscribe(4, 9, FILTERS))
    side.protocol.hold()
    side.protocol.receive_data(codec.PINGREQ)
    seen = len(side.handler.events)
    side.protocol.release()
    assert len(side.handler.events) == seen + 1
    while side.protocol.outcome == MORE:
        side.protocol.parse_on()
    assert side.handler.events[-1] == (12, 0, 0)
    assert len(side.handler.events) == 5
