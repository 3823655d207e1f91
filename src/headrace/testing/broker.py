"""A broker inside an asyncio program: it runs on the loop of whoever starts it, in any thread, and stops with it.

    async with Broker(session__inflight_max=10) as broker:
        async with aiomqtt.Client(broker.host, broker.port) as client:
            await client.publish("plant/boiler", b"71.5", qos=1)
        await broker.wait_until_published("plant/#")

It takes no signals and leaves the garbage collector's settings alone. Its log goes to the logger `headrace` of
`logging`, unless the program has configured structlog. It shares the loop, so what blocks the loop blocks the broker,
and it cannot be killed: for that there is `BrokerProcess`.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog

from headrace.config import Config, load
from headrace.errors import HeadraceError
from headrace.node.node import Node
from headrace.testing.contents import Contents, Message
from headrace.testing.ports import HOST, free_port, with_port
from headrace.testing.settings import assignments

WAIT_TIMEOUT_S = 10.0
POLL_INTERVAL_S = 0.01


class Broker:
    """One broker inside the program. Takes the arguments of `BrokerProcess`. Every method is called on the loop that
    started it."""

    def __init__(
        self,
        settings: Mapping[str, object] | None = None,
        *,
        folder: Path | None = None,
        port: int = 0,
        listeners: Sequence[str] = (),
        config: Path | None = None,
        **keywords: object,
    ) -> None:
        self._assignments = assignments(settings, keywords)
        self.port = port or free_port()
        self.listeners = [with_port(url) for url in listeners]
        self._config = config
        self._temporary = None if folder else tempfile.TemporaryDirectory(prefix="headrace-")
        self.folder = Path(self._temporary.name) if self._temporary else Path(str(folder)).absolute()
        self.data_dir = self.folder / "data"
        self._contents = Contents(self.data_dir)
        self._node: Node | None = None
        self._task: asyncio.Task[int] | None = None

    @property
    def host(self) -> str:
        return HOST

    @property
    def url(self) -> str:
        return f"tcp://{HOST}:{self.port}"

    @property
    def running(self) -> bool:
        return self._task is not None and not self._task.done()

    # Life

    async def start(self) -> Self:
        """Return when clients are accepted. Raises RuntimeError if it runs; ConfigError, JournalError, OSError."""
        if self.running:
            raise RuntimeError("the broker is running")
        _route_logs()
        self._node = Node(self._configuration(), owns_process=False)
        self._task = asyncio.get_running_loop().create_task(self._node.run(), name="headrace")
        ready = asyncio.ensure_future(self._node.ready.wait())
        try:
            await asyncio.wait((self._task, ready), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.stop()
            raise
        finally:
            ready.cancel()
        if self._task.done():
            await self.stop()
        return self

    async def stop(self) -> None:
        """Say goodbye to the clients and write everything down. Nothing if it does not run.

        Raises HeadraceError if its journal has failed, and whatever ended it before.
        """
        if self._node is None or self._task is None:
            return
        node, task, self._node, self._task = self._node, self._task, None, None
        node.stop()
        await asyncio.wait([task])
        _raise_failure(task)

    async def restart(self) -> None:
        """Do `stop` and `start`, with the same ports and data."""
        await self.stop()
        await self.start()

    async def close(self) -> None:
        """Stop, and remove a temporary folder. It cannot be started again."""
        try:
            await self.stop()
        finally:
            self._discard()

    async def __aenter__(self) -> Self:
        try:
            return await self.start()
        except BaseException:
            self._discard()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # What it holds, and waiting for it

    def messages(self, topic: str = "#") -> list[Message]:
        """Return the messages of QoS 1 and 2 in the journal whose topic matches this filter, in order; also after a
        stop."""
        return self._contents.messages(topic)

    async def wait_until(
        self, condition: Callable[[], bool], what: str = "the condition", timeout_s: float = WAIT_TIMEOUT_S
    ) -> None:
        """Ask `condition` again and again until it is true. Raises TimeoutError that tells what the broker holds."""
        until = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > until:
                raise TimeoutError(f"{what}: not within {timeout_s} s; {self._contents.summary()}")
            await asyncio.sleep(POLL_INTERVAL_S)

    async def wait_until_published(
        self, topic: str = "#", count: int = 1, timeout_s: float = WAIT_TIMEOUT_S
    ) -> list[Message]:
        """Wait for `count` messages of QoS 1 or 2 on topics that match; returns all there are."""
        await self.wait_until(
            self._contents.published(topic, count), f"{count} messages on {topic}", timeout_s
        )
        return self.messages(topic)

    async def wait_until_connected(self, client_id: str, timeout_s: float = WAIT_TIMEOUT_S) -> None:
        await self.wait_until(self._contents.connected(client_id), f"{client_id} connected", timeout_s)

    async def wait_until_disconnected(self, client_id: str, timeout_s: float = WAIT_TIMEOUT_S) -> None:
        await self.wait_until(self._contents.disconnected(client_id), f"{client_id} disconnected", timeout_s)

    async def wait_until_subscribed(
        self, topic: str, client_id: str | None = None, timeout_s: float = WAIT_TIMEOUT_S
    ) -> None:
        """Wait until that client, or any, has subscribed to exactly this topic filter."""
        condition = self._contents.subscribed(topic, client_id)
        await self.wait_until(condition, f"{client_id or 'somebody'} subscribed to {topic}", timeout_s)

    def _configuration(self) -> Config:
        ours = {"data_dir": str(self.data_dir), "listeners": [self.url, *self.listeners]}
        return load(
            self._config,
            self._assignments + [f"{key}={json.dumps(ours[key])}" for key in ours],
            environment={},
        )

    def _discard(self) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()


def _raise_failure(task: asyncio.Task[int]) -> None:
    """Raise whatever ended the broker, unless it was a stop."""
    if task.result():
        raise HeadraceError("the broker has failed; its log says why")


def _route_logs() -> None:
    """Route our lines by `logging`, as from any library, unless the program has configured structlog."""
    if structlog.is_configured():
        return
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.add_log_level,
            structlog.processors.KeyValueRenderer(key_order=["event"], drop_missing=True),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
