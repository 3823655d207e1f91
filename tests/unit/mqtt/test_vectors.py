"""The golden table, fed three ways: every row is decoded, encoded or refused as it says."""

from __future__ import annotations

import pytest

from unit.mqtt.wire import Client, Server, describe, encode, feed
from vectors.mqtt import refused, valid
from vectors.mqtt.refused import Refused
from vectors.mqtt.valid import Valid

WHOLE = 1 << 20


def receiver(row: Valid) -> Server | Client:
    """The side that gets this row, in the state in which the row belongs."""
    auth_method = "m" if row in valid.AUTH else None
    if row.sender == valid.CLIENT:
        return Server(0 if row in valid.CONNECT else row.version, auth_method)
    return Client(row.version, row not in valid.CONNACK, auth_method)


@pytest.mark.parametrize("step", [WHOLE, 1, 7], ids=["whole", "byte by byte", "by seven"])
@pytest.mark.parametrize("row", valid.ALL, ids=str)
def test_decode(row: Valid, step: int) -> None:
    side = receiver(row)
    feed(side.protocol, row.data, step)
    assert side.handler.errors == []
    assert side.handler.events == [describe(row.packet)]
    assert side.protocol.buffered == 0


@pytest.mark.parametrize("row", [*valid.CONNECTED, *valid.CONNECT[:-2], valid.CONNECT[-1]], ids=str)
def test_decode_with_more_behind_it(row: Valid) -> None:
    side = receiver(row)
    tail = b"\x40\x02\x00\x09\x40"
    side.protocol.receive_data(row.data + tail)
    assert side.handler.errors == []
    assert side.handler.events == [describe(row.packet), (4, 9, 0)]
    assert side.protocol.buffered == 1


@pytest.mark.parametrize("row", valid.LAST, ids=str)
def test_nothing_is_read_behind_a_disconnect(row: Valid) -> None:
    side = receiver(row)
    side.protocol.receive_data(row.data + b"\x40\x02\x00\x09")
    side.protocol.receive_data(b"\x00\x00")
    assert side.handler.events == [describe(row.packet)]
    assert side.handler.errors == []


@pytest.mark.parametrize("row", [row for row in valid.ALL if row.canonical], ids=str)
def test_encode(row: Valid) -> None:
    assert encode(row.version, row.packet).hex() == row.data.hex()


@pytest.mark.parametrize("step", [WHOLE, 1, 3], ids=["whole", "byte by byte", "by three"])
@pytest.mark.parametrize("row", refused.ALL, ids=str)
def test_refuse(row: Refused, step: int) -> None:
    side = Server(row.connected, row.auth_method, row.limit)
    feed(side.protocol, row.data, step)
    assert len(side.handler.errors) == 1, side.handler.events
    if step == WHOLE or not row.early:
        assert f"{side.code:02x}" == f"{row.code:02x}", side.handler.errors[0]
        assert side.answer.hex() == row.answer_data.hex()


@pytest.mark.parametrize("row", refused.ALL, ids=str)
def test_nothing_is_read_behind_a_refusal(row: Refused) -> None:
    side = Server(row.connected, row.auth_method, row.limit)
    side.protocol.receive_data(row.data + b"\xc0\x00" * 3)
    before = list(side.handler.events)
    side.protocol.receive_data(b"\xc0\x00\xc0")
    assert side.handler.events == before
    assert len(side.handler.errors) == 1
    assert side.protocol.buffered == 0


@pytest.mark.parametrize("row", valid.ALL, ids=str)
def test_every_cut_of_a_packet_waits_for_the_rest(row: Valid) -> None:
    if len(row.data) > 300:
        pytest.skip("long only to be long")
    for cut in range(1, len(row.data)):
        side = receiver(row)
        side.protocol.receive_data(row.data[:cut])
        assert side.handler.events == []
        assert side.handler.errors == []
        assert side.protocol.buffered == cut
