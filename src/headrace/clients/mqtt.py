"""A small asyncio MQTT client over the sans-I/O `ClientProtocol`: one connection, no reconnect, explicit acks.

    async with MqttClient("127.0.0.1", 1883, Connect(5, "me")) as client:
        await client.publish(b"a/b", b"hello", qos=1)
        await client.subscribe([SubscriptionRequest("a/#", 1)])
        message = await client.receive()
        client.ack(message)

Runs on the loop. `publish` waits while the server's Receive Maximum is in flight, and while the socket is full.
Reading pauses while the application is behind and no answer is awaited. A received message of QoS 1 or 2 counts
against our Receive Maximum until `ack`. Every waiting method raises ConnectionLost when the connection ends.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from headrace.clients.connection import Connection
from headrace.clients.errors import NotSupported
from headrace.errors import HeadraceError
from headrace.mqtt import codec, reason_codes
from headrace.mqtt.data_types import shown_name
from headrace.mqtt.packets import (
    NO_EXPIRY,
    VERSION_5,
    Connect,
    Publish,
    Suback,
    SubscriptionRequest,
    Unsuback,
)
from headrace.mqtt.properties import Properties

_LOG = logging.getLogger(__name__)
_PAUSE_AT_MESSAGES = 1_000


class MqttClient(Connection):
    """A client of MQTT: publish, subscribe, receive, acknowledge."""

    def __init__(
        self,
        host: str,
        port: int,
        connect: Connect,
        open_timeout_s: float = 10.0,
        tls: ssl.SSLContext | None = None,
        websocket_path: str = "",
        farewell: Properties | None = None,
    ) -> None:
        super().__init__(host, port, connect, open_timeout_s, tls, websocket_path, farewell)
        self._messages: deque[Publish] = deque()
        self._arrival = asyncio.Event()
        self._incoming_qos2: set[int] = set()
        self._order = asyncio.Lock()
        self._paused = False

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def publish(
        self,
        topic: bytes,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        properties: bytes = b"",
        message_expiry_s: int = NO_EXPIRY,
        topic_alias: int = 0,
    ) -> int:
        """Publish and wait for the end of its flow; the reason code of the acknowledgement, 0 for QoS 0.

        Calls that overlap are sent in the order in which they were made.
        """
        async with self._order:
            self._check(qos, retain)
            packet_id = await self._window.enter() if qos else 0
            try:
                await self._link.writable()
                packet = codec.encode_publish(
                    self.version,
                    topic,
                    payload,
                    qos,
                    retain,
                    False,
                    packet_id,
                    properties,
                    message_expiry_s,
                    topic_alias,
                )
                self._check_size(packet)
                answer = self._request(packet_id, packet) if qos else None
            except BaseException:
                self._window.leave(packet_id)
                raise
            if answer is None:
                self._send(packet)
                return 0
        try:
            code = await answer
        finally:
            self._window.leave(packet_id)
        assert isinstance(code, int)
        return code

    async def subscribe(
        self, filters: Sequence[SubscriptionRequest], properties: Properties | None = None
    ) -> Suback:
        packet_id = self._window.take_id()
        try:
            packet = codec.encode_subscribe(self.version, packet_id, filters, properties)
            return await self._ask(packet_id, packet, Suback)
        finally:
            self._window.free_id(packet_id)

    async def unsubscribe(self, filters: Sequence[str], properties: Properties | None = None) -> Unsuback:
        packet_id = self._window.take_id()
        try:
            packet = codec.encode_unsubscribe(self.version, packet_id, filters, properties)
            return await self._ask(packet_id, packet, Unsuback)
        finally:
            self._window.free_id(packet_id)

    async def receive(self) -> Publish:
        """Return the next message. After the connection has ended, what had arrived before comes first."""
        while not self._messages:
            if self.lost is not None:
                raise self.lost
            self._arrival.clear()
            await self._arrival.wait()
        message = self._messages.popleft()
        self._pace()
        return message

    def ack(self, message: Publish, reason_code: int = 0) -> None:
        """Acknowledge a received message: PUBACK for QoS 1, PUBREC for QoS 2, nothing for QoS 0."""
        if message.qos == 1:
            self._send(codec.encode_puback(self.version, message.packet_id, reason_code))
        elif message.qos == 2:
            if reason_code >= 0x80:
                self._incoming_qos2.discard(message.packet_id)
            self._send(codec.encode_pubrec(self.version, message.packet_id, reason_code))

    def on_publish(self, packet: Publish) -> None:
        if packet.qos == 2:
            if packet.packet_id in self._incoming_qos2:
                return  # a repeat: the application has it, and PUBREC follows its ack [MQTT-4.3.3-10]
            self._incoming_qos2.add(packet.packet_id)
        self._messages.append(packet)
        self._arrival.set()
        self._pace()

    def on_odd_publish(self, packet: Publish) -> bool:
        """Refuse a message whose topic no terminal should show, and log that; those behind it are received."""
        self.ack(packet, reason_codes.TOPIC_NAME_INVALID if self.version == VERSION_5 else 0)
        _LOG.warning(
            "dropped a message: control character or non-character in topic %s", shown_name(packet.topic)
        )
        return True

    def on_puback(self, packet_id: int, reason_code: int) -> None:
        self._answer(packet_id, reason_code)

    def on_pubrec(self, packet_id: int, reason_code: int) -> None:
        if reason_code >= 0x80:
            self._answer(packet_id, reason_code)
            return
        code = 0 if packet_id in self._answers else reason_codes.PACKET_IDENTIFIER_NOT_FOUND
        self._send(codec.encode_pubrel(self.version, packet_id, code))

    def on_pubrel(self, packet_id: int, reason_code: int) -> None:
        code = 0 if packet_id in self._incoming_qos2 else reason_codes.PACKET_IDENTIFIER_NOT_FOUND
        self._incoming_qos2.discard(packet_id)
        self._send(codec.encode_pubcomp(self.version, packet_id, code))

    def on_pubcomp(self, packet_id: int, reason_code: int) -> None:
        self._answer(packet_id, reason_code)

    def _check(self, qos: int, retain: bool) -> None:
        if self.lost is not None:
            raise self.lost
        highest = self.properties.maximum_qos
        if highest is not None and qos > highest:  # [MQTT-3.2.2-11]
            raise NotSupported(f"QoS {qos}, the server takes up to {highest}")
        if retain and self.properties.retain_available == 0:  # [MQTT-3.2.2-14]
            raise NotSupported("the server keeps no retained messages")

    def _check_size(self, packet: bytes) -> None:
        limit = self.properties.maximum_packet_size
        if limit is not None and len(packet) > limit:  # [MQTT-3.2.2-15]
            raise NotSupported(f"a packet of {len(packet)} bytes, the server takes {limit}")

    def _pace(self) -> None:
        """Read no further while the application is behind, unless an answer is among what was not read."""
        behind = len(self._messages) >= _PAUSE_AT_MESSAGES and not self._answers
        if behind != self._paused:
            self._paused = behind
            if behind:
                self._link.pause_reading()
            else:
                self._link.resume_reading()

    def _end(self, why: HeadraceError, close: bool = True) -> None:
        super()._end(why, close)
        self._arrival.set()
