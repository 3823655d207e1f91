"""What a publisher of `headrace bench` sends, how much of it, and how its acknowledgements are counted."""

from __future__ import annotations

import struct

import pytest

from headrace.clients.load import Turn
from headrace.clients.publisher import Publisher
from headrace.clients.tally import Tally
from headrace.mqtt import codec
from headrace.mqtt.packets import Connect
from unit.clients.load_peers import Later, connected


def publisher_of(tally: Tally, qos: int = 1, window: int = 3, version: int = 4) -> Publisher:
    return Publisher(tally, Turn(Later().call_soon), Connect(version, "p"), "t", qos, 0, window, b"xyz")


def sent(publisher: Publisher) -> bytes:
    """What waits in its output, taken out."""
    waiting = publisher.out.getvalue()
    publisher.out.truncate(0)
    return waiting


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_is_what_the_codec_makes_of_it(qos: int, version: int) -> None:
    publisher = publisher_of(Tally(1), qos, version=version)
    publisher.clock = lambda: 5
    publisher.send(2)
    expected = [
        codec.encode_publish(
            version, b"t", struct.pack(">QII", 5, 0, sequence) + b"xyz", qos, False, False, qos and sequence + 1
        )
        for sequence in range(2)
    ]  # fmt: skip
    assert sent(publisher) == b"".join(expected)


def test_it_waits_to_be_told_then_keeps_its_window_full_and_stops_when_told() -> None:
    tally = Tally(1)
    publisher = publisher_of(tally)
    connected(publisher)
    publisher.answer()
    assert tally.sent == 0
    publisher.fill()
    assert (tally.sent, publisher.unacked.count) == (3, 3)
    publisher.on_puback(2, 0)
    publisher.answer()
    assert (tally.sent, tally.acked) == (4, 1)
    tally.stopping = True
    publisher.on_puback(1, 0)
    publisher.answer()
    assert (tally.sent, tally.acked) == (4, 2)


def test_with_a_budget_it_stops_there() -> None:
    tally = Tally(1)
    publisher = publisher_of(tally)
    publisher.left = 4
    publisher.fill()
    publisher.on_puback(1, 0)
    publisher.on_puback(2, 0)
    publisher.fill()
    publisher.fill()
    assert (tally.sent, tally.acked, publisher.unacked.count, publisher.left) == (4, 2, 2, 0)


def test_packet_ids_begin_again_at_one_and_every_acknowledgement_finds_its_message() -> None:
    tally = Tally(1)
    publisher = publisher_of(tally, window=2)
    tally.measuring = True
    for _ in range(32_768):
        publisher.fill()
        last = (int(publisher.serial) - 1) % 65_535 + 1
        publisher.on_puback(last, 0)
        publisher.on_puback((last - 2) % 65_535 + 1, 0)
        assert publisher.unacked.count == 0
    sent(publisher)
    publisher.fill()
    assert struct.unpack_from(">H", sent(publisher), 5) == (2,)
    assert tally.acknowledgement.total == tally.acked == 65_536


def test_qos_2_takes_both_steps() -> None:
    tally = Tally(1)
    publisher = publisher_of(tally, qos=2, window=1)
    publisher.fill()
    sent(publisher)
    publisher.on_pubrec(1, 0)
    assert (sent(publisher), tally.acked) == (codec.encode_pubrel(4, 1), 0)
    publisher.on_pubcomp(1, 0)
    assert (tally.acked, publisher.unacked.count) == (1, 0)
