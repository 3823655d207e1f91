"""A link whose client speaks MQTT: the verbs of `core.ports.link` as packets, for version 3.1, 3.1.1 or 5.

What a version has no words for is left out. Compiled with the core: an acknowledgement of success is four bytes in every
version, written in place.
"""

from __future__ import annotations

from librt.strings import write_i32_be
from mypy_extensions import i32, i64

from headrace.core.ports.link import Link
from headrace.mqtt import reason_codes as rc
from headrace.mqtt.codec import (
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    encode_connack,
    encode_disconnect,
    encode_puback,
    encode_pubrec,
    encode_suback,
    encode_unsuback,
)
from headrace.mqtt.properties import Properties

# MQTT 3.1.1 return codes of refusals (3.2.2.3)
_REFUSALS_311 = {
    rc.CLIENT_IDENTIFIER_NOT_VALID: rc.CONNACK_IDENTIFIER_REJECTED,
    rc.BAD_USER_NAME_OR_PASSWORD: rc.CONNACK_BAD_USER_NAME_OR_PASSWORD,
    rc.NOT_AUTHORIZED: rc.CONNACK_NOT_AUTHORIZED,
    rc.SERVER_UNAVAILABLE: rc.CONNACK_SERVER_UNAVAILABLE,
    rc.SERVER_BUSY: rc.CONNACK_SERVER_UNAVAILABLE,
    rc.CONNECTION_RATE_EXCEEDED: rc.CONNACK_SERVER_UNAVAILABLE,
    rc.QUOTA_EXCEEDED: rc.CONNACK_SERVER_UNAVAILABLE,
}


class MqttLink(Link):
    """Sends what the core wants to say as packets of MQTT."""

    def fits(self, answer: Properties) -> bool:
        size = len(encode_connack(int(self.version), False, rc.SUCCESS, answer))
        return not self.max_packet_size or size <= self.max_packet_size

    def accept(self, present: bool, answer: Properties) -> None:
        # The byte is reserved in version 3.1.
        self.send(encode_connack(int(self.version), present and self.version > 3, rc.SUCCESS, answer))

    def reject(self, reason_code: int) -> None:
        code = reason_code
        if self.version != 5:
            code = _REFUSALS_311.get(reason_code, rc.CONNACK_NOT_AUTHORIZED)
        answer = encode_connack(int(self.version), False, code)  # [MQTT-3.2.2-6]
        if not self.max_packet_size or len(answer) <= self.max_packet_size:
            self.send(answer)

    # Written out four times: a call between would cost as much as the rest.

    def puback(self, packet_id: i64) -> None:
        if not self.closed:
            write_i32_be(self.writer(), i32(PUBACK << 24 | 0x20000 | packet_id))

    def pubrec(self, packet_id: i64) -> None:
        if not self.closed:
            write_i32_be(self.writer(), i32(PUBREC << 24 | 0x20000 | packet_id))

    def pubrel(self, packet_id: i64) -> None:
        if not self.closed:
            write_i32_be(self.writer(), i32(PUBREL << 24 | 0x20000 | packet_id))

    def pubcomp(self, packet_id: i64) -> None:
        if not self.closed:
            write_i32_be(self.writer(), i32(PUBCOMP << 24 | 0x20000 | packet_id))

    def answer(self, qos: int, packet_id: int, reason_code: int, properties: Properties | None) -> None:
        encode = encode_puback if qos == 1 else encode_pubrec
        self.send(encode(int(self.version), packet_id, reason_code, properties))

    def suback(self, packet_id: int, codes: list[int]) -> None:
        self.send(encode_suback(int(self.version), packet_id, codes))

    def unsuback(self, packet_id: int, codes: list[int]) -> None:
        self.send(encode_unsuback(int(self.version), packet_id, codes))

    def pingresp(self) -> None:
        self.send(PINGRESP)  # [MQTT-3.12.4-1]

    def disconnect(self, reason_code: int) -> None:
        if self.version == 5 and self.ready:  # before CONNACK nothing else is sent [MQTT-3.2.0-1]
            self.send(encode_disconnect(5, reason_code))
