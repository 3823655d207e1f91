"""What shards say of shared subscriptions, byte by byte: every frame comes back as it was, and nothing else is one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import message
from headrace.core.records.event import SubscriptionRow
from headrace.core.records.message import copy_of
from headrace.core.shards.group_frames import (
    DECODERS,
    DONE,
    ENDED,
    NOT_ALLOWED,
    Absent,
    Asked,
    Drawn,
    Enlisted,
    Enrol,
    Enrolled,
    Finished,
    Granted,
    Meet,
    Present,
    Settled,
    Welcome,
)
from headrace.core.shards.peer import Aside
from headrace.core.shards.peer_codec import decode
from headrace.errors import CorruptRecord

LARGEST = (1 << 63) - 1
FROM_CLIENT = (
    "0000000064656661756c74636c69656e74612f6278"  # the last reserved bytes, tenant, client id, topic, payload
)


def drawn() -> Drawn:
    published = message(qos=2)
    return Drawn(1, 2, 3, 4, 49152, 0x34, b"\x0b\x07", published.of_nobody(published.topic, published.flags))


def row(name: str, qos: int, as_published: bool = False, identifier: int = 0) -> SubscriptionRow:
    return SubscriptionRow(name, qos, False, as_published, 2, identifier)


def number(value: int) -> str:
    return value.to_bytes(8, "little").hex()


FRAMES: list[tuple[Aside, str]] = [
    (Welcome(7), "30" + number(7)),
    (Enrolled(LARGEST), "31" + number(LARGEST)),
    (
        drawn(),
        "32" + number(1) + number(2) + number(3) + number(4) + "00c0" + "34" + "0200" + "0b07"
        "35000000011200000" + "0e025dafe5b06000000000000000000ffffffff0700060003000000" + FROM_CLIENT,
    ),
    (Settled(3, 4), "33" + number(3) + number(4)),
    (Enrol(1, 2, ENDED, "", []), "34" + number(1) + number(2) + "0100"),
    (
        Enrol(5, 6, 0, "t", [row("$share/g/a", 1), row("$share/ü/#", 2, True, 9)]),
        "34"
        + number(5)
        + number(6)
        + "000174"
        + "01000000000a00"
        + b"$share/g/a".hex()
        + "06090000000b00"
        + "$share/ü/#".encode().hex(),
    ),
    (Enlisted(), "35"),
    (Present(1, 2, 3, 5, 0xFFFFFFFF), "36" + number(1) + number(2) + number(3) + "05ffffffff"),
    (Absent(1, 2), "37" + number(1) + number(2)),
    (Granted(1, 2, 3), "38" + number(1) + number(2) + number(3)),
    (
        Finished(1, 2, 3, 4, 5, 49153, DONE, 2),
        "39" + number(1) + number(2) + number(3) + number(4) + number(5) + "01c0" + "04",
    ),
    (
        Finished(1, 2, 3, 4, 5, 49153, NOT_ALLOWED, 1),
        "39" + number(1) + number(2) + number(3) + number(4) + number(5) + "01c0" + "02",
    ),
    (Asked(1), "3a" + number(1)),
    (Meet(), "3b"),
]


@pytest.mark.parametrize(("frame", "data"), FRAMES, ids=[type(frame).__name__ for frame, _ in FRAMES])
def test_frames_stay_what_they_are(frame: Aside, data: str) -> None:
    assert frame.encode().hex() == data
    found = decode(bytes.fromhex(data))
    assert type(found) is type(frame)
    assert found.encode().hex() == data


def test_every_kind_is_a_frame() -> None:
    assert {frame.encode()[0] for frame, _ in FRAMES} == set(DECODERS) == set(range(48, 60))


@pytest.mark.parametrize(("frame", "data"), FRAMES, ids=[type(frame).__name__ for frame, _ in FRAMES])
def test_cut_off_and_with_more_behind_it_is_refused(frame: Aside, data: str) -> None:
    whole = bytes.fromhex(data)
    for damaged in (whole[:-1], whole + b"x"):
        with pytest.raises(CorruptRecord):
            decode(damaged)


@pytest.mark.parametrize("kind", [0x30, 0x31, 0x3A])
def test_numbers_beyond_an_offset_are_refused(kind: int) -> None:
    with pytest.raises(CorruptRecord, match="is no offset"):
        decode(bytes([kind]) + (1 << 63).to_bytes(8, "little"))


def test_a_draw_is_of_a_message_and_of_nothing_else() -> None:
    frame = drawn()
    frame.message = copy_of(message(qos=1), 0, 1)
    with pytest.raises(CorruptRecord):
        decode(frame.encode())


@given(st.sampled_from(sorted(DECODERS)), st.binary(max_size=200))
def test_garbage_is_refused_or_a_frame(kind: int, rest: bytes) -> None:
    data = bytes([kind]) + rest
    try:
        found = decode(data)
    except CorruptRecord:
        return
    assert isinstance(found, Aside)
