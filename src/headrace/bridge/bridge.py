"""A bridge: keeps one connection to a remote broker, and comes back when it is lost. Runs on the loop.

The local side, a session of the core, is there all the time. An attempt tries the addresses in order; after a round
without success it waits, twice as long each time, with jitter. Nothing here happens per message.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from headrace.address import Location
from headrace.backoff import Backoff
from headrace.bridge.counters import BridgeCounters
from headrace.bridge.link import RemoteLink
from headrace.bridge.rendering import trace_of
from headrace.bridge.settings import BridgeSettings
from headrace.bridge.suspect import Suspect
from headrace.bridge.terms import Terms
from headrace.bridge.tls import UnusableFile, client_context
from headrace.bridge.topics import TopicMap, subscriptions
from headrace.core.broker import Broker
from headrace.core.inbound.bridging import Bridging
from headrace.core.state.session import Session
from headrace.links.websocket_client import WebSocketClient
from headrace.mqtt.packets import VERSION_5, Connect, Will
from headrace.mqtt.properties import Properties
from headrace.sockets.keep_alive import ask_silent_peer

_ABORT_S: Final = 5.0
_REASONS_MAX: Final = 64  # the words are the remote broker's, and it may have many
_SAME_REASON_S: Final = 60.0  # a reason that stays the same is told once in so much time
Tell = Callable[..., object]  # a line for the log: what happened, and more about it by name


class Bridge:
    """Keeps one bridge connected. `info` and `warn` write log lines; `on_state` hears True and False as the connection
    comes and goes."""

    def __init__(
        self,
        settings: BridgeSettings,
        broker: Broker,
        bridging: Bridging,
        broker_id: str,
        info: Tell,
        warn: Tell,
        on_state: Callable[[Bridge, bool], None],
    ) -> None:
        self.settings = settings
        self.counters = BridgeCounters()
        self.up = False
        self._broker = broker
        self._bridging = bridging
        self._info = info
        self._warn = warn
        self._on_state = on_state
        rules = list(settings.rules)
        self._outward = subscriptions(rules, outward=True)
        self._client_id = settings.client_id or f"headrace-{broker_id}-{settings.name}"
        self._state_topic = ""
        if settings.notifications == "both":
            default = f"$SYS/broker/connection/{self._client_id}/state"
            self._state_topic = settings.notification_topic or default
        self._terms = Terms(
            TopicMap(rules),
            subscriptions(rules, outward=False),
            max(self._outward.values(), default=0),
            self._state_topic,
            trace_of(broker_id),
            settings.inflight_max,
            settings.packet_bytes_max,
        )
        self._backoff = Backoff(settings.reconnect_min_s, settings.reconnect_max_s)
        self._link: RemoteLink | None = None
        self._transport: asyncio.Transport | None = None  # of the socket, below TLS and WebSocket
        self._hurry = asyncio.Event()
        self._stopping = False
        self._told: dict[str, float] = {}
        self._drops_told = _Told()
        self._suspect = Suspect()
        self.session: Session = bridging.open(settings.name, self._outward)

    def is_of(self, broker: Broker) -> bool:
        """Return whether its session is one of this broker's."""
        return self._broker is broker

    async def run(self) -> None:
        """Connect, and again when it ends, until cancelled. Whatever goes wrong is said, and tried again."""
        while not self._stopping:
            for address in self.settings.addresses:
                started = time.monotonic()
                if await self._try(address):
                    self._backoff.lasted(time.monotonic() - started)
                    break
            self._hurry.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._backoff.next_s()):
                    await self._hurry.wait()

    def hurry(self) -> None:
        """Do not wait for the next attempt: files or the other broker may have changed."""
        self._told.clear()
        self._hurry.set()

    def stop(self) -> None:
        """Say goodbye, which ends `run` once that is out. What is under way stays so, and comes back with DUP."""
        self._stopping = True
        self._hurry.set()
        if self._link is not None:
            self._link.say_goodbye()

    async def _try(self, address: Location) -> bool:
        try:
            return await self._attempt(address)
        except Exception:  # noqa: BLE001  telling of it failed: what is left is to try again
            self.up = False
            return False

    async def _attempt(self, address: Location) -> bool:
        """Hold one connection from its beginning to its end; return False if it never got as far as sending
        messages."""
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        try:
            await self._connected(address, ended)
            reason = await ended
        except Exception as error:  # noqa: BLE001  an attempt may fail for any reason, the bridge for none
            reason = _words(error)
            await self._cut(ended)
        self._link = None
        self._transport = None
        if not self.up:
            self._failed(address, reason)
            return False
        self._went_down(address, reason)
        return True

    async def _connected(self, address: Location, ended: asyncio.Future[str]) -> None:
        """Connect, and wait until messages flow or it is over."""
        up: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        link = RemoteLink(
            self._broker,
            self._bridging,
            self.session,
            self._connect_packet(),
            self._terms,
            self.counters,
            self._suspect,
            lambda present: None if up.done() else up.set_result(present),
            lambda reason: None if ended.done() else ended.set_result(reason),
            self._dropped,
        )
        async with asyncio.timeout(self.settings.connect_timeout_s):
            await self._open(address, link)
            self._link = link
            await asyncio.wait((up, ended), return_when=asyncio.FIRST_COMPLETED)
        if up.done():
            self._came_up(address, link, up.result())

    async def _cut(self, ended: asyncio.Future[str]) -> None:
        """End what is left of an attempt, so that the next one finds the session free."""
        if self._transport is not None and not ended.done():
            self._transport.abort()
            await asyncio.wait((ended,), timeout=_ABORT_S)

    async def _open(self, address: Location, link: RemoteLink) -> None:
        if not address.websocket:
            await self._dial(address, link)
            return
        call_soon = asyncio.get_running_loop().call_soon
        socket = WebSocketClient(link, str(address), self.settings.packet_bytes_max, call_soon)
        try:
            await self._dial(address, socket)
        except BaseException:
            socket.give_up()  # nobody tells it that there will be no connection
            raise

    async def _dial(self, address: Location, protocol: object) -> None:
        loop = asyncio.get_running_loop()
        context = client_context(self.settings.tls) if address.encrypted else None

        def make() -> asyncio.Protocol:
            return protocol  # type: ignore[return-value]

        if address.scheme == "unix":
            self._transport, _ = await loop.create_unix_connection(make, address.path)
            return
        self._transport, _ = await loop.create_connection(make, address.host, address.port, ssl=context)
        connected = self._transport.get_extra_info("socket")
        if connected is not None and self.settings.tcp_keep_alive_s:
            ask_silent_peer(connected, self.settings.tcp_keep_alive_s)

    def _connect_packet(self) -> Connect:
        settings = self.settings
        limits = self.session.tenant.limits
        properties = Properties()
        if settings.version == VERSION_5:
            properties.session_expiry_interval = 0 if settings.clean_session else settings.session_expiry_s
            properties.receive_maximum = limits.receive_maximum
            properties.maximum_packet_size = settings.packet_bytes_max
            properties.topic_alias_maximum = self._broker.worker.settings.topic_alias_maximum
        will = Will(self._state_topic, b"0", 1, True) if self._state_topic else None
        return Connect(
            settings.version,
            self._client_id,
            settings.clean_session,
            settings.keep_alive_s,
            settings.username or None,
            self._password(),
            will,
            properties,
            settings.try_private,
        )

    def _password(self) -> bytes | None:
        """Return the first line of the password file, read anew each time, or the password of the configuration."""
        file = self.settings.password_file
        if not file:
            return self.settings.password.encode("utf-8") or None
        try:
            lines = Path(file).read_bytes().splitlines()
        except OSError as error:
            raise UnusableFile(f"{file}: {error.strerror}") from None
        return lines[0] if lines else b""

    def _came_up(self, address: Location, link: RemoteLink, present: bool) -> None:
        self.up = True
        self.counters.connects += 1
        self._told.clear()
        self._info("bridge up", bridge=self.settings.name, remote=str(address), session_present=present)
        if link.refused_filters:
            self._warn(
                "the remote broker refused subscriptions of a bridge",
                bridge=self.settings.name,
                filters=link.refused_filters,
            )
        self._on_state(self, True)

    def _went_down(self, address: Location, reason: str) -> None:
        self.up = False
        self._warn("bridge down", bridge=self.settings.name, remote=str(address), reason=reason)
        self._on_state(self, False)

    def _failed(self, address: Location, reason: str) -> None:
        """Note that an attempt came to nothing; it is told once a minute for the same reason."""
        self.counters.failures += 1
        now = time.monotonic()
        key = f"{address} {reason}"
        if now - self._told.get(key, -_SAME_REASON_S) >= _SAME_REASON_S:
            if len(self._told) >= _REASONS_MAX:
                self._told.clear()
            self._told[key] = now
            self._warn("bridge cannot connect", bridge=self.settings.name, remote=str(address), reason=reason)

    def _dropped(self, how: str, topic: str, reason: str) -> None:
        """Tell of a message that does not cross: once a minute for the same topic, and of so many topics at most. All of
        them are counted."""
        if self._drops_told.is_news(f"{how} {topic} {reason}"):
            self._warn(
                f"a message of a bridge was {how}", bridge=self.settings.name, topic=topic, reason=reason
            )


class _Told:
    """Lines that were logged within the last minute."""

    def __init__(self) -> None:
        self._at: dict[str, float] = {}

    def is_news(self, line: str) -> bool:
        """Return whether a line was not logged within the last minute, nor too many others; from now on it was."""
        now = time.monotonic()
        if len(self._at) >= _REASONS_MAX:
            self._at = {other: at for other, at in self._at.items() if now - at < _SAME_REASON_S}
        if len(self._at) >= _REASONS_MAX or now - self._at.get(line, -_SAME_REASON_S) < _SAME_REASON_S:
            return False
        self._at[line] = now
        return True


def _words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__
