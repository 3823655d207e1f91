"""A device that never stops publishing: it numbers its messages, keeps a window of them in flight, and after
a cut returns and resends what was not acknowledged, with DUP, in the order of the first sending (MQTT 4.4).
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict

from broker_process import BrokerProcess
from e2e.raw import ClosedError, RawClient, SilenceError
from e2e.wire import PUBACK, PUBCOMP, PUBREC, PUBREL, Packet


class Producer(threading.Thread):
    """Publishes 0, 1, 2, ... as decimal payloads `<name>:<number>` until `count`, or until `finish()`."""

    def __init__(
        self,
        broker: BrokerProcess,
        name: str,
        topic: str,
        *,
        count: int | None = None,
        qos: int = 1,
        window: int = 16,
        rate: float = 0.0,
        padding: int = 0,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.broker, self.client_name, self.topic = broker, name, topic
        self.count, self.qos, self.window, self.rate = count, qos, window, rate
        self.padding = b" " * padding
        self.sent = 0
        self.acked: set[int] = set()
        self.resent: set[int] = set()  # these may arrive twice: their first copy may have been taken
        self.reconnects = 0
        self.error: BaseException | None = None
        self._changed = threading.Condition()
        self._finish = threading.Event()
        self._in_flight: OrderedDict[int, tuple[int, bool]] = (
            OrderedDict()
        )  # packet id -> number, PUBREC seen
        self._client: RawClient | None = None
        self._next_id = 0
        self._started_s = 0.0

    # -- what a test calls

    def finish(self) -> None:
        """Sends no new message; ends when all that were sent are acknowledged."""
        self._finish.set()

    def wait_acked(self, number: int, deadline_s: float = 60.0) -> None:
        with self._changed:
            self._changed.wait_for(lambda: len(self.acked) >= number or self.error is not None, deadline_s)
        assert len(self.acked) >= number, (
            f"{self.name} ended with {len(self.acked)} of {number}: {self.error!r}"
        )

    def join_finished(self, deadline_s: float = 60.0) -> None:
        self.join(deadline_s)
        assert not self.is_alive(), f"{self.name}: {len(self.acked)} of {self.sent} acknowledged"
        assert self.error is None, repr(self.error)
        assert len(self.acked) == self.sent

    # -- the device

    def run(self) -> None:
        self._started_s = time.monotonic()
        try:
            while not self._done():
                try:
                    self._step(self._client or self._connect())
                except ClosedError:
                    self._close()
                    self.reconnects += 1
        except BaseException as error:
            self.error = error
        finally:
            self._close()
            with self._changed:
                self._changed.notify_all()

    def _done(self) -> bool:
        return not self._more() and not self._in_flight

    def _more(self) -> bool:
        return not self._finish.is_set() and (self.count is None or self.sent < self.count)

    def _due_s(self) -> float:
        """Seconds until the next message may leave."""
        return self._started_s + self.sent / self.rate - time.monotonic() if self.rate else 0.0

    def _step(self, client: RawClient) -> None:
        while self._more() and len(self._in_flight) < self.window and self._due_s() <= 0:
            self._publish_next(client)
        paced = self._more() and len(self._in_flight) < self.window
        if not self._in_flight:  # nothing to be answered: `finish` may have come while it connected
            self._finish.wait(max(self._due_s(), 0.0))
            return
        try:
            self._on_answer(client, client.read(max(self._due_s(), 0.001) if paced else 30.0))
        except SilenceError:
            if not paced:
                raise

    def _publish_next(self, client: RawClient) -> None:
        self._next_id = self._next_id % 65535 + 1
        assert self._next_id not in self._in_flight
        self._in_flight[self._next_id] = (self.sent, False)
        self.sent += 1
        self._send(client, self._next_id, self.sent - 1)

    def _send(self, client: RawClient, packet_id: int, number: int, dup: bool = False) -> None:
        payload = f"{self.name}:{number}".encode() + self.padding
        client.publish(self.topic, payload, self.qos, packet_id=packet_id, dup=dup)

    def _on_answer(self, client: RawClient, answer: Packet) -> None:
        assert answer.kind in (PUBACK, PUBREC, PUBCOMP), str(answer)
        assert answer.packet_id in self._in_flight, f"{answer}: nothing in flight with this id"
        number, _ = self._in_flight[answer.packet_id]
        if answer.kind == PUBREC:
            self._in_flight[answer.packet_id] = (number, True)
            client.ack(PUBREL, answer.packet_id)
            return
        assert answer.kind == (PUBACK if self.qos == 1 else PUBCOMP), str(answer)
        del self._in_flight[answer.packet_id]
        with self._changed:
            self.acked.add(number)
            self._changed.notify_all()

    def _close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _connect(self) -> RawClient:
        """Comes back until the broker is there again; resends in the original order."""
        until = time.monotonic() + 30
        while True:
            try:
                client = RawClient(self.broker.address, self.client_name, 4)
                self._client = client
                client.connect(clean=False)
                break
            except (ClosedError, OSError) as error:
                self._close()
                if time.monotonic() > until:
                    raise TimeoutError(f"{self.name}: the broker does not come back") from error
                self._finish.wait(0.01)
        for packet_id, (number, received) in self._in_flight.items():
            if received:
                client.ack(PUBREL, packet_id)
            else:
                self.resent.add(number)
                self._send(client, packet_id, number, dup=True)
        return client
