"""A tap on one connection: what it sends, on its way from the parser to the broker, and what it is sent.

Runs on the loop. Packets are described before they are handled; what goes wrong here changes nothing for the client.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from headrace.errors import ProtocolError
from headrace.mqtt import reason_codes as rc
from headrace.mqtt.packets import Auth, Connect, Disconnect, Publish, Subscribe, Unsubscribe
from headrace.mqtt.protocol import ServerHandler
from headrace.net.connection import Connection
from headrace.services.packet_rows import Row, rows_of

VERSIONS = {3: "3.1", 4: "3.1.1", 5: "5.0"}


class Listener(Protocol):
    """Hears of the packets of a tapped connection."""

    def packet(self, row: Row, peer: str) -> None: ...

    def named(self, connection: Connection) -> None: ...


class Tap(ServerHandler):
    """Passes every packet on to the connection, and tells a listener of it."""

    def __init__(self, connection: Connection, peer: str, listener: Listener) -> None:
        super().__init__()
        self._link = connection
        self._peer = peer
        self._listener = listener
        self._below: TappedTransport | None = None
        self._on = True
        self._client_id = connection.client_id

    def attach(self) -> None:
        self._link.route_through(self, self._around)

    def _around(self, transport: asyncio.Transport) -> asyncio.Transport:
        self._below = TappedTransport(transport, self._sent)
        return self._below

    def detach(self) -> None:
        self._on = False
        below = self._below
        self._link.route_through(self._link, None if below is None else lambda _: below.below)

    def _note(self, packet: str, **more: Any) -> None:
        self._tell({"dir": "in", "packet": packet, **more})

    def _tell(self, row: Row) -> None:
        if self._on:
            client_id = self._link.client_id or self._client_id
            whole = {"time": time.time(), "client": client_id, "address": self._peer, **row}
            with suppress(Exception):  # a trace is in nobody's way
                self._listener.packet(whole, self._peer)

    def _sent(self, data: bytes) -> None:
        with suppress(Exception):
            for row in rows_of(bytes(data), int(self._link.version)):
                if row.get("topic") == "":
                    row["topic"] = self._topic_of(row.get("alias"))
                self._tell({"dir": "out", **row})

    def _topic_of(self, alias: object) -> str:
        for topic, known in (self._link.aliases or {}).items():
            if known == alias:
                return topic.decode("utf-8", "replace")
        return ""

    # ServerHandler

    def on_connect(self, packet: Connect) -> None:
        self._client_id = packet.client_id
        version = VERSIONS.get(packet.version, "")
        will = "" if packet.will is None else packet.will.topic
        self._note(
            "CONNECT",
            version=version,
            clean=packet.clean_start,
            keep_alive_s=packet.keep_alive_s,
            user=packet.username or "",
            will=will,
        )
        self._link.on_connect(packet)
        self._listener.named(self._link)

    def on_publish(self, packet: Publish) -> None:
        topic = packet.topic.decode("utf-8", "replace")
        flags = {"qos": packet.qos, "retain": packet.retain, "dup": packet.dup, "id": packet.packet_id}
        self._note("PUBLISH", topic=topic, **flags, bytes=len(packet.payload))
        self._link.on_publish(packet)

    def on_plain_publish(self, topic: bytes, packet: bytes, payload_at: int) -> None:
        size = len(packet) - int(payload_at)
        flags = {"qos": 0, "retain": False, "dup": False, "id": 0}
        self._note("PUBLISH", topic=topic.decode("utf-8", "replace"), **flags, bytes=size)
        self._link.on_plain_publish(topic, packet, payload_at)

    def on_subscribe(self, packet: Subscribe) -> None:
        for request in packet.filters:
            self._note("SUBSCRIBE", topic=request.filter, qos=request.qos, id=packet.packet_id)
        self._link.on_subscribe(packet)

    def on_unsubscribe(self, packet: Unsubscribe) -> None:
        for topic_filter in packet.filters:
            self._note("UNSUBSCRIBE", topic=topic_filter, id=packet.packet_id)
        self._link.on_unsubscribe(packet)

    def on_puback(self, packet_id: int, reason_code: int) -> None:
        self._acknowledgement("PUBACK", packet_id, reason_code, self._link.on_puback)

    def on_pubrec(self, packet_id: int, reason_code: int) -> None:
        self._acknowledgement("PUBREC", packet_id, reason_code, self._link.on_pubrec)

    def on_pubrel(self, packet_id: int, reason_code: int) -> None:
        self._acknowledgement("PUBREL", packet_id, reason_code, self._link.on_pubrel)

    def on_pubcomp(self, packet_id: int, reason_code: int) -> None:
        self._acknowledgement("PUBCOMP", packet_id, reason_code, self._link.on_pubcomp)

    def _acknowledgement(
        self, name: str, packet_id: int, reason_code: int, then: Callable[[int, int], None]
    ) -> None:
        self._note(name, id=packet_id, **({"reason": rc.name(reason_code)} if reason_code else {}))
        then(packet_id, reason_code)

    def on_pingreq(self) -> None:
        self._note("PINGREQ")
        self._link.on_pingreq()

    def on_disconnect(self, packet: Disconnect) -> None:
        self._note("DISCONNECT", reason=rc.name(packet.reason_code))
        self._link.on_disconnect(packet)

    def on_auth(self, packet: Auth) -> None:
        self._note("AUTH")
        self._link.on_auth(packet)

    def on_protocol_error(self, error: ProtocolError) -> None:
        self._note("(not a packet)", reason=str(error))
        self._link.on_protocol_error(error)


class TappedTransport(asyncio.Transport):
    """Shows a listener what is written, and is the transport `below` in everything else."""

    def __init__(self, below: asyncio.Transport, tell: Callable[[bytes], None]) -> None:
        super().__init__()
        self.below = below
        self._tell = tell

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._tell(bytes(data))
        self.below.write(data)

    def close(self) -> None:
        self.below.close()

    def abort(self) -> None:
        self.below.abort()

    def is_closing(self) -> bool:
        return self.below.is_closing()

    def pause_reading(self) -> None:
        self.below.pause_reading()

    def resume_reading(self) -> None:
        self.below.resume_reading()

    def get_write_buffer_size(self) -> int:
        return self.below.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.below.set_write_buffer_limits(high)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.below.get_extra_info(name, default)
