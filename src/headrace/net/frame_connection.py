"""A connection of devices that speak frames: the byte stream of `connection`, with frames in it instead of packets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from headrace.core.inbound.devices import DeviceLink
from headrace.core.records.message import FrameMessage
from headrace.core.worker import Worker
from headrace.frames.server import ServerFrames
from headrace.links.frame_link import FrameVoice
from headrace.mqtt import reason_codes as rc
from headrace.net.connection import Connection, ConnectionSet
from headrace.stream import ByteStream

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from headrace.errors import ProtocolError
    from headrace.mqtt.protocol import ServerHandler

STRANGER_FRAME_MAX: Final = 192 << 10  # bytes of a frame of somebody who has not been let in: HELLO fits


class FrameConnection(Connection):
    """The connection of one client that speaks frames. `client` is its state in the core."""

    def __init__(self, worker: Worker, listener: ConnectionSet, source: str = "") -> None:
        super().__init__(worker, listener, source)

    def make_stream(self) -> ByteStream:
        client = DeviceLink(self, FrameVoice(self), cast("Worker", self.worker).bind_device)
        self.client: DeviceLink | None = client
        frames = ServerFrames(client, min(int(self.packet_bytes_max), STRANGER_FRAME_MAX))
        client.take(frames)
        return frames

    def is_stranger(self) -> bool:
        return not self.relayed and (self.client is None or self.client.is_stranger)

    def let_in(self) -> None:
        client = self.client
        most = self.identity.limits.tenant_packet_bytes_max
        if most:
            self.limit_packets(most)
        if client is not None and client.frames is not None:
            client.frames.frame_bytes_max = self.packet_bytes_max
        self.forgive()

    def stored(self, message: FrameMessage) -> None:
        if self.client is not None:
            self.client.durable(message)

    def disconnect(self, reason_code: int) -> None:
        if self.client is not None:
            self.client.voice.fail(reason_code, rc.name(reason_code))

    def refuse(self, error: ProtocolError) -> None:
        if self.client is not None and not error.silent:
            self.client.voice.fail(error.reason_code, error.message)

    def unbind(self) -> None:
        self._lose_client()
        super().unbind()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.client is not None:
            self.client.writable()

    def give_up(self) -> None:
        self._lose_client()
        super().give_up()

    def connection_lost(self, error: Exception | None) -> None:
        self._lose_client()
        super().connection_lost(error)

    def _lose_client(self) -> None:
        client = self.client
        if client is not None:
            self.client = None  # the two would keep each other alive
            client.lost()

    def route_through(
        self, handler: ServerHandler, around: Callable[[asyncio.Transport], asyncio.Transport] | None
    ) -> None:
        """Do nothing: a trace shows packets."""
