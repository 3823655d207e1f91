"""Does one publisher that sends flat out hold the others up?

    python -m benchmarks.fairness [--seconds 5]

Two connections exchange 200 messages a second (QoS 1), once alone and once beside a third that floods: QoS 0, 64 B, as
fast as its socket takes them, and nobody subscribed to it. What counts is how much later the 99th percentile of publish
to delivery comes, and what the broker's watchdog saw. Writes results/fairness.json.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from benchmarks.contestant import SCRATCH, Target, running
from benchmarks.machine import machine
from benchmarks.memory import connected, expect
from demo.services import PYTHON, free_port
from headrace.mqtt.codec import encode_publish

RESULT = Path(__file__).parent / "results" / "fairness.json"
RATE = 200
ALLOWED_MS = 5.0


def paced(target: Target, seconds: int) -> dict[str, float]:
    """Milliseconds from publish to delivery of the pair."""
    report = SCRATCH / "fairness.json"
    load = ["--url", f"tcp://{target.host}:{target.port}", "-n", "1", "--rate", str(RATE), "-t", str(seconds)]
    command = [*PYTHON, "headrace", "bench", *load, "--json", str(report)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=60 + seconds)
    found = json.loads(report.read_text(encoding="utf-8"))["result"]
    return {name: found[f"delivery_{name}_ms"] for name in ("p50", "p99", "max")}


def flood(host: str, port: int) -> None:
    """Publish until the broker is gone or the process is ended."""
    connection = connected(Target(host, port, ""), "flood", clean=True)
    expect(connection, b"\x20\x02\x00\x00")
    packet = encode_publish(4, b"nobody/listens", b"x" * 64, 0, False, False, 0, b"", -1)
    block = packet * 4096
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    while True:
        connection.sendall(block)


def stalls(admin: int) -> dict[str, float]:
    """What the watchdog counted, by what it was."""
    with urllib.request.urlopen(f"http://127.0.0.1:{admin}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = {what: float(n) for what, n in re.findall(r'loop_stalls_total\{what="(\w+)"\} (\S+)', text)}
    longest = re.search(r"^\w*longest_stall_seconds (\S+)", text, re.MULTILINE)
    return found | {"longest_ms": round(float(longest[1]) * 1000, 2) if longest else 0.0}


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.fairness", description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--flood", metavar="HOST:PORT", help="be the flood, and nothing else")
    options = parser.parse_args()
    if options.flood:
        host, _, port = options.flood.rpartition(":")
        flood(host, int(port))
    admin = free_port()
    with running("headrace", options=("--admin", f"http://127.0.0.1:{admin}")) as target:
        alone = paced(target, options.seconds)
        before = stalls(admin)
        me = [sys.executable, "-m", "benchmarks.fairness", "--flood", f"{target.host}:{target.port}"]
        with subprocess.Popen(me) as flooder:
            try:
                time.sleep(1)  # until it is under way
                beside = paced(target, options.seconds)
            finally:
                flooder.terminate()
        after = stalls(admin)
    moved = beside["p99"] - alone["p99"]
    result = {
        "question": __doc__,
        "machine": machine(),
        "alone_ms": alone,
        "beside_a_flood_ms": beside,
        "p99_moved_ms": round(moved, 2),
        "watchdog_before": before,
        "watchdog_after": after,
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({name: value for name, value in result.items() if name not in ("question", "machine")}))
    return 1 if moved > ALLOWED_MS else 0


if __name__ == "__main__":
    raise SystemExit(main())
