"""A long backlog of one away APPLICATION session: memory while it grows, kill -9 in the middle of the drain, speed.

    PYTHONPATH=src python -m benchmarks.backlog [--messages 4000000]

Over sockets, with the build on the path. Writes results/backlog-<messages>.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from headrace.core.outbound import delivery
from headrace.mqtt import codec
from headrace.mqtt.packets import Connect, SubscriptionRequest
from headrace.mqtt.properties import Properties

RESULTS = Path(__file__).parent / "results"
PAYLOAD = 256
TOPIC = b"plant/4/press"
WINDOW = 1000
# A PUBLISH as the session gets it: 0x32 or 0x3A, two bytes of length, topic, packet id, the number, the rest.
PACKET = struct.Struct(f">B2x2x{len(TOPIC)}xHQ{PAYLOAD - 8}x")
ACKS = [b"\x40\x02" + packet_id.to_bytes(2, "big") for packet_id in range(65_536)]


class Broker:
    """`headrace serve` on one data directory, with fsync."""

    def __init__(self, data_dir: Path, messages: int) -> None:
        self._command = [sys.executable, "-m", "headrace", "serve", "--listen", "tcp://127.0.0.1:0"]
        for setting in (
            f"data_dir={data_dir}",
            'session.application_client_ids=["archive"]',
            f"session.application_backlog_bytes_max={messages * 1000}",
        ):
            self._command += ["--set", setting]
        self.port = 0

    def start(self) -> float:
        """Seconds until it is ready."""
        began = time.monotonic()
        self._process = subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        for line in self._process.stderr:
            found = re.search(r"ready.*tcp://127\.0\.0\.1:(\d+)", line)
            if found:
                self.port = int(found[1])
                return time.monotonic() - began
        raise RuntimeError("the broker did not start")

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.communicate()

    def cpu_s(self) -> float:
        """User and system time so far: what a busy machine does not change much."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_mb(self) -> float:
        statm = Path(f"/proc/{self._process.pid}/statm").read_text(encoding="ascii")
        return int(statm.split()[1]) * 4096 / 1e6


def connected(port: int, client_id: str, clean: bool) -> socket.socket:
    """After CONNACK."""
    found = socket.create_connection(("127.0.0.1", port))
    packet = Connect(4, client_id, clean, 0, None, None, None, Properties())
    found.sendall(codec.encode_connect(packet))
    taken(found, 4)
    return found


def taken(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the broker closed the connection")
        data += part
    return data


def publish(port: int, start: int, end: int) -> None:
    """Messages `start` to `end` - 1, a window at a time."""
    connection = connected(port, "press", True)
    for first in range(start, end, WINDOW):
        packets = [
            codec.encode_publish(
                4, TOPIC, number.to_bytes(8, "big") + bytes(PAYLOAD - 8), 1, False, False, at + 1, b"", -1
            )
            for at, number in enumerate(range(first, min(first + WINDOW, end)))
        ]
        connection.sendall(b"".join(packets))
        taken(connection, 4 * len(packets))
    connection.close()


class Drain:
    """Takes and acknowledges what comes, and sees that it comes in order."""

    def __init__(self) -> None:
        self.next = 0
        self.repeats = 0

    def run(self, port: int, until: int) -> float:
        """Up to message `until`; returns messages a second."""
        connection = connected(port, "archive", False)
        rest, began, first = b"", time.monotonic(), self.next
        while self.next < until:
            data = rest + connection.recv(1 << 20)
            whole = len(data) - len(data) % PACKET.size
            rest = data[whole:]
            acks = []
            for first_byte, packet_id, number in PACKET.iter_unpack(data[:whole]):
                self._count(first_byte, number)
                acks.append(ACKS[packet_id])
            connection.sendall(b"".join(acks))
        took_s = time.monotonic() - began
        connection.close()
        return (self.next - first) / took_s

    def _count(self, first_byte: int, number: int) -> None:
        if number == self.next:
            self.next += 1
        elif number < self.next and first_byte & 8:
            self.repeats += 1
        else:
            raise AssertionError(f"{number} came where {self.next} was due")


def subscribe(port: int) -> None:
    """The session begins, and is away from then on."""
    connection = connected(port, "archive", False)
    request = SubscriptionRequest("plant/#", 1, False, False, 0)
    connection.sendall(codec.encode_subscribe(4, 1, [request], Properties()))
    taken(connection, 5)
    connection.sendall(codec.encode_disconnect(4))
    connection.close()


def measure(folder: Path, messages: int) -> dict[str, object]:
    broker = Broker(folder, messages)
    broker.start()
    subscribe(broker.port)
    first = messages // 40
    publish(broker.port, 0, first)  # now the broker has what it needs for itself
    before = broker.resident_mb()
    began = time.monotonic()
    publish(broker.port, first, messages)
    published_s = time.monotonic() - began
    full = broker.resident_mb()
    broker.kill()
    start_s = broker.start()
    started = broker.resident_mb()
    drain = Drain()
    cpu_s = broker.cpu_s()
    rate = drain.run(broker.port, messages // 2)
    drained_cpu_s = broker.cpu_s() - cpu_s
    broker.kill()
    broker.start()
    rate_after_kill = drain.run(broker.port, messages)
    drained = broker.resident_mb()
    broker.kill()
    return {
        "messages": messages,
        "payload_bytes": PAYLOAD,
        "compiled": not str(delivery.__file__).endswith(".py"),
        "python": platform.python_version(),
        "published_per_s": round((messages - first) / published_s),
        "resident_mb": {
            "before": round(before),
            "full": round(full),
            "restarted": round(started),
            "drained": round(drained),
        },
        "start_after_kill_s": round(start_s, 2),
        "drained_per_s": round(rate),
        "drained_per_broker_cpu_s": round(messages // 2 / drained_cpu_s),
        "drained_per_s_after_kill": round(rate_after_kill),
        "repeated_after_kill": drain.repeats,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--messages", type=int, default=4_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        result = measure(Path(folder), options.messages)
    print(json.dumps(result, indent=2))
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"backlog-{options.messages}.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
