"""Packets as native objects: what a CONNECT, PUBLISH, ... says, with nothing of how it was written.

Acknowledgements have no class: packet id and reason code are all they say, and two integers are cheaper.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64, mypyc_attr

from headrace.mqtt.properties import Properties

CONNECT: Final = 1
CONNACK: Final = 2
PUBLISH: Final = 3
PUBACK: Final = 4
PUBREC: Final = 5
PUBREL: Final = 6
PUBCOMP: Final = 7
SUBSCRIBE: Final = 8
SUBACK: Final = 9
UNSUBSCRIBE: Final = 10
UNSUBACK: Final = 11
PINGREQ: Final = 12
PINGRESP: Final = 13
DISCONNECT: Final = 14
AUTH: Final = 15

NAMES: Final[list[str]] = [
    "reserved", "CONNECT", "CONNACK", "PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP",
    "SUBSCRIBE", "SUBACK", "UNSUBSCRIBE", "UNSUBACK", "PINGREQ", "PINGRESP", "DISCONNECT", "AUTH",
]  # fmt: skip

VERSION_3_1: Final = 3
VERSION_3_1_1: Final = 4
VERSION_5: Final = 5
NO_EXPIRY: Final = -1


class Will:
    """The Will of a CONNECT. `properties` are the forwardable ones as wire bytes, delay and expiry taken out.

    `user` is not on the wire: whom the broker knows the client as. `version`: that of its CONNECT.
    """

    def __init__(
        self,
        topic: str,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        properties: bytes = b"",
        delay_s: int = 0,
        message_expiry_s: int = NO_EXPIRY,
    ) -> None:
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.properties = properties
        self.delay_s = delay_s
        self.message_expiry_s = message_expiry_s
        self.user: str | None = None
        self.version = 5


class Connect:
    """A CONNECT. `version` is 3 (MQIsdp), 4 (3.1.1) or 5. `clean_start` is Clean Session before version 5.

    An empty client id is handed on as it is: the one who answers assigns a name or refuses (0x02, 0x85).
    """

    def __init__(
        self,
        version: int,
        client_id: str,
        clean_start: bool = True,
        keep_alive_s: int = 60,
        username: str | None = None,
        password: bytes | None = None,
        will: Will | None = None,
        properties: Properties | None = None,
        bridge: bool = False,
    ) -> None:
        self.version = version
        self.client_id = client_id
        self.clean_start = clean_start
        self.keep_alive_s = keep_alive_s
        self.username = username
        self.password = password
        self.will = will
        self.properties = Properties() if properties is None else properties
        self.bridge = bridge  # bit 7 of the protocol level, as Mosquitto's bridges set it in 3.x


@mypyc_attr(acyclic=True, free_list_len=1)
class Publish:
    """A message on the wire, its topic alias already resolved.

    `properties` is the property area without its length, Topic Alias and Message Expiry Interval taken out;
    `message_expiry_s` is -1 without an expiry; `packet_id` is 0 at QoS 0.
    """

    def __init__(
        self,
        topic: bytes,
        qos: i64,
        retain: bool,
        dup: bool,
        packet_id: i64,
        properties: bytes,
        message_expiry_s: i64,
        payload: bytes,
    ) -> None:
        self.topic = topic
        self.qos: i64 = qos
        self.retain = retain
        self.dup = dup
        self.packet_id: i64 = packet_id
        self.properties = properties
        self.message_expiry_s: i64 = message_expiry_s
        self.payload = payload


def plain_publish(topic: bytes, packet: bytes, payload_at: i64) -> Publish:
    """Return a PUBLISH at QoS 0, neither retained nor with properties, of the whole packet and where its payload
    begins."""
    return Publish(topic, 0, False, False, 0, b"", NO_EXPIRY, packet[payload_at:])


class SubscriptionRequest:
    """One topic filter of a SUBSCRIBE with its options (section 3.8.3.1); versions 3.x have the QoS only."""

    def __init__(
        self,
        topic_filter: str,
        qos: int = 0,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
    ) -> None:
        self.filter = topic_filter
        self.qos = qos
        self.no_local = no_local
        self.retain_as_published = retain_as_published
        self.retain_handling = retain_handling


class Subscribe:
    """A SUBSCRIBE. `subscription_id` is 0 when there is none. One with very many filters comes in parts that have the
    same packet id: `more` says that another one follows, and `answer`, which is for whoever answers, goes from one to
    the next."""

    def __init__(
        self, packet_id: int, filters: list[SubscriptionRequest], subscription_id: int, properties: Properties
    ) -> None:
        self.packet_id = packet_id
        self.filters = filters
        self.subscription_id = subscription_id
        self.properties = properties
        self.more = False
        self.answer: object | None = None


class Unsubscribe:
    """An UNSUBSCRIBE. `more` and `answer` as in `Subscribe`."""

    def __init__(self, packet_id: int, filters: list[str], properties: Properties) -> None:
        self.packet_id = packet_id
        self.filters = filters
        self.properties = properties
        self.more = False
        self.answer: object | None = None


class Disconnect:
    def __init__(self, reason_code: int, properties: Properties) -> None:
        self.reason_code = reason_code
        self.properties = properties


class Auth:
    def __init__(self, reason_code: int, properties: Properties) -> None:
        self.reason_code = reason_code
        self.properties = properties


class Connack:
    """A CONNACK. `reason_code` is the return code (0-5) before version 5."""

    def __init__(self, session_present: bool, reason_code: int, properties: Properties) -> None:
        self.session_present = session_present
        self.reason_code = reason_code
        self.properties = properties


class Suback:
    """A SUBACK: one reason code for each topic filter; 3.x knows 0, 1, 2 and 0x80."""

    def __init__(self, packet_id: int, reason_codes: bytes, properties: Properties) -> None:
        self.packet_id = packet_id
        self.reason_codes = reason_codes
        self.properties = properties


class Unsuback:
    """An UNSUBACK. `reason_codes` is empty before version 5."""

    def __init__(self, packet_id: int, reason_codes: bytes, properties: Properties) -> None:
        self.packet_id = packet_id
        self.reason_codes = reason_codes
        self.properties = properties
