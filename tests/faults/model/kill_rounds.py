"""SIGKILL on the real process under load, again and again; then everything acknowledged must be there, once and in order.

    python -m faults.model.kill_rounds --rounds 200

Two publishers (QoS 1 and QoS 2, a window each) and one persistent subscriber speak over real sockets. The broker is
killed at a random moment and started again; the clients come back with their sessions and go on. HEADRACE_BUILD chooses
the build.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from broker_process import BrokerProcess
from faults.window import Window
from headrace.mqtt import codec
from headrace.mqtt.packets import Connect, SubscriptionRequest
from headrace.mqtt.properties import Properties

WINDOW = 50
TOPIC = b"torture/"


class Peer:
    """A client with a session that outlives its connections."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.connected = False
        self.writer: asyncio.StreamWriter | None = None

    async def live(self, port: int) -> None:
        """One connection, until it breaks."""
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            reader, self.writer = await asyncio.open_connection("127.0.0.1", port)
            connect = Connect(4, self.client_id, False, 0, None, None, None, Properties())
            self.writer.write(codec.encode_connect(connect))
            while True:
                first = (await reader.readexactly(1))[0]
                length, shift = 0, 0
                while True:
                    byte = (await reader.readexactly(1))[0]
                    length |= (byte & 127) << shift
                    shift += 7
                    if byte < 128:
                        break
                self._on_packet(first, await reader.readexactly(length))
        self.connected = False
        if self.writer is not None:
            self.writer.close()

    def write(self, data: bytes) -> None:
        if self.writer is not None and not self.writer.is_closing():
            self.writer.write(data)

    def _on_packet(self, first: int, body: bytes) -> None:
        if first >> 4 == 2:
            self.connected = True
            self.on_connected()
        else:
            self.on_packet(first, body)

    def on_connected(self) -> None:
        raise NotImplementedError

    def on_packet(self, first: int, body: bytes) -> None:
        raise NotImplementedError


class Publisher(Peer):
    """Publishes 1, 2, 3, ... with one QoS."""

    def __init__(self, qos: int) -> None:
        super().__init__(f"publisher-{qos}")
        self.qos = qos
        self.acked: set[int] = set()
        self.open = Window(self.acked, self._publish, self.write)
        self.stopped = False

    def on_connected(self) -> None:
        self.open.send_again()
        self._fill()

    def _publish(self, packet_id: int, number: int, dup: bool) -> None:
        topic = TOPIC + b"%d" % self.qos
        self.write(codec.encode_publish(4, topic, b"%d" % number, self.qos, False, dup, packet_id, b"", -1))

    def _fill(self) -> None:
        while len(self.open) < WINDOW and not self.stopped:
            self.open.send()

    def on_packet(self, first: int, body: bytes) -> None:
        self.open.answered(first, body)
        self._fill()


class Subscriber(Peer):
    """Takes everything and keeps the first arrival of each number per QoS."""

    def __init__(self) -> None:
        super().__init__("subscriber")
        self.arrived: dict[int, list[int]] = {1: [], 2: []}
        self._known: dict[int, set[int]] = {1: set(), 2: set()}
        self._incoming: set[int] = set()
        self.subscribed = False

    def on_connected(self) -> None:
        if not self.subscribed:
            requests = [SubscriptionRequest("torture/#", 2, False, False, 0)]
            self.write(codec.encode_subscribe(4, 1, requests, Properties()))

    def on_packet(self, first: int, body: bytes) -> None:
        kind = first >> 4
        if kind == 9:
            self.subscribed = True
        elif kind == 6:
            packet_id = int.from_bytes(body[:2], "big")
            self._incoming.discard(packet_id)
            self.write(codec.encode_pubcomp(4, packet_id))
        elif kind == 3:
            self._on_publish(first >> 1 & 3, body)

    def _on_publish(self, qos: int, body: bytes) -> None:
        at = 2 + int.from_bytes(body[:2], "big")
        packet_id, number = int.from_bytes(body[at : at + 2], "big"), int(body[at + 2 :])
        if qos == 1:
            self._take(1, number)
            self.write(codec.encode_puback(4, packet_id))
            return
        if packet_id not in self._incoming:
            self._incoming.add(packet_id)
            assert number not in self._known[2], f"QoS 2 message {number} was delivered twice"
            self._take(2, number)
        self.write(codec.encode_pubrec(4, packet_id))

    def _take(self, qos: int, number: int) -> None:
        if number in self._known[qos]:
            return
        self._known[qos].add(number)
        arrived = self.arrived[qos]
        assert not arrived or arrived[-1] < number, f"QoS {qos}: {number} came after {arrived[-1]}"
        arrived.append(number)


async def torture(folder: Path, rounds: int, seed: int, longest_s: float = 1.5) -> int:
    """Kill `rounds` times; returns the number of messages that were acknowledged. Raises what it finds."""
    rng = random.Random(seed)
    broker = BrokerProcess(folder, {"session.backlog_messages_max": 65_535})
    subscriber, publishers = Subscriber(), [Publisher(1), Publisher(2)]
    await asyncio.to_thread(broker.start)
    try:
        await _subscribe(subscriber, broker)
        for _ in range(rounds):
            lives = [asyncio.create_task(peer.live(broker.port)) for peer in (subscriber, *publishers)]
            await asyncio.sleep(rng.uniform(0.05, longest_s))
            await asyncio.to_thread(broker.kill)
            await asyncio.gather(*lives)
            await asyncio.to_thread(broker.start)
        for publisher in publishers:
            publisher.stopped = True
        lives = [asyncio.create_task(peer.live(broker.port)) for peer in (subscriber, *publishers)]
        await _until_all_arrived(subscriber, publishers)
        await asyncio.to_thread(broker.kill)
        await asyncio.gather(*lives)
    finally:
        if broker.running:
            await asyncio.to_thread(broker.kill)
    return sum(len(publisher.acked) for publisher in publishers)


async def _subscribe(subscriber: Subscriber, broker: BrokerProcess) -> None:
    """The subscription is acknowledged before anything is published."""
    life = asyncio.create_task(subscriber.live(broker.port))
    while not subscriber.subscribed:
        await asyncio.sleep(0.01)
    assert subscriber.writer is not None
    subscriber.writer.close()
    await life


async def _until_all_arrived(subscriber: Subscriber, publishers: list[Publisher]) -> None:
    until = time.monotonic() + 60
    while any(p.open or not p.connected for p in publishers) or any(
        not p.acked <= set(subscriber.arrived[p.qos]) for p in publishers
    ):
        missing = {p.qos: sorted(p.acked - set(subscriber.arrived[p.qos]))[:10] for p in publishers}
        assert time.monotonic() < until, f"acknowledged and missing: {missing}"
        await asyncio.sleep(0.05)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-torture-") as folder:
        count = asyncio.run(torture(Path(folder), options.rounds, options.seed))
    print(f"{options.rounds} kills, {count} messages acknowledged: none missing, none twice, in order")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
