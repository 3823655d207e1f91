"""Events by their names: the constructors write the released bytes, and the properties read them."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from librt.strings import BytesWriter

from headrace.core.records.event import (
    SUBSCRIBED,
    UNSUBSCRIBED,
    BrokerStarted,
    Event,
    RetainedExpired,
    RetainedQueued,
    SessionClosed,
    SessionEnded,
    SessionName,
    SessionOpened,
    SessionResumed,
    Subscribed,
    SubscriptionRow,
    Unsubscribed,
    WillCancelled,
    WillFired,
    event_of,
    will_fields,
    will_from,
)
from headrace.core.records.message import decode_record
from headrace.errors import CorruptRecord
from headrace.mqtt.packets import Will

ROWS = json.loads((Path(__file__).parents[3] / "vectors/records/format_1.json").read_text(encoding="utf-8"))
VECTORS = {row["name"]: bytes.fromhex(row["hex"]) for row in ROWS if row["kind"] == "event"}
AT = 1_795_236_618_814_010
BARE = SessionName(12)
NAMED = SessionName(12, "default", "device-1")
SITE = SubscriptionRow("site/#", 1, False, True, 0, 9)
WRITTEN: dict[str, Event] = {
    "broker started": BrokerStarted.at(AT),
    "session opened": SessionOpened.at(AT, "default", "sensor-1", 1, 0xFFFFFFFF, 5, None, 1024, None),
    "session resumed": SessionResumed.at(AT, BARE, 60, 4, None, 2048, None),
    "session closed": SessionClosed.at(AT, BARE, 60, 17, will_set=False),
    "session closed, by name and reason": SessionClosed.at(
        AT, NAMED, 60, 17, will_set=True, reason="keep alive timeout", reason_code=141
    ),
    "session ended": SessionEnded.at(AT, BARE, 0, "expired", -1),
    "session ended, by name and reason": SessionEnded.at(AT, NAMED, 3, "expired", -1),
    "subscribed": Subscribed.at(AT, BARE, [SITE], [5, 1, 9]),
    "unsubscribed": Unsubscribed.at(AT, BARE, ["site/#"]),
    "will fired": WillFired.at(AT, BARE),
    "will cancelled": WillCancelled.at(AT, BARE),
    "retained expired": RetainedExpired.at(AT, "default", "site/1", 5),
}


def encoded(event: Event) -> bytes:
    out = BytesWriter()
    event.encode_into(out)
    return out.getvalue()


def read(event: Event) -> Event:
    """The event as it comes out of a journal."""
    found, _ = decode_record(encoded(event), 0)
    assert isinstance(found, Event)
    return found


@pytest.mark.parametrize("name", WRITTEN)
def test_a_constructor_writes_the_released_bytes(name: str) -> None:
    assert encoded(WRITTEN[name]) == VECTORS[name]
    assert type(read(WRITTEN[name])) is type(WRITTEN[name])


def test_every_released_event_has_its_constructor() -> None:
    """All but the page of retained messages, which has their sizes and the bytes of their payloads in it since."""
    assert set(VECTORS) - set(WRITTEN) == {"retained queued"}


def test_the_parts_that_need_not_be_there_have_their_places() -> None:
    """The order of the keys is part of the bytes."""
    will = Will("a/b", b"gone", 1, True, b"", 5, 60)
    will.user = "ada"
    events = {
        SessionOpened.at(AT, "t", "c", 0, 9, 5, will, 7, "ada"): "t c ty ex v w lim u",
        SessionResumed.at(AT, NAMED, 9, 5, will, 7, "ada"): "inc t c ex v w lim u",
        SessionClosed.at(AT, NAMED, 9, 7, True, "gone", 4): "inc t c ex lim will reason code",
        SessionEnded.at(AT, NAMED, 3, "gone", 0): "inc t c dropped reason code",
        Subscribed.at(AT, NAMED, [SITE]): "inc t c subs",
        Subscribed.at(AT, NAMED, [SITE], [], []): "inc t c subs ret rs",
        Subscribed.at(AT, NAMED, [SITE], [5, 1, 0], [80], [70]): "inc t c subs ret rs rp",
        RetainedQueued.at(AT, BARE, [5, 1, 0], [80], [70]): "inc ret rs rp",
    }
    for event, keys in events.items():
        assert list(event.fields) == keys.split()
        assert encoded(read(event)) == encoded(event)


def test_who_connects_is_read_by_names() -> None:
    will = Will("a/b", b"gone", 2, True, b"\x01\x01", 30, 90)
    will.user = "ada"
    opened = read(SessionOpened.at(AT, "plant", "c", 1, 9, 5, will, 64, "ada"))
    assert isinstance(opened, SessionOpened)
    opened.offset = 70
    assert (opened.incarnation, opened.tenant, opened.client_id) == (70, "plant", "c")
    assert (opened.session_type, opened.expiry_s, opened.version) == (1, 9, 5)
    assert (opened.sent_limit, opened.user) == (64, "ada")
    assert will_fields(opened.will) == ["a/b", b"gone", 2, True, b"\x01\x01", 30, 90, "ada"]
    resumed = read(SessionResumed.at(AT, NAMED, 9, 4, None, 64, None))
    assert isinstance(resumed, SessionResumed)
    assert (resumed.incarnation, resumed.tenant, resumed.client_id) == (12, "default", "device-1")
    assert (resumed.will, resumed.user) == (None, None)


def test_who_leaves_is_read_by_names() -> None:
    closed = read(SessionClosed.at(AT, NAMED, 60, 17, True, "keep alive timeout", 141))
    assert isinstance(closed, SessionClosed)
    assert (closed.expiry_s, closed.sent_limit, closed.will_set) == (60, 17, True)
    assert (closed.reason, closed.reason_code) == ("keep alive timeout", 141)
    ended = read(SessionEnded.at(AT, BARE, 0, "expired", -1))
    assert isinstance(ended, SessionEnded)
    assert (ended.tenant, ended.client_id) == (None, None)
    assert (ended.reason, ended.reason_code, ended.dropped) == ("expired", None, None)


def test_subscriptions_and_what_they_queue_are_read_by_names() -> None:
    subscribed = read(Subscribed.at(AT, NAMED, [SITE], [5, 1, 9, 6, 2, 0], [80, 90], [70, 0]))
    assert isinstance(subscribed, Subscribed)
    assert subscribed.subscriptions == [SITE]
    assert (subscribed.retained, subscribed.sizes) == ([5, 1, 9, 6, 2, 0], [80, 90])
    assert subscribed.payloads == [70, 0]
    rest = subscribed.without(1)
    assert isinstance(rest, Subscribed)
    assert (rest.retained, rest.sizes, rest.subscriptions) == ([6, 2, 0], [90], [SITE])
    assert rest.payloads == [0]
    assert subscribed.retained == [5, 1, 9, 6, 2, 0]
    early = read(Subscribed.at(AT, BARE, [SITE], [5, 1, 9]))
    assert isinstance(early, Subscribed)
    assert (early.sizes, early.payloads) == ([0], [])
    unsubscribed = read(Unsubscribed.at(AT, NAMED, ["a", "b/#"]))
    assert isinstance(unsubscribed, Unsubscribed)
    assert unsubscribed.filters == ["a", "b/#"]
    expired = read(RetainedExpired.at(AT, "plant", "a/b", 7))
    assert isinstance(expired, RetainedExpired)
    assert (expired.tenant, expired.topic, expired.message_offset) == ("plant", "a/b", 7)


def test_what_a_later_version_wrote_is_kept() -> None:
    later = event_of(SUBSCRIBED, AT, {"inc": 12, "later": [1], "subs": []})
    found = read(later)
    assert isinstance(found, Subscribed)
    assert found.without(0).fields["later"] == [1]
    unknown = read(Event(99, AT, {"inc": 12, "later": b"x"}))
    assert type(unknown) is Event
    assert (unknown.subkind, unknown.fields) == (99, {"inc": 12, "later": b"x"})


@pytest.mark.parametrize(
    ("event", "name"),
    [
        (event_of(SUBSCRIBED, AT, {"inc": 12}), "subscriptions"),
        (event_of(SUBSCRIBED, AT, {"inc": 12, "subs": [["a", 1, False, False, 0]]}), "subscriptions"),
        (event_of(SUBSCRIBED, AT, {"inc": "12", "subs": []}), "incarnation"),
        (event_of(UNSUBSCRIBED, AT, {"inc": 12, "f": "a"}), "filters"),
        (SessionOpened(2, AT, {"c": "device-1"}), "tenant"),
        (SessionClosed(4, AT, {"inc": 12, "reason": 5}), "reason"),
    ],
)
def test_a_field_that_is_missing_or_something_else_is_refused(event: Event, name: str) -> None:
    with pytest.raises(CorruptRecord, match=r"event \d+|a subscription"):
        getattr(read(event), name)


def test_a_will_goes_there_and_back() -> None:
    for user in (None, "ada"):
        will = Will("a/b", b"gone", 1, True, b"\x01\x01", 5, 60)
        will.user = user
        fields = will_fields(will)
        found = will_from(msgspec.msgpack.decode(msgspec.msgpack.encode(fields)))
        assert will_fields(found) == fields
    assert will_from(None) is None
    assert will_from(["a/b", b"gone"]) is None
