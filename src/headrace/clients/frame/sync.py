"""The producer and the consumer for programs without an event loop.

    with Producer("frame://127.0.0.1:6800", "door-17") as producer:
        message_id = producer.publish("dormitory/doors", b"opened by card 4711")

    consumer = Consumer("frame://127.0.0.1:6800", "dormitory/doors", "log", database=create_engine("sqlite:///doors.db"))

    @consumer.handler
    def store(message: Message, db: Connection) -> None:
        db.execute(insert(openings).values(lock=message.sn, what=message.payload.decode()))

    consumer.run()

They do what those for asyncio do (`producer.py`, `consumer.py`). A producer connects in a thread of its own; handlers
of a consumer run in as many threads as its pool has workers.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

from headrace.clients.frame import consumer as of_asyncio
from headrace.clients.frame import producer
from headrace.clients.frame.background import LoopThread


class Producer:
    """Publishes for programs without an event loop. Takes the arguments of the producer for asyncio. May be used by
    many threads."""

    def __init__(self, url: str, sn: str | bytes, *, in_flight_max: int = 256, **more: Any) -> None:
        self._producer = producer.Producer(url, sn, in_flight_max=in_flight_max, **more)
        self._places = threading.BoundedSemaphore(in_flight_max)
        self._thread: LoopThread | None = None

    def __enter__(self) -> Self:
        self._thread = LoopThread("headrace-producer")
        self._thread.call(self._open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._thread is not None
        self._thread.call(self._producer.close())
        self._thread.stop()

    async def _open(self) -> None:
        self._producer.open()

    def publish(self, topic: str, payload: bytes, seq: int | None = None) -> bytes:
        """Return the 16 bytes that name the message, when it is durable. Raises what the one for asyncio raises."""
        return self.submit(topic, payload, seq).result()

    def submit(self, topic: str, payload: bytes, seq: int | None = None) -> Future[bytes]:
        """Begin to publish; the future has the message id, or the error. Blocks while `in_flight_max` are unanswered.
        Raises Closed behind the `with` statement."""
        assert self._thread is not None, "use it in a `with` statement"
        self._places.acquire()
        try:
            answer = self._thread.submit(self._producer.publish(topic, payload, seq))
        except BaseException:
            self._places.release()
            raise
        answer.add_done_callback(lambda _: self._places.release())
        return answer


class Consumer:
    """Consumes for programs without an event loop. Takes the arguments of the consumer for asyncio; handlers are plain
    functions, the database an Engine or sessionmaker."""

    def __init__(self, url: str, topic: str, cluster: str, **more: Any) -> None:
        self._consumer = of_asyncio.Consumer(url, topic, cluster, **more)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = threading.Event()
        self.handler = self._consumer.handler
        self.poison = self._consumer.poison

    @property
    def counts(self) -> of_asyncio.Consumer:
        """Return who has the counts: `processed`, `repeats`, `failures`, `poisoned`, `acknowledged`, `workers`."""
        return self._consumer

    def run(self) -> None:
        """Consume until `stop`, or Ctrl-C. Raises what the one for asyncio raises."""
        asyncio.run(self._run())

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        if self._stopped.is_set():
            self._consumer.stop()
        await self._consumer.run()

    def stop(self) -> None:
        """Have `run` return when what is in hand was handled and acknowledged. May be called from any thread."""
        self._stopped.set()
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._consumer.stop)
