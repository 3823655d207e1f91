"""The parse loop both sides share: a byte stream in, one call for each packet out.

The loop walks over the buffer it was given and copies nothing but what a packet keeps.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i16_be
from mypy_extensions import i64, mypyc_attr

from headrace.errors import MalformedPacket, PacketTooLarge, ProtocolError
from headrace.mqtt import packets, states
from headrace.mqtt.data_types import read_u16
from headrace.mqtt.packets import Publish
from headrace.mqtt.properties import read_properties
from headrace.mqtt.publish import TopicAliases, decode_publish
from headrace.stream import PARTIAL, ByteStream

# The four flag bits each packet type must have (sections 2.1.3); PUBLISH is not asked.
_FLAGS: Final = 0x0202_0200_0000  # four bits for each, CONNECT's behind those of 0
_PUBLISH: Final = 3
_PUBACK: Final = 4
_PUBREC: Final = 5
_PUBREL: Final = 6
_PUBCOMP: Final = 7


@mypyc_attr(allow_interpreted_subclasses=True)
class PeerHandler:
    """What either side may receive. Every method is called from `receive_data`, in packet order."""

    def on_publish(self, packet: Publish) -> None: ...

    def on_puback(self, packet_id: int, reason_code: int) -> None: ...

    def on_pubrec(self, packet_id: int, reason_code: int) -> None: ...

    def on_pubrel(self, packet_id: int, reason_code: int) -> None: ...

    def on_pubcomp(self, packet_id: int, reason_code: int) -> None: ...

    def on_protocol_error(self, error: ProtocolError) -> None:
        """Handle the error, once; nothing is parsed after it."""


class PacketStream(ByteStream):
    """Base of `ServerProtocol` and `ClientProtocol`. `version` is 0 until it is known, then 3, 4 or 5."""

    def __init__(
        self,
        peer: PeerHandler,
        allowed: i64,
        max_packet_size: int,
        topic_alias_maximum: int,
        from_server: bool,
    ) -> None:
        super().__init__()
        self._peer = peer
        self._allowed: i64 = allowed  # `states.allowed_in`
        self._max_packet_size: i64 = max_packet_size
        self._aliases = TopicAliases(topic_alias_maximum)
        self._from_server = from_server

    def limit_packets(self, bytes_max: i64) -> None:
        """Accept no larger packet from now on."""
        self._max_packet_size = bytes_max

    def _refuse(self, error: ProtocolError) -> None:
        if self.state != states.CLOSED:
            peer = self._peer
            self.stop()
            peer.on_protocol_error(error)

    def _parse(self, data: bytes) -> None:
        pos: i64 = 0
        size: i64 = len(data)
        self._left = self.packets_at_once
        while pos + 1 < size:
            header = i64(read_i16_be(data, pos))  # both bytes in one go
            first: i64 = header >> 8 & 0xFF
            length: i64 = header & 0xFF
            body: i64 = pos + 2
            if length >= 128:
                found = self._long_length(data, pos, size)
                if found == 0:
                    self._keep(data, pos, 1)
                    return
                length = found >> 3
                body = pos + 1 + (found & 7)
            end: i64 = body + length
            if end - pos > self._max_packet_size:
                raise PacketTooLarge(end - pos, self._max_packet_size)  # [MQTT-3.1.2-24] [MQTT-3.2.2-15]
            if end > size:
                self._keep(data, pos, end - size)
                return
            self._packet(data, first, pos, body, end)
            if self.state == states.CLOSED:
                if self.leaving:
                    self.unparsed = data[pos:]
                return
            pos = end
            self._left -= 1
            if self._held or self._left <= 0:
                self._interrupt(data, pos)
                return
        if pos < size:
            self._keep(data, pos, 1)

    def _long_length(self, data: bytes, pos: i64, size: i64) -> i64:
        """Return a Remaining Length of more than one byte (2.1.4), times eight, plus how many bytes it has; 0 if they
        are not there yet."""
        length: i64 = data[pos + 1] & 127
        shift: i64 = 7
        at: i64 = pos + 2
        while at < size:
            byte: i64 = data[at]
            at += 1
            length |= (byte & 127) << shift
            if byte < 128:
                if byte == 0 and self.version == 5:
                    raise MalformedPacket("remaining length longer than needed")  # [MQTT-1.5.5-1]
                return length << 3 | (at - pos - 1)
            shift += 7
            if shift == 28:
                raise _endless_length(data[pos])
        return 0

    def _keep(self, data: bytes, pos: i64, missing: i64) -> None:
        """Wait for the rest of the packet at `pos`, unless its first byte already says that it is refused."""
        self._admit(data[pos], 0)
        if pos == 0:
            self.outcome = PARTIAL
        self._rest = bytearray(data[pos:])
        self._missing = missing

    def _admit(self, first: i64, length: i64) -> None:
        """Check that a packet that starts with this byte is allowed in this state; it is a ProtocolError if not."""
        packet_type: i64 = first >> 4
        if not self._allowed >> (self.state << 4 | packet_type) & 1:
            raise self._out_of_place(packet_type, first & 15, length)
        if packet_type != _PUBLISH and first & 15 != _FLAGS >> (packet_type << 2) & 15 and self.version > 3:
            raise reserved_flags()

    def _out_of_place(self, packet_type: i64, flags: i64, length: i64) -> ProtocolError:
        if packet_type in (packets.SUBACK, packets.UNSUBACK, packets.PINGRESP) and flags:
            return reserved_flags()
        if packet_type == packets.PINGRESP and length > 0:
            return no_content(packet_type)
        return ProtocolError(0x82, f"{packets.NAMES[packet_type]} while {states.STATE_NAMES[self.state]}")

    def _packet(self, data: bytes, first: i64, start: i64, pos: i64, end: i64) -> None:
        """Handle the packet from `start` to `end`; behind its fixed header it goes on at `pos`."""
        self._admit(first, end - pos)
        packet_type: i64 = first >> 4
        if packet_type == _PUBLISH:
            self._publish(data, first, start, pos, end)
        elif _PUBACK <= packet_type <= _PUBCOMP:
            self._acknowledgement(packet_type, data, pos, end)
        else:
            self._other_packet(first, data, pos, end)

    def _publish(self, data: bytes, first: i64, start: i64, pos: i64, end: i64) -> None:
        self._peer.on_publish(
            decode_publish(data, first & 15, pos, end, self.version, self._aliases, self._from_server)
        )

    def _acknowledgement(self, packet_type: i64, data: bytes, pos: i64, end: i64) -> None:
        packet_id = read_u16(data, pos, end)
        if packet_id == 0:
            raise ProtocolError(0x82, "packet identifier 0")  # [MQTT-2.2.1-3]
        reason_code: i64 = 0
        if end - pos > 2:
            reason_code = self._reason_code(packet_type, data, pos + 2, end)
        peer = self._peer
        if packet_type == _PUBACK:
            peer.on_puback(packet_id, reason_code)
        elif packet_type == _PUBREC:
            peer.on_pubrec(packet_id, reason_code)
        elif packet_type == _PUBREL:
            peer.on_pubrel(packet_id, reason_code)
        else:
            peer.on_pubcomp(packet_id, reason_code)

    def _reason_code(self, packet_type: i64, data: bytes, pos: i64, end: i64) -> i64:
        """Read reason code and properties of a version 5 acknowledgement; the properties are checked and dropped."""
        if self.version != 5:
            raise MalformedPacket("bytes left over at the end of the packet")
        reason_code: i64 = data[pos]
        allowed = _RELEASE_CODES if packet_type >= _PUBREL else _RECEIVE_CODES
        if reason_code not in allowed:
            raise ProtocolError(0x82, f"reason code 0x{reason_code:02X} in {packets.NAMES[packet_type]}")
        if pos + 1 < end:
            _, pos = read_properties(data, pos + 1, end, packet_type)
            if pos != end:
                raise MalformedPacket("bytes left over at the end of the packet")
        return reason_code

    def _other_packet(self, first: i64, data: bytes, pos: i64, end: i64) -> None:
        """Handle every packet that only one side receives; it moves the state."""
        raise NotImplementedError


_RECEIVE_CODES: Final = b"\x00\x10\x80\x83\x87\x90\x91\x97\x99"  # PUBACK, PUBREC: section 3.4.2.1, 3.5.2.1
_RELEASE_CODES: Final = b"\x00\x92"  # PUBREL, PUBCOMP: section 3.6.2.1, 3.7.2.1


def reserved_flags() -> MalformedPacket:
    return MalformedPacket("reserved flags of the fixed header")  # [MQTT-2.1.3-1]


def no_content(packet_type: i64) -> ProtocolError:
    return ProtocolError(0x81, f"{packets.NAMES[packet_type]} with content", silent=True)


def _endless_length(first: i64) -> ProtocolError:
    """Return the error of a remaining length of five bytes or more (section 2.1.4): where the packet ends is
    unknown."""
    if first < 16:
        return ProtocolError(0x82, "reserved packet type")
    return ProtocolError(0x81, "remaining length of more than four bytes", silent=True)
