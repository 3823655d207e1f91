"""Packets that are right, as rows: name, version, who sends it, bytes, what it says.

Each row is decoded whole, byte by byte, and with another packet behind it. A row that is `canonical` is also
what our encoder writes. Acknowledgements are (packet type, packet id, reason code). Rows stay for ever.
"""

from __future__ import annotations

from dataclasses import dataclass

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

CLIENT = "client"
SERVER = "server"
PINGREQ = (packets.PINGREQ, 0, 0)
PINGRESP = (packets.PINGRESP, 0, 0)
NONE = -1


@dataclass(frozen=True)
class Valid:
    name: str
    version: int
    sender: str
    hex: str
    packet: object
    canonical: bool = True

    @property
    def data(self) -> bytes:
        return bytes.fromhex(self.hex)

    def __str__(self) -> str:
        return f"v{self.version} {self.hex[:2]} {self.name} from {self.sender}"


def props(**values: object) -> Properties:
    properties = Properties()
    for name, value in values.items():
        setattr(properties, name, value)
    return properties


def publish(
    topic: bytes,
    payload: bytes,
    qos: int = 0,
    retain: bool = False,
    dup: bool = False,
    packet_id: int = 0,
    properties: str = "",
    expiry_s: int = NONE,
) -> Publish:
    return Publish(topic, qos, retain, dup, packet_id, bytes.fromhex(properties), expiry_s, payload)


def subscribe(
    packet_id: int, *filters: SubscriptionRequest, properties: Properties | None = None
) -> Subscribe:
    properties = properties or Properties()
    identifiers = properties.subscription_identifiers
    return Subscribe(packet_id, list(filters), identifiers[0] if identifiers else 0, properties)


def ack(packet_type: int, packet_id: int, reason_code: int = 0) -> tuple[int, int, int]:
    return packet_type, packet_id, reason_code


Request = SubscriptionRequest
PUBACK, PUBREC, PUBREL, PUBCOMP = packets.PUBACK, packets.PUBREC, packets.PUBREL, packets.PUBCOMP

CONNECT = [
    Valid("smallest", 3, CLIENT, "10 0f 0006 4d5149736470 03 02 003c 0001 61", Connect(3, "a")),
    Valid("bridge", 3, CLIENT, "10 0f 0006 4d5149736470 83 02 003c 0001 61", Connect(3, "a", bridge=True)),
    Valid("reserved flag", 3, CLIENT, "10 0f 0006 4d5149736470 03 03 003c 0001 61", Connect(3, "a"), False),
    Valid(
        "fixed header with QoS",
        3,
        CLIENT,
        "12 0f 0006 4d5149736470 03 02 003c 0001 61",
        Connect(3, "a"),
        False,
    ),
    Valid(
        "flags promise a user name and a password that are not there",
        3,
        CLIENT,
        "10 0f 0006 4d5149736470 03 c2 003c 0001 61",
        Connect(3, "a"),
        False,
    ),
    Valid("smallest", 4, CLIENT, "10 0d 0004 4d515454 04 02 003c 0001 61", Connect(4, "a")),
    Valid("bridge", 4, CLIENT, "10 0d 0004 4d515454 84 02 003c 0001 61", Connect(4, "a", bridge=True)),
    Valid("empty client id", 4, CLIENT, "10 0c 0004 4d515454 04 02 0000 0000", Connect(4, "", True, 0)),
    Valid(
        "empty client id, old session",
        4,
        CLIENT,
        "10 0c 0004 4d515454 04 00 0000 0000",
        Connect(4, "", False, 0),
    ),
    Valid(
        "client id of 24 letters",
        4,
        CLIENT,
        "10 24 0004 4d515454 04 00 ffff 0018 616161616161616161616161616161616161616161616161",
        Connect(4, "a" * 24, False, 65535),
    ),
    Valid(
        "user name and password",
        4,
        CLIENT,
        "10 13 0004 4d515454 04 c2 003c 0001 61 0001 75 0001 70",
        Connect(4, "a", username="u", password=b"p"),
    ),
    Valid(
        "empty user name, password of zeros",
        4,
        CLIENT,
        "10 13 0004 4d515454 04 c2 003c 0001 61 0000 0002 0000",
        Connect(4, "a", username="", password=b"\0\0"),
    ),
    Valid(
        "will",
        4,
        CLIENT,
        "10 14 0004 4d515454 04 2e 003c 0001 61 0002 772f 0001 78",
        Connect(4, "a", will=Will("w/", b"x", 1, True)),
    ),
    Valid(
        "will of no bytes, QoS 2, user name",
        4,
        CLIENT,
        "10 15 0004 4d515454 04 96 003c 0001 61 0001 77 0000 0001 75",
        Connect(4, "a", username="u", will=Will("w", b"", 2)),
        False,
    ),
    Valid("smallest", 5, CLIENT, "10 0e 0004 4d515454 05 02 003c 00 0001 61", Connect(5, "a")),
    Valid("empty client id", 5, CLIENT, "10 0d 0004 4d515454 05 00 003c 00 0000", Connect(5, "", False)),
    Valid(
        "password alone",
        5,
        CLIENT,
        "10 11 0004 4d515454 05 42 003c 00 0001 61 0001 70",
        Connect(5, "a", password=b"p"),
    ),
    Valid(
        "client id with U+FEFF and U+2A6D4",
        5,
        CLIENT,
        "10 14 0004 4d515454 05 02 003c 00 0007 efbbbf f0aa9b94",
        Connect(5, "\ufeff\U0002a6d4"),
    ),
    Valid(
        "every property",
        5,
        CLIENT,
        "10 3f 0004 4d515454 05 02 003c 31 11 00000e10 15 0001 6d 16 0002 00ff 17 00 19 01 21 0014 22 000a"
        " 26 0001 6b 0001 76 26 0001 6b 0000 26 0001 6a 0001 77 27 0000ffff 0001 61",
        Connect(
            5,
            "a",
            properties=props(
                session_expiry_interval=3600,
                authentication_method="m",
                authentication_data=b"\0\xff",
                request_problem_information=0,
                request_response_information=1,
                receive_maximum=20,
                topic_alias_maximum=10,
                user_properties=[("k", "v"), ("k", ""), ("j", "w")],
                maximum_packet_size=65535,
            ),
        ),
    ),
    Valid(
        "will with every property",
        5,
        CLIENT,
        "10 36 0004 4d515454 05 36 003c 00 0001 61"
        " 20 18 00000005 02 0000003c 01 01 03 0001 74 08 0001 72 09 0002 0001"
        " 26 0001 6b 0001 76 0001 77 0002 6869",
        Connect(
            5,
            "a",
            will=Will(
                "w",
                b"hi",
                2,
                True,
                bytes.fromhex("01 01 03 0001 74 08 0001 72 09 0002 0001 26 0001 6b 0001 76"),
                5,
                60,
            ),
        ),
    ),
]

PUBLISH = [
    Valid("QoS 0", 4, CLIENT, "30 07 0003 612f62 6869", publish(b"a/b", b"hi")),
    Valid("QoS 0", 3, CLIENT, "30 07 0003 612f62 6869", publish(b"a/b", b"hi")),
    Valid("retained, empty payload", 4, CLIENT, "31 05 0003 612f62", publish(b"a/b", b"", retain=True)),
    Valid("QoS 1", 4, CLIENT, "32 09 0003 612f62 000a 6869", publish(b"a/b", b"hi", 1, packet_id=10)),
    Valid(
        "QoS 1 again",
        4,
        CLIENT,
        "3a 09 0003 612f62 000a 6869",
        publish(b"a/b", b"hi", 1, dup=True, packet_id=10),
    ),
    Valid(
        "QoS 2, highest id",
        4,
        CLIENT,
        "34 09 0003 612f62 ffff 6869",
        publish(b"a/b", b"hi", 2, packet_id=65535),
    ),
    Valid("all flags", 4, CLIENT, "3d 07 0003 612f62 0001", publish(b"a/b", b"", 2, True, True, 1)),
    Valid("levels without a name", 4, CLIENT, "30 03 0001 2f", publish(b"/", b"")),
    Valid(
        "topic with a blank, U+2A6D4 and $",
        4,
        CLIENT,
        "30 0a 0008 2420 41f0aa9b94 2f",
        publish(b"$ A\xf0\xaa\x9b\x94/", b""),
    ),
    Valid("payload that is no UTF-8", 4, CLIENT, "30 06 0001 61 ff00fe", publish(b"a", b"\xff\0\xfe")),
    Valid(
        "remaining length of two bytes", 4, CLIENT, "30 8001 0001 61" + "78" * 125, publish(b"a", b"x" * 125)
    ),
    Valid(
        "remaining length of three bytes",
        4,
        CLIENT,
        "30 808001 0001 61" + "78" * 16381,
        publish(b"a", b"x" * 16381),
    ),
    Valid(
        "remaining length longer than needed", 4, CLIENT, "30 8500 0001 61 6869", publish(b"a", b"hi"), False
    ),
    Valid("QoS 0", 5, CLIENT, "30 08 0003 612f62 00 6869", publish(b"a/b", b"hi")),
    Valid("QoS 1", 5, CLIENT, "32 0a 0003 612f62 000a 00 6869", publish(b"a/b", b"hi", 1, packet_id=10)),
    Valid("QoS 2", 5, CLIENT, "34 0a 0003 612f62 000a 00 6869", publish(b"a/b", b"hi", 2, packet_id=10)),
    Valid("payload format 0", 5, CLIENT, "30 06 0001 61 02 0100", publish(b"a", b"", properties="0100")),
    Valid("expiry", 5, CLIENT, "30 09 0001 61 05 02 00000000", publish(b"a", b"", expiry_s=0)),
    Valid(
        "longest expiry", 5, CLIENT, "30 09 0001 61 05 02 ffffffff", publish(b"a", b"", expiry_s=4294967295)
    ),
    Valid("topic alias", 5, CLIENT, "30 07 0001 61 03 23 0001", publish(b"a", b""), False),
    Valid(
        "alias and expiry between others",
        5,
        CLIENT,
        "32 19 0001 61 0007 13 03 0001 74 23 0002 02 00000009 26 0001 6b 0001 76",
        publish(b"a", b"", 1, packet_id=7, properties="03 0001 74 26 0001 6b 0001 76", expiry_s=9),
        False,
    ),
    Valid(
        "every forwarded property",
        5,
        CLIENT,
        "30 1b 0001 61 16 01 01 03 0001 74 08 0001 72 09 0002 0001 26 0001 6b 0001 76 21",
        publish(b"a", b"!", properties="01 01 03 0001 74 08 0001 72 09 0002 0001 26 0001 6b 0001 76"),
    ),
    Valid(
        "user properties twice, empty, in order",
        5,
        CLIENT,
        "30 17 0001 61 13 26 0001 6b 0001 76 26 0000 0000 26 0001 6b 0001 76",
        publish(b"a", b"", properties="26 0001 6b 0001 76 26 0000 0000 26 0001 6b 0001 76"),
    ),
    Valid(
        "empty content type", 5, CLIENT, "30 07 0001 61 03 03 0000", publish(b"a", b"", properties="03 0000")
    ),
    Valid(
        "newline in a user property",
        5,
        CLIENT,
        "30 0a 0001 61 06 26 0001 0a 0000",
        publish(b"a", b"", properties="26 0001 0a 0000"),
    ),
    Valid(
        "subscription identifiers",
        5,
        SERVER,
        "30 0a 0001 61 06 0b 01 0b ffff7f",
        publish(b"a", b"", properties="0b 01 0b ffff7f"),
    ),
    Valid("QoS 1", 4, SERVER, "32 09 0003 612f62 000a 6869", publish(b"a/b", b"hi", 1, packet_id=10)),
]

ACKNOWLEDGEMENTS = [
    row
    for sender in (CLIENT, SERVER)
    for row in (
        Valid("PUBACK", 3, sender, "40 02 0001", ack(PUBACK, 1)),
        Valid("PUBACK", 4, sender, "40 02 0001", ack(PUBACK, 1)),
        Valid("PUBREC", 4, sender, "50 02 ffff", ack(PUBREC, 65535)),
        Valid("PUBREL", 4, sender, "62 02 0100", ack(PUBREL, 256)),
        Valid("PUBCOMP", 4, sender, "70 02 0102", ack(PUBCOMP, 258)),
        Valid("PUBACK", 5, sender, "40 02 0001", ack(PUBACK, 1)),
        Valid("PUBREC", 5, sender, "50 02 0001", ack(PUBREC, 1)),
        Valid("PUBREL", 5, sender, "62 02 0001", ack(PUBREL, 1)),
        Valid("PUBCOMP", 5, sender, "70 02 0001", ack(PUBCOMP, 1)),
        Valid("PUBACK with success", 5, sender, "40 03 0001 00", ack(PUBACK, 1), False),
        Valid("PUBACK quota", 5, sender, "40 03 0001 97", ack(PUBACK, 1, 0x97)),
        Valid("PUBREC not authorized", 5, sender, "50 03 0001 87", ack(PUBREC, 1, 0x87)),
        Valid("PUBREL not found", 5, sender, "62 03 0001 92", ack(PUBREL, 1, 0x92)),
        Valid("PUBCOMP not found", 5, sender, "70 03 0001 92", ack(PUBCOMP, 1, 0x92)),
        Valid(
            "PUBACK, no properties",
            5,
            sender,
            "40 04 0001 10 00",
            ack(PUBACK, 1, 0x10),
            False,
        ),
        Valid(
            "PUBREC, reason",
            5,
            sender,
            "50 08 0001 80 04 1f 0001 72",
            ack(PUBREC, 1, 0x80),
            False,
        ),
        Valid(
            "PUBREL, empty reason",
            5,
            sender,
            "62 07 0001 00 03 1f 0000",
            ack(PUBREL, 1),
            False,
        ),
        Valid(
            "PUBCOMP, user properties",
            5,
            sender,
            "70 10 0001 00 0c 26 0001 6b 0001 76 26 0000 0000",
            ack(PUBCOMP, 1),
            False,
        ),
    )
]

SUBSCRIPTIONS = [
    Valid("SUBSCRIBE", 3, CLIENT, "82 06 0001 0001 61 00", subscribe(1, Request("a"))),
    Valid("SUBSCRIBE again", 3, CLIENT, "8a 06 0001 0001 61 00", subscribe(1, Request("a")), False),
    Valid(
        "SUBSCRIBE to three",
        4,
        CLIENT,
        "82 10 000a 0001 61 00 0001 23 01 0003 2b2f62 02",
        subscribe(10, Request("a"), Request("#", 1), Request("+/b", 2)),
    ),
    Valid("SUBSCRIBE", 5, CLIENT, "82 07 0001 00 0001 61 00", subscribe(1, Request("a"))),
    Valid(
        "SUBSCRIBE with options",
        5,
        CLIENT,
        "82 13 0001 00 0001 61 2e 0001 62 10 0001 63 01 0001 64 04",
        subscribe(
            1,
            Request("a", 2, True, True, 2),
            Request("b", 0, False, False, 1),
            Request("c", 1),
            Request("d", 0, True),
        ),
    ),
    Valid(
        "SUBSCRIBE shared, with identifier and user property",
        5,
        CLIENT,
        "82 1e 1234 0c 0b ffffff7f 26 0001 6b 0001 76 000c 2473686172652f672f612f23 01",
        subscribe(
            0x1234,
            Request("$share/g/a/#", 1),
            properties=props(subscription_identifiers=[268435455], user_properties=[("k", "v")]),
        ),
    ),
    Valid("UNSUBSCRIBE", 4, CLIENT, "a2 08 000a 0001 61 0001 62", Unsubscribe(10, ["a", "b"], Properties())),
    Valid("UNSUBSCRIBE", 5, CLIENT, "a2 06 000a 00 0001 61", Unsubscribe(10, ["a"], Properties())),
    Valid(
        "UNSUBSCRIBE with user property",
        5,
        CLIENT,
        "a2 0d 000a 07 26 0001 6b 0001 76 0001 61",
        Unsubscribe(10, ["a"], props(user_properties=[("k", "v")])),
    ),
    Valid("SUBACK", 4, SERVER, "90 06 000a 00 01 02 80", Suback(10, b"\0\1\2\x80", Properties())),
    Valid("SUBACK", 5, SERVER, "90 05 000a 00 01 87", Suback(10, b"\x01\x87", Properties())),
    Valid(
        "SUBACK with a reason",
        5,
        SERVER,
        "90 08 000a 04 1f 0001 72 8f",
        Suback(10, b"\x8f", props(reason_string="r")),
    ),
    Valid("UNSUBACK", 4, SERVER, "b0 02 000a", Unsuback(10, b"", Properties())),
    Valid("UNSUBACK", 5, SERVER, "b0 05 000a 00 00 11", Unsuback(10, b"\0\x11", Properties())),
]

CONNACK = [
    Valid("accepted", 3, SERVER, "20 02 00 00", Connack(False, 0, Properties())),
    Valid("session present", 4, SERVER, "20 02 01 00", Connack(True, 0, Properties())),
    Valid("not authorized", 4, SERVER, "20 02 00 05", Connack(False, 5, Properties())),
    Valid("accepted", 5, SERVER, "20 03 00 00 00", Connack(False, 0, Properties())),
    Valid("banned", 5, SERVER, "20 03 00 8a 00", Connack(False, 0x8A, Properties())),
    Valid(
        "every property",
        5,
        SERVER,
        "20 3f 01 00 3c 11 00000001 12 0001 63 13 001e 15 0001 6d 16 0001 64 1a 0001 69 1c 0001 73 1f 0001 72"
        " 21 0010 22 0008 24 01 25 00 26 0001 6b 0001 76 27 00001000 28 01 29 00 2a 01",
        Connack(
            True,
            0,
            props(
                session_expiry_interval=1,
                assigned_client_identifier="c",
                server_keep_alive=30,
                authentication_method="m",
                authentication_data=b"d",
                response_information="i",
                server_reference="s",
                reason_string="r",
                receive_maximum=16,
                topic_alias_maximum=8,
                maximum_qos=1,
                retain_available=0,
                user_properties=[("k", "v")],
                maximum_packet_size=4096,
                wildcard_subscription_available=1,
                subscription_identifiers_available=0,
                shared_subscription_available=1,
            ),
        ),
    ),
]

REST = [
    Valid("PINGREQ", 3, CLIENT, "c0 00", PINGREQ),
    Valid("PINGREQ", 4, CLIENT, "c0 00", PINGREQ),
    Valid("PINGREQ", 5, CLIENT, "c0 00", PINGREQ),
    Valid("PINGRESP", 4, SERVER, "d0 00", PINGRESP),
    Valid("PINGRESP", 5, SERVER, "d0 00", PINGRESP),
]

LAST = [
    Valid("DISCONNECT", 3, CLIENT, "e0 00", Disconnect(0, Properties())),
    Valid("DISCONNECT", 4, CLIENT, "e0 00", Disconnect(0, Properties())),
    Valid("DISCONNECT", 5, CLIENT, "e0 00", Disconnect(0, Properties())),
    Valid("DISCONNECT with will", 5, CLIENT, "e0 01 04", Disconnect(4, Properties())),
    Valid("DISCONNECT, code no client sends", 5, CLIENT, "e0 01 8b", Disconnect(0x8B, Properties())),
    Valid("DISCONNECT, no properties", 5, CLIENT, "e0 02 82 00", Disconnect(0x82, Properties()), False),
    Valid(
        "DISCONNECT ends the session",
        5,
        CLIENT,
        "e0 07 00 05 11 00000000",
        Disconnect(0, props(session_expiry_interval=0)),
    ),
    Valid(
        "DISCONNECT with everything else",
        5,
        CLIENT,
        "e0 11 00 0f 1c 0001 73 1f 0001 72 26 0001 6b 0001 76",
        Disconnect(0, props(server_reference="s", reason_string="r", user_properties=[("k", "v")])),
    ),
    Valid("DISCONNECT", 5, SERVER, "e0 01 8e", Disconnect(0x8E, Properties())),
    Valid(
        "DISCONNECT to another server",
        5,
        SERVER,
        "e0 06 9c 04 1c 0001 73",
        Disconnect(0x9C, props(server_reference="s")),
    ),
]

# These follow a CONNECT with Authentication Method "m".
AUTH = [
    Valid(
        "AUTH continues",
        5,
        CLIENT,
        "f0 0a 18 08 15 0001 6d 16 0001 64",
        Auth(0x18, props(authentication_method="m", authentication_data=b"d")),
    ),
    Valid(
        "AUTH once more", 5, CLIENT, "f0 06 19 04 15 0001 6d", Auth(0x19, props(authentication_method="m"))
    ),
    Valid(
        "AUTH with a reason",
        5,
        SERVER,
        "f0 0a 18 08 15 0001 6d 1f 0001 72",
        Auth(0x18, props(authentication_method="m", reason_string="r")),
    ),
    Valid("AUTH, success", 5, SERVER, "f0 00", Auth(0, Properties())),
]

CONNECTED = [*PUBLISH, *ACKNOWLEDGEMENTS, *SUBSCRIPTIONS, *REST]
ALL = [*CONNECT, *CONNACK, *CONNECTED, *LAST, *AUTH]
