"""Hypothesis strategies for every packet type of every version."""

from __future__ import annotations

from hypothesis import strategies as st

from headrace.mqtt import packets
from headrace.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
    Will,
)
from headrace.mqtt.properties import Properties
from headrace.mqtt.property_table import (
    BINARY,
    BIT,
    PAIRS,
    TABLE,
    TEXT,
    U16,
    U16_NONZERO,
    U32,
    VARINT_LIST,
    WILL,
)

VERSIONS = st.sampled_from([3, 4, 5])
QOS = st.integers(0, 2)
PACKET_IDS = st.integers(1, 65_535)
# Text of the wire: anything but U+0000 and surrogates.
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
# What names something is without control characters and non-characters, too.
NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc", "Cn"]), max_size=20)
LEVELS = st.text(st.characters(exclude_categories=["Cs", "Cc", "Cn"], exclude_characters="/+#"), max_size=6)
BYTES = st.binary(max_size=40)
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)


@st.composite
def topic_filters(draw: st.DrawFn) -> str:
    levels = draw(st.lists(LEVELS | st.just("+"), min_size=1, max_size=4))
    if draw(st.booleans()):
        levels.append("#")
    plain = "/".join(levels) or "+"
    if draw(st.booleans()):
        return "$share/" + draw(LEVELS.filter(bool)) + "/" + plain
    return plain if not plain.startswith("$share/") else "x" + plain


VALUES: dict[int, st.SearchStrategy[object]] = {
    BIT: st.integers(0, 1),
    U16: st.integers(0, 65_535),
    U16_NONZERO: st.integers(1, 65_535),
    U32: st.integers(0, 4_294_967_295),
    TEXT: TEXTS,
    BINARY: BYTES,
    PAIRS: st.lists(st.tuples(TEXTS, TEXTS), max_size=3),
    VARINT_LIST: st.lists(st.integers(1, 268_435_455), max_size=1),
}


def value_of(attribute: str, kind: int) -> st.SearchStrategy[object]:
    if attribute == "response_topic":
        return TOPICS
    return VALUES.get(kind, st.integers(1, 4_294_967_295))


@st.composite
def properties_for(draw: st.DrawFn, packet_type: int) -> Properties:
    found = Properties()
    for _, attribute, kind, allowed in TABLE:
        if allowed >> packet_type & 1 and draw(st.booleans()):
            setattr(found, attribute, draw(value_of(attribute, kind)))
    return found


@st.composite
def forwardable(draw: st.DrawFn, from_server: bool = False) -> bytes:
    """Properties of a PUBLISH that are handed on: no alias, no expiry."""
    found = draw(properties_for(packets.PUBLISH))
    found.topic_alias = None
    found.message_expiry_interval = None
    if not from_server:
        found.subscription_identifiers = []
    return found.encode()


@st.composite
def wills(draw: st.DrawFn, version: int) -> Will:
    will = Will(draw(TOPICS), draw(BYTES), draw(QOS), draw(st.booleans()))
    if version == 5:
        found = draw(properties_for(WILL))
        will.delay_s = found.will_delay_interval or 0
        if found.message_expiry_interval is not None:
            will.message_expiry_s = found.message_expiry_interval
        found.will_delay_interval = found.message_expiry_interval = None
        will.properties = found.encode()
    return will


@st.composite
def connects(draw: st.DrawFn, version: int) -> Connect:
    packet = Connect(version, draw(NAMES), draw(st.booleans()), draw(st.integers(0, 65_535)))
    packet.username = draw(st.none() | NAMES)
    if packet.username is not None or version == 5:
        packet.password = draw(st.none() | BYTES)
    packet.will = draw(st.none() | wills(version))
    packet.bridge = version != 5 and draw(st.booleans())
    if version == 5:
        packet.properties = draw(properties_for(packets.CONNECT))
        if packet.properties.authentication_method is None:
            packet.properties.authentication_data = None
    return packet


@st.composite
def publishes(draw: st.DrawFn, version: int, from_server: bool = False) -> Publish:
    qos = draw(QOS)
    return Publish(
        draw(TOPICS).encode(),
        qos,
        draw(st.booleans()),
        qos > 0 and draw(st.booleans()),
        draw(PACKET_IDS) if qos else 0,
        draw(forwardable(from_server)) if version == 5 else b"",
        draw(st.integers(-1, 4_294_967_295)) if version == 5 else -1,
        draw(BYTES),
    )


def acknowledgements(version: int) -> st.SearchStrategy[tuple[int, int, int]]:
    received = st.sampled_from([0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99] if version == 5 else [0])
    released = st.sampled_from([0, 0x92] if version == 5 else [0])
    return st.one_of(
        st.tuples(st.sampled_from([packets.PUBACK, packets.PUBREC]), PACKET_IDS, received),
        st.tuples(st.sampled_from([packets.PUBREL, packets.PUBCOMP]), PACKET_IDS, released),
    )


@st.composite
def requests(draw: st.DrawFn, version: int) -> SubscriptionRequest:
    topic_filter = draw(topic_filters())
    if version != 5:
        return SubscriptionRequest(topic_filter, draw(QOS))
    no_local = draw(st.booleans()) and not topic_filter.startswith("$share/")
    return SubscriptionRequest(topic_filter, draw(QOS), no_local, draw(st.booleans()), draw(QOS))


@st.composite
def subscribes(draw: st.DrawFn, version: int) -> Subscribe:
    found = draw(properties_for(packets.SUBSCRIBE)) if version == 5 else Properties()
    identifier = found.subscription_identifiers[0] if found.subscription_identifiers else 0
    return Subscribe(
        draw(PACKET_IDS), draw(st.lists(requests(version), min_size=1, max_size=4)), identifier, found
    )


@st.composite
def unsubscribes(draw: st.DrawFn, version: int) -> Unsubscribe:
    found = draw(properties_for(packets.UNSUBSCRIBE)) if version == 5 else Properties()
    return Unsubscribe(draw(PACKET_IDS), draw(st.lists(topic_filters(), min_size=1, max_size=4)), found)


@st.composite
def disconnects(draw: st.DrawFn, version: int, from_server: bool = False) -> Disconnect:
    if version != 5:
        return Disconnect(0, Properties())
    found = draw(properties_for(packets.DISCONNECT))
    if found.session_expiry_interval and not from_server:
        found.session_expiry_interval = 0
    return Disconnect(draw(st.sampled_from([0, 4, 0x80, 0x82, 0x8E, 0x9D])), found)


@st.composite
def connacks(draw: st.DrawFn, version: int) -> Connack:
    if version != 5:
        return Connack(draw(st.booleans()), 0, Properties())
    code = draw(st.sampled_from([0, 0x80, 0x87, 0x9F]))
    return Connack(code == 0 and draw(st.booleans()), code, draw(properties_for(packets.CONNACK)))


@st.composite
def subacks(draw: st.DrawFn, version: int) -> Suback:
    codes = [0, 1, 2, 0x80, *([0x87, 0x8F, 0xA2] if version == 5 else [])]
    found = draw(properties_for(packets.SUBACK)) if version == 5 else Properties()
    return Suback(
        draw(PACKET_IDS), bytes(draw(st.lists(st.sampled_from(codes), min_size=1, max_size=5))), found
    )


@st.composite
def unsubacks(draw: st.DrawFn, version: int) -> Unsuback:
    if version != 5:
        return Unsuback(draw(PACKET_IDS), b"", Properties())
    codes = draw(st.lists(st.sampled_from([0, 0x11, 0x80, 0x87]), min_size=1, max_size=5))
    return Unsuback(draw(PACKET_IDS), bytes(codes), draw(properties_for(packets.UNSUBACK)))


@st.composite
def auths(draw: st.DrawFn) -> Auth:
    found = draw(properties_for(packets.AUTH))
    found.authentication_method = "m"
    return Auth(draw(st.sampled_from([0x18, 0x19])), found)


def from_client(version: int) -> st.SearchStrategy[object]:
    """Any packet a connected client may send, except the last one."""
    return st.one_of(
        publishes(version), acknowledgements(version), subscribes(version), unsubscribes(version)
    )


def from_server(version: int) -> st.SearchStrategy[object]:
    """Any packet a server may send to a connected client, except the last one."""
    return st.one_of(
        publishes(version, True), acknowledgements(version), subacks(version), unsubacks(version)
    )
