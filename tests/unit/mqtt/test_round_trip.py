"""Whatever can be said survives the wire, in whatever pieces it comes; and no bytes do harm."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ProtocolError
from unit.mqtt import strategies
from unit.mqtt.wire import Client, Server, describe, encode, feed

STEPS = st.integers(1, 50) | st.just(1 << 20)


@given(st.data(), strategies.VERSIONS, STEPS)
def test_connect(data: st.DataObject, version: int, step: int) -> None:
    packet = data.draw(strategies.connects(version))
    side = Server()
    feed(side.protocol, encode(version, packet), step)
    assert side.handler.errors == []
    assert side.handler.events == [describe(packet)]
    assert side.protocol.version == version


@given(st.data(), strategies.VERSIONS, STEPS)
def test_stream_from_a_client(data: st.DataObject, version: int, step: int) -> None:
    packets = data.draw(st.lists(strategies.from_client(version), max_size=6))
    packets.append(data.draw(strategies.disconnects(version)))
    side = Server(version)
    feed(side.protocol, b"".join(encode(version, packet) for packet in packets), step)
    assert side.handler.errors == []
    assert side.handler.events == [describe(packet) for packet in packets]


@given(st.data(), strategies.VERSIONS, STEPS)
def test_stream_from_a_server(data: st.DataObject, version: int, step: int) -> None:
    packets = data.draw(st.lists(strategies.from_server(version), max_size=6))
    if version == 5:
        packets.append(data.draw(strategies.disconnects(version, True)))
    side = Client(version)
    feed(side.protocol, b"".join(encode(version, packet) for packet in packets), step)
    assert side.handler.errors == []
    assert side.handler.events == [describe(packet) for packet in packets]


@given(st.data(), strategies.VERSIONS, STEPS)
def test_connack(data: st.DataObject, version: int, step: int) -> None:
    packet = data.draw(strategies.connacks(version))
    side = Client(version, False)
    feed(side.protocol, encode(version, packet), step)
    assert side.handler.errors == []
    assert side.handler.events == [describe(packet)]


@given(strategies.auths(), STEPS, st.booleans())
def test_auth(packet: object, step: int, to_server: bool) -> None:
    side = Server(5, "m") if to_server else Client(5, True, "m")
    feed(side.protocol, encode(5, packet), step)
    assert side.handler.errors == []
    assert side.handler.events == [describe(packet)]


def outcome(side: Server | Client, data: bytes, step: int) -> tuple[list[object], list[tuple[int, bool]]]:
    feed(side.protocol, data, step)
    return side.handler.events, [(error.reason_code, error.silent) for error in side.handler.errors]


@settings(max_examples=300)
@given(st.data(), st.sampled_from([0, 3, 4, 5]))
def test_mutated_packets_are_read_or_refused_alike_in_any_pieces(data: st.DataObject, version: int) -> None:
    strategy = strategies.from_client(version) if version else strategies.connects(5)
    raw = bytearray(encode(version or 5, data.draw(strategy)))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    limit = 1 << 16
    events, errors = outcome(Server(version, limit=limit), bytes(raw), 1 << 20)
    assert len(errors) <= 1
    in_pieces, errors_in_pieces = outcome(
        Server(version, limit=limit), bytes(raw), data.draw(st.integers(1, 9))
    )
    assert in_pieces == events
    assert bool(errors_in_pieces) >= bool(errors)


@given(st.binary(max_size=200), st.sampled_from([0, 3, 4, 5]))
def test_noise_to_a_server(noise: bytes, version: int) -> None:
    side = Server(version, limit=1 << 16)
    side.protocol.receive_data(noise)
    assert len(side.handler.errors) <= 1
    assert all(isinstance(error, ProtocolError) for error in side.handler.errors)
    assert side.protocol.buffered <= len(noise)


@given(st.binary(max_size=200), strategies.VERSIONS, st.booleans())
def test_noise_to_a_client(noise: bytes, version: int, accepted: bool) -> None:
    side = Client(version, accepted)
    side.protocol.receive_data(noise)
    assert len(side.handler.errors) <= 1
