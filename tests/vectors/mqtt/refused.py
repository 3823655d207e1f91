"""Packets that are wrong, as rows: name, version, bytes, reason code, and the bytes sent before closing.

`connected` 0 means that the row is the first packet of its connection; otherwise it follows a CONNECT of that
version. An empty answer is a connection closed without a word. Rows stay for ever.
"""

from __future__ import annotations

from dataclasses import dataclass

MALFORMED = 0x81
PROTOCOL = 0x82
UNSUPPORTED = 0x84
BAD_CLIENT_ID = 0x85
BAD_ALIAS = 0x94
TOO_LARGE = 0x95
NOTHING = ""


@dataclass(frozen=True)
class Refused:
    name: str
    connected: int
    hex: str
    code: int
    answer: str | None = None
    auth_method: str | None = None
    limit: int = 1 << 28
    early: bool = False  # in pieces the first byte alone is refused, with another code

    @property
    def data(self) -> bytes:
        return bytes.fromhex(self.hex)

    @property
    def answer_data(self) -> bytes:
        if self.answer is not None:
            return bytes.fromhex(self.answer)
        return bytes((0xE0, 1, self.code)) if self.connected == 5 else b""

    def __str__(self) -> str:
        return f"v{self.connected} {self.hex[:2]} {self.name}"


def connect(name: str, hex_: str, code: int, answer: str | None = None) -> Refused:
    """A version 5 CONNECT that is answered with a CONNACK unless said otherwise."""
    return Refused(f"{name}, 5", 0, hex_, code, f"20 03 00 {code:02x} 00" if answer is None else answer)


def both(name: str, hex_: str, code: int) -> list[Refused]:
    return [Refused(name, version, hex_, code) for version in (4, 5)]


def all_three(name: str, hex_: str, code: int) -> list[Refused]:
    return [Refused(name, version, hex_, code) for version in (3, 4, 5)]


def subscribe_to(what: str, version: int, filter_hex: str, code: int = MALFORMED) -> Refused:
    """A SUBSCRIBE with one bad filter."""
    size = len(filter_hex) // 2
    length = f"{size + 6:02x} 0001 00" if version == 5 else f"{size + 5:02x} 0001"
    return Refused(f"filter {what}", version, f"82 {length} {size:04x}{filter_hex} 00", code)


HEAD3 = "0006 4d5149736470 03"
HEAD4 = "0004 4d515454 04"
HEAD5 = "0004 4d515454 05"

FIRST_PACKET = [
    *[
        Refused(f"first packet {first}", 0, first, PROTOCOL)
        for first in (
            "00 00", "01 00", "08 00", "20 02 0000", "30 05 0001 61 6869", "32 05 0001 61 0001", "40 02 0001",
            "50 02 0001", "62 02 0001", "70 02 0001", "82 06 0001 0001 61 00", "90 03 0001 00",
            "a2 05 0001 0001 61", "b0 02 0001", "c0 00", "d0 00", "e0 00", "f0 00",
        )
    ],
    Refused("an HTTP request", 0, "474554202f20485454502f312e310d0a", PROTOCOL),
    Refused("a TLS ClientHello", 0, "160301020001000001fc0303", MALFORMED),
    Refused("a PROXY header", 0, "50524f58592054435034", PROTOCOL),
    Refused("remaining length of five bytes", 0, "10 8080808001", MALFORMED),
    Refused("longer than accepted", 0, "10 ffffff7f", TOO_LARGE, limit=1 << 20),
]  # fmt: skip

VERSION = [
    Refused("level 2", 0, "10 0d 0004 4d515454 02 02 003c 0001 61", UNSUPPORTED, "20 03 00 84 00"),
    Refused("level 6", 0, "10 0d 0004 4d515454 06 02 003c 0001 61", UNSUPPORTED, "20 03 00 84 00"),
    Refused("level 0", 0, "10 0d 0004 4d515454 00 02 003c 0001 61", UNSUPPORTED, "20 03 00 84 00"),
    Refused("MQIsdp level 2", 0, "10 0f 0006 4d5149736470 02 02 003c 0001 61", UNSUPPORTED, "20 03 00 84 00"),
    Refused("MQIsdp level 4", 0, "10 0f 0006 4d5149736470 04 02 003c 0001 61", UNSUPPORTED, "20 02 00 01"),
    Refused("MQTT level 3", 0, "10 0d 0004 4d515454 03 02 003c 0001 61", UNSUPPORTED, "20 02 00 01"),
    Refused("name MQTU", 0, "10 0d 0004 4d515455 04 02 003c 0001 61", MALFORMED),
    Refused("name mqtt", 0, "10 0d 0004 6d717474 04 02 003c 0001 61", MALFORMED),
    Refused("name MQT", 0, "10 0c 0003 4d5154 04 02 003c 0001 61", MALFORMED),
    Refused("name MQTTT", 0, "10 0e 0005 4d51545454 04 02 003c 0001 61", MALFORMED),
    Refused("no name", 0, "10 09 0000 04 02 003c 0001 61", MALFORMED),
    Refused("name without a level", 0, "10 06 0004 4d515454", MALFORMED),
    Refused("name cut", 0, "10 04 0004 4d51", MALFORMED),
    Refused("nothing at all", 0, "10 00", MALFORMED),
]

CONNECT_3 = [
    Refused("reserved flag", 0, f"10 0d {HEAD4} 03 003c 0001 61", MALFORMED),
    Refused("fixed header flag 1", 0, f"11 0d {HEAD4} 02 003c 0001 61", MALFORMED),
    Refused("fixed header flag 8", 0, f"18 0d {HEAD4} 02 003c 0001 61", MALFORMED),
    Refused("will QoS without a will", 0, f"10 0d {HEAD4} 0a 003c 0001 61", MALFORMED),
    Refused("will retain without a will", 0, f"10 0d {HEAD4} 22 003c 0001 61", MALFORMED),
    Refused("will QoS 3", 0, f"10 13 {HEAD4} 1e 003c 0001 61 0001 77 0001 78", MALFORMED),
    Refused("will QoS 3 in 3.1", 0, f"10 15 {HEAD3} 1e 003c 0001 61 0001 77 0001 78", MALFORMED),
    Refused("will missing", 0, f"10 0d {HEAD4} 06 003c 0001 61", MALFORMED),
    Refused("will payload missing", 0, f"10 10 {HEAD4} 06 003c 0001 61 0001 77", MALFORMED),
    Refused("will topic empty", 0, f"10 12 {HEAD4} 06 003c 0001 61 0000 0001 78", MALFORMED),
    Refused("will topic with wildcard", 0, f"10 13 {HEAD4} 06 003c 0001 61 0001 23 0001 78", MALFORMED),
    Refused("will topic with U+0000", 0, f"10 13 {HEAD4} 06 003c 0001 61 0001 00 0001 78", MALFORMED),
    Refused("client id missing", 0, f"10 0a {HEAD4} 02 003c", MALFORMED),
    Refused("client id cut", 0, f"10 0d {HEAD4} 02 003c 0002 61", MALFORMED),
    Refused("client id with U+0000", 0, f"10 0d {HEAD4} 02 003c 0001 00", BAD_CLIENT_ID),
    Refused("client id with U+D800", 0, f"10 0f {HEAD4} 02 003c 0003 eda080", BAD_CLIENT_ID),
    Refused("client id with U+0001", 0, f"10 0d {HEAD4} 02 003c 0001 01", BAD_CLIENT_ID),
    Refused("client id with U+009F", 0, f"10 0e {HEAD4} 02 003c 0002 c29f", BAD_CLIENT_ID),
    Refused("client id with U+FFFE", 0, f"10 0f {HEAD4} 02 003c 0003 efbfbe", BAD_CLIENT_ID),
    Refused("client id overlong", 0, f"10 0e {HEAD4} 02 003c 0002 c080", BAD_CLIENT_ID),
    Refused("password without a user name", 0, f"10 10 {HEAD4} 42 003c 0001 61 0001 70", MALFORMED),
    Refused("password without a user name in 3.1", 0, f"10 12 {HEAD3} 42 003c 0001 61 0001 70", MALFORMED),
    Refused("user name missing", 0, f"10 0d {HEAD4} 82 003c 0001 61", MALFORMED),
    Refused("user name with U+007F", 0, f"10 10 {HEAD4} 82 003c 0001 61 0001 7f", MALFORMED),
    Refused("password missing", 0, f"10 10 {HEAD4} c2 003c 0001 61 0001 75", MALFORMED),
    Refused("bytes behind", 0, f"10 10 {HEAD4} 02 003c 0001 61 0001 70", MALFORMED),
    Refused("bytes behind in 3.1", 0, f"10 12 {HEAD3} 02 003c 0001 61 0001 70", MALFORMED),
    Refused("flags missing", 0, f"10 07 {HEAD4}", MALFORMED),
    Refused("keep alive cut", 0, f"10 09 {HEAD4} 02 00", MALFORMED),
]

CONNECT_5 = [
    connect("reserved flag", f"10 0e {HEAD5} 03 003c 00 0001 61", MALFORMED),
    connect("fixed header flag", f"12 0e {HEAD5} 02 003c 00 0001 61", MALFORMED),
    connect("client id with U+0000", f"10 0e {HEAD5} 02 003c 00 0001 00", BAD_CLIENT_ID),
    connect("client id with a surrogate", f"10 10 {HEAD5} 02 003c 00 0003 eda080", BAD_CLIENT_ID),
    connect("bytes behind", f"10 11 {HEAD5} 02 003c 00 0001 61 0001 61", MALFORMED),
    connect("user name missing", f"10 0e {HEAD5} 82 003c 00 0001 61", MALFORMED, NOTHING),
    connect("user name with U+0001", f"10 11 {HEAD5} 82 003c 00 0001 61 0001 01", MALFORMED, NOTHING),
    connect("password missing", f"10 11 {HEAD5} c2 003c 00 0001 61 0001 75", MALFORMED, NOTHING),
    connect("no property length", f"10 0a {HEAD5} 02 003c", MALFORMED),
    connect("property length too long", f"10 0e {HEAD5} 02 003c 04 0001 61", MALFORMED),
    connect("receive maximum 0", f"10 11 {HEAD5} 02 003c 03 21 0000 0001 61", PROTOCOL),
    connect("receive maximum cut", f"10 0f {HEAD5} 02 003c 01 21 0001 61", MALFORMED),
    connect("receive maximum twice", f"10 14 {HEAD5} 02 003c 06 21 0001 21 0001 0001 61", PROTOCOL),
    connect("maximum packet size 0", f"10 13 {HEAD5} 02 003c 05 27 00000000 0001 61", PROTOCOL),
    connect("request problem information 2", f"10 10 {HEAD5} 02 003c 02 17 02 0001 61", PROTOCOL),
    connect("request response information 2", f"10 10 {HEAD5} 02 003c 02 19 02 0001 61", PROTOCOL),
    connect("authentication data alone", f"10 12 {HEAD5} 02 003c 04 16 0001 64 0001 61", PROTOCOL),
    connect(
        "authentication method twice", f"10 16 {HEAD5} 02 003c 08 15 0001 6d 15 0001 6d 0001 61", PROTOCOL
    ),
    connect("property of CONNACK", f"10 10 {HEAD5} 02 003c 02 24 01 0001 61", PROTOCOL),
    connect("property of the will", f"10 13 {HEAD5} 02 003c 05 18 00000001 0001 61", PROTOCOL),
    connect("unknown property", f"10 10 {HEAD5} 02 003c 02 04 01 0001 61", MALFORMED),
    connect("property 0", f"10 10 {HEAD5} 02 003c 02 00 01 0001 61", MALFORMED),
    connect("property of two bytes", f"10 11 {HEAD5} 02 003c 03 8001 01 0001 61", MALFORMED),
    connect("property longer than needed", f"10 11 {HEAD5} 02 003c 03 9700 01 0001 61", MALFORMED),
    connect("user property with U+0000", f"10 14 {HEAD5} 02 003c 06 26 0001 00 0000 0001 61", MALFORMED),
    connect("user property without a value", f"10 12 {HEAD5} 02 003c 04 26 0001 6b 0001 61", MALFORMED),
    connect(
        "will delay twice",
        f"10 1f {HEAD5} 06 003c 00 0001 61 0a 18 00000001 18 00000001 0001 77 0001 78",
        PROTOCOL,
    ),
    connect(
        "will response topic empty", f"10 18 {HEAD5} 06 003c 00 0001 61 03 08 0000 0001 77 0001 78", PROTOCOL
    ),
    connect(
        "will with a topic alias", f"10 18 {HEAD5} 06 003c 00 0001 61 03 23 0001 0001 77 0001 78", PROTOCOL
    ),
    connect("will properties cut", f"10 16 {HEAD5} 06 003c 00 0001 61 01 02 0001 77 0001 78", MALFORMED),
    connect("will QoS 3", f"10 15 {HEAD5} 1e 003c 00 0001 61 00 0001 77 0001 78", MALFORMED),
    connect("will retain without a will", f"10 0e {HEAD5} 22 003c 00 0001 61", MALFORMED),
]

AGAIN = [
    Refused("second CONNECT", 3, f"10 0f {HEAD3} 02 003c 0001 61", PROTOCOL),
    Refused("second CONNECT", 4, f"10 0d {HEAD4} 02 003c 0001 61", PROTOCOL),
    Refused("second CONNECT", 5, f"10 0e {HEAD5} 02 003c 00 0001 61", PROTOCOL),
]

FROM_A_SERVER = [
    *all_three("type 0", "00 00", PROTOCOL),
    *all_three("CONNACK", "20 02 0000", PROTOCOL),
    *all_three("SUBACK", "90 03 0001 00", PROTOCOL),
    *all_three("UNSUBACK", "b0 02 0001", PROTOCOL),
    *all_three("PINGRESP", "d0 00", PROTOCOL),
    *all_three("AUTH without a method", "f0 00", PROTOCOL),
    Refused("type 0 with flags", 5, "0a 00", PROTOCOL),
    Refused("type 0 and half a length", 5, "0a c0", PROTOCOL),
    Refused("type 0 and an endless length", 5, "00 8080808001", PROTOCOL),
    Refused("CONNACK with flags", 5, "29 02 0001", PROTOCOL),
    Refused("SUBACK with flags", 5, "91 03 0001 00", MALFORMED),
    Refused("UNSUBACK with flags", 5, "b2 03 0001 00", MALFORMED),
    Refused("PINGRESP with flags", 5, "d8 00", MALFORMED),
    Refused("PINGRESP with content", 5, "d0 01 00", MALFORMED, NOTHING, early=True),
    Refused("AUTH with flags", 5, "f4 00", PROTOCOL),
]

FRAMING = [
    *[
        Refused(
            f"{first} and a remaining length of five bytes",
            version,
            f"{first} 8080808001",
            MALFORMED,
            NOTHING,
        )
        for version in (4, 5)
        for first in ("30", "40", "62", "82", "a2", "c0", "e0")
    ],
    Refused("remaining length longer than needed", 5, "30 8500 0001 61 00 68", MALFORMED),
    Refused("PUBLISH longer than accepted", 5, "30 8108 0001 61", TOO_LARGE, limit=1024),
    Refused("PUBLISH longer than accepted", 4, "30 8108 0001 61", TOO_LARGE, limit=1024),
    *[
        row
        for first in ("41", "42", "48", "51", "58", "60", "63", "66", "6a", "71", "78")
        for row in both(f"flags {first}", f"{first} 02 0001", MALFORMED)
    ],
    *[
        row
        for first in ("80", "83", "86", "8a")
        for row in (
            Refused(f"flags {first}", 4, f"{first} 06 0001 0001 61 00", MALFORMED),
            Refused(f"flags {first}", 5, f"{first} 07 0001 00 0001 61 00", MALFORMED),
        )
    ],
    *[row for first in ("c1", "c8", "e1", "e4") for row in both(f"flags {first}", f"{first} 00", MALFORMED)],
    *[Refused("PINGREQ with content", version, "c0 01 00", MALFORMED, NOTHING) for version in (3, 4, 5)],
]

PUBLISH = [
    *all_three("QoS 3", "36 07 0003 612f62 0001", MALFORMED),
    *all_three("DUP with QoS 0", "38 05 0003 612f62", MALFORMED),
    *all_three("topic cut", "30 02 0001", MALFORMED),
    *all_three("topic length cut", "30 01 00", MALFORMED),
    *all_three("packet id cut", "32 04 0001 61 00", MALFORMED),
    Refused("packet id 0", 4, "32 05 0001 61 0000", PROTOCOL),
    Refused("packet id 0", 5, "34 06 0001 61 0000 00", PROTOCOL),
    Refused("topic empty", 4, "30 02 0000", MALFORMED),
    *[
        row
        for what, topic in (
            ("+", "0003 612b62"), ("#", "0002 2f23"), ("U+0000", "0002 6100"), ("U+D800", "0003 eda080"),
            ("U+DFFF", "0003 edbfbf"), ("U+0001", "0001 01"), ("U+001F", "0001 1f"), ("U+007F", "0001 7f"),
            ("U+009F", "0002 c29f"), ("U+FFFF", "0003 efbfbf"), ("U+1FFFE", "0004 f09fbfbe"),
            ("half a character", "0001 c3"), ("an overlong slash", "0002 c0af"),
            ("U+110000", "0004 f4908080"),
        )
        for row in (
            Refused(f"topic with {what}", 4, f"30 {len(bytes.fromhex(topic)):02x} {topic}", MALFORMED),
            Refused(f"topic with {what}", 5, f"30 {len(bytes.fromhex(topic)) + 1:02x} {topic} 00", MALFORMED),
        )
    ],
    Refused("neither topic nor alias", 5, "30 03 0000 00", MALFORMED),
    Refused("no property length", 5, "30 03 0001 61", MALFORMED),
    Refused("property length too long", 5, "30 05 0001 61 02 01", MALFORMED),
    Refused("property length of five bytes", 5, "30 08 0001 61 8080808001", MALFORMED),
    Refused("property length longer than needed", 5, "30 05 0001 61 8000", MALFORMED),
    Refused("alias 0", 5, "30 07 0001 61 03 23 0000", BAD_ALIAS),
    Refused("alias above the maximum", 5, "30 07 0001 61 03 23 000b", BAD_ALIAS),
    Refused("alias never defined", 5, "30 06 0000 03 23 0001", PROTOCOL),
    Refused("alias twice", 5, "30 0a 0001 61 06 23 0001 23 0001", PROTOCOL),
    Refused("payload format 2", 5, "30 06 0001 61 02 01 02", PROTOCOL),
    Refused("payload format twice", 5, "30 08 0001 61 04 0101 0101", PROTOCOL),
    Refused("payload format cut", 5, "30 05 0001 61 01 01", MALFORMED),
    Refused("expiry twice", 5, "30 0e 0001 61 0a 02 00000001 02 00000001", PROTOCOL),
    Refused("expiry cut", 5, "30 07 0001 61 03 02 0000", MALFORMED),
    Refused("content type twice", 5, "30 0c 0001 61 08 03 0001 74 03 0001 74", PROTOCOL),
    Refused("content type with U+0000", 5, "30 08 0001 61 04 03 0001 00", MALFORMED),
    Refused("content type with a surrogate", 5, "30 0a 0001 61 06 03 0003 eda080", MALFORMED),
    Refused("content type cut", 5, "30 07 0001 61 03 03 0001", MALFORMED),
    Refused("response topic twice", 5, "30 0c 0001 61 08 08 0001 74 08 0001 74", PROTOCOL),
    Refused("response topic with wildcard", 5, "30 08 0001 61 04 08 0001 23", PROTOCOL),
    Refused("response topic empty", 5, "30 07 0001 61 03 08 0000", PROTOCOL),
    Refused("response topic with U+0000", 5, "30 08 0001 61 04 08 0001 00", MALFORMED),
    Refused("correlation data twice", 5, "30 0a 0001 61 06 09 0000 09 0000", PROTOCOL),
    Refused("correlation data cut", 5, "30 07 0001 61 03 09 0001", MALFORMED),
    Refused("user property without a value", 5, "30 08 0001 61 04 26 0001 6b", MALFORMED),
    Refused("user property with a surrogate", 5, "30 0c 0001 61 08 26 0003 eda080 0000", MALFORMED),
    Refused("subscription identifier", 5, "30 06 0001 61 02 0b 01", PROTOCOL),
    Refused("subscription identifier 0", 5, "30 06 0001 61 02 0b 00", PROTOCOL),
    Refused("subscription identifier longer than needed", 5, "30 07 0001 61 03 0b 8000", MALFORMED),
]  # fmt: skip

ACKNOWLEDGEMENTS = [
    row
    for first in ("40", "50", "62", "70")
    for row in (
        *all_three(f"{first} without a packet id", f"{first} 00", MALFORMED),
        *all_three(f"{first} with half a packet id", f"{first} 01 01", MALFORMED),
        *all_three(f"{first} with packet id 0", f"{first} 02 0000", PROTOCOL),
        Refused(f"{first} too long", 3, f"{first} 03 0001 00", MALFORMED),
        Refused(f"{first} too long", 4, f"{first} 03 0001 00", MALFORMED),
        Refused(f"{first} too long", 5, f"{first} 05 0001 00 00 00", MALFORMED),
        Refused(f"{first} with reason code 0xff", 5, f"{first} 03 0001 ff", PROTOCOL),
        Refused(f"{first} with a reason code of others", 5, f"{first} 04 0001 8e 00", PROTOCOL),
        Refused(f"{first} with properties cut", 5, f"{first} 04 0001 00 01", MALFORMED),
        Refused(f"{first} with two reasons", 5, f"{first} 0c 0001 00 08 1f 0001 72 1f 0001 72", PROTOCOL),
        Refused(f"{first} with a property of PUBLISH", 5, f"{first} 06 0001 00 02 01 00", PROTOCOL),
        Refused(f"{first} with an unknown property", 5, f"{first} 06 0001 00 02 7f 00", MALFORMED),
    )
]

SUBSCRIBE = [
    *all_three("packet id 0", "82 06 0000 0001 61 00", MALFORMED),
    *all_three("nothing", "82 00", MALFORMED),
    *all_three("half a packet id", "82 01 00", MALFORMED),
    *all_three("no filter", "82 02 0001", MALFORMED),
    Refused("no filter but properties", 5, "82 03 0001 00", MALFORMED),
    Refused("filter without QoS", 4, "82 05 0001 0001 61", MALFORMED),
    Refused("filter without options", 5, "82 06 0001 00 0001 61", MALFORMED),
    Refused("filter cut", 4, "82 05 0001 0002 61", MALFORMED),
    Refused("bytes behind", 4, "82 07 0001 0001 61 00 00", MALFORMED),
    *[
        Refused(f"options {options}", 4, f"82 06 0001 0001 61 {options}", MALFORMED)
        for options in ("03", "04", "08", "10", "20", "40", "80")
    ],
    *[
        Refused(f"options {options}", 5, f"82 07 0001 00 0001 61 {options}", MALFORMED)
        for options in ("03", "30", "40", "80", "c1")
    ],
    *[
        row
        for what, topic_filter in (
            ("nothing", ""), ("a#", "6123"), ("#/a", "232f61"), ("a/#/b", "612f232f62"), ("a+", "612b"),
            ("a/+b", "612f2b62"), ("++", "2b2b"), ("##", "2323"), ("U+0000", "6100"), ("U+D800", "eda080"),
            ("U+0001", "01"), ("U+009F", "c29f"), ("$share/g#/a", "2473686172652f67232f61"),
            ("$share/#/a", "2473686172652f232f61"), ("$share/g/a#", "2473686172652f672f6123"),
        )
        for row in (subscribe_to(what, 4, topic_filter), subscribe_to(what, 5, topic_filter))
    ],
    *[
        row
        for what, topic_filter in (
            ("$share/g", "2473686172652f67"), ("$share/g/", "2473686172652f672f"),
            ("$share//a", "2473686172652f2f61"), ("$share/+/a", "2473686172652f2b2f61"),
        )
        for row in (
            subscribe_to(what, 4, topic_filter, PROTOCOL),
            subscribe_to(what, 5, topic_filter, PROTOCOL),
        )
    ],
    Refused("second filter empty", 4, "82 09 0001 0001 61 00 0000 00", MALFORMED),
    Refused("no local on a shared subscription", 5, "82 10 0001 00 000a 2473686172652f672f61 04", PROTOCOL),
    Refused("subscription identifier 0", 5, "82 09 0001 02 0b 00 0001 61 00", PROTOCOL),
    Refused("subscription identifier twice", 5, "82 0b 0001 04 0b 01 0b 01 0001 61 00", PROTOCOL),
    Refused("subscription identifier of five bytes", 5, "82 0d 0001 06 0b 8080808001 0001 61 00", MALFORMED),
    Refused("property of PUBLISH", 5, "82 09 0001 02 01 00 0001 61 00", MALFORMED),
    Refused("property of CONNECT", 5, "82 0c 0001 05 11 00000001 0001 61 00", MALFORMED),
    Refused("unknown property", 5, "82 09 0001 02 04 01 0001 61 00", MALFORMED),
]  # fmt: skip

UNSUBSCRIBE = [
    *all_three("packet id 0", "a2 05 0000 0001 61", MALFORMED),
    *all_three("nothing", "a2 00", MALFORMED),
    *all_three("no filter", "a2 02 0001", MALFORMED),
    Refused("no filter but properties", 5, "a2 03 0001 00", MALFORMED),
    Refused("filter empty", 4, "a2 04 0001 0000", MALFORMED),
    Refused("filter empty", 5, "a2 05 0001 00 0000", MALFORMED),
    Refused("second filter cut", 4, "a2 08 0001 0001 61 0002 62", MALFORMED),
    Refused("filter with a surrogate", 5, "a2 08 0001 00 0003 eda080", MALFORMED),
    Refused("filter a#", 4, "a2 06 0001 0002 6123", MALFORMED),
    Refused("subscription identifier", 5, "a2 08 0001 02 0b 01 0001 61", MALFORMED),
    Refused("property of CONNECT", 5, "a2 0b 0001 05 11 00000001 0001 61", MALFORMED),
]

DISCONNECT = [
    Refused("too long", 3, "e0 01 00", MALFORMED),
    Refused("too long", 4, "e0 01 00", MALFORMED),
    Refused("properties cut", 5, "e0 03 00 01 11", MALFORMED),
    Refused("property length too long", 5, "e0 02 00 01", MALFORMED),
    Refused("bytes behind", 5, "e0 03 00 00 00", MALFORMED),
    Refused("session expiry after none in CONNECT", 5, "e0 07 00 05 11 00000001", PROTOCOL),
    Refused("session expiry twice", 5, "e0 0c 00 0a 11 00000000 11 00000000", PROTOCOL),
    Refused("property of PUBLISH", 5, "e0 04 00 02 01 00", PROTOCOL),
    Refused("unknown property", 5, "e0 04 00 02 04 01", MALFORMED),
]

AUTH = [
    Refused("AUTH without a method property", 5, "f0 00", PROTOCOL, auth_method="m"),
    Refused("AUTH with another method", 5, "f0 06 18 04 15 0001 6e", PROTOCOL, auth_method="m"),
    Refused("AUTH with reason code 1", 5, "f0 06 01 04 15 0001 6d", PROTOCOL, auth_method="m"),
    Refused("AUTH with flags", 5, "f1 06 18 04 15 0001 6d", MALFORMED, auth_method="m"),
    Refused("AUTH with two methods", 5, "f0 0a 18 08 15 0001 6d 15 0001 6d", PROTOCOL, auth_method="m"),
    Refused("AUTH with bytes behind", 5, "f0 07 18 04 15 0001 6d 00", MALFORMED, auth_method="m"),
]

ALL = [
    *FIRST_PACKET,
    *VERSION,
    *CONNECT_3,
    *CONNECT_5,
    *AGAIN,
    *FROM_A_SERVER,
    *FRAMING,
    *PUBLISH,
    *ACKNOWLEDGEMENTS,
    *SUBSCRIBE,
    *UNSUBSCRIBE,
    *DISCONNECT,
    *AUTH,
]
