"""Does one publisher that sends flat out hold the others up?

    python -m benchmarks.fairness [--seconds 5]

Two connections exchange 200 messages a second (QoS 1), alone and beside each of these, 64 B, as fast as it goes:

- `qos0`: one connection sends QoS 0, and nobody is subscribed to it;
- `qos0-heard`, `qos1`: one sends, with a window of 1 000, and one is subscribed; at QoS 1 with a persistent session;
- `fan-out`: one sends QoS 1 to 200 subscribers.

What counts is how much later the 99th percentile of publish to delivery comes, and what the broker's watchdog saw. The
same beside mosquitto, without sync, for comparison. Floods give way to the broker (nice 10), as clients on machines of
their own do, and who measures to nobody (nice -10, if allowed).
Writes results/fairness.json.
"""

from __future__ import annotations

import argparse
import json
import os
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
from demo.services import PYTHON
from headrace.mqtt.codec import encode_publish
from headrace.testing.ports import free_port

RESULT = Path(__file__).parent / "results" / "fairness.json"
RATE = 200
ALLOWED_MS = 5.0
UNDER_WAY_S = 1.5
LOADS = {
    "qos0-heard": ("-n", "1", "-q", "0", "-w", "1000"),
    "qos1": ("-n", "1", "-q", "1", "-w", "1000", "-c"),
    "fan-out": ("--mode", "fan-out", "-n", "200", "-q", "1", "-w", "1"),
}
FLOODS = ("qos0", *LOADS)


def paced(target: Target, seconds: int) -> dict[str, float]:
    """Milliseconds from publish to delivery of the pair."""
    report = SCRATCH / "fairness.json"
    load = ["--url", f"tcp://{target.host}:{target.port}", "-n", "1", "--rate", str(RATE), "-t", str(seconds)]
    first = ["nice", "-n", "-10"] if os.geteuid() == 0 else []  # who measures must not wait for a processor
    command = [*first, *PYTHON, "headrace", "bench", *load, "--json", str(report)]
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


def flooding(name: str, target: Target, seconds: int) -> list[str]:
    """The command that floods until it is ended, or is done long after anybody looks."""
    if name == "qos0":
        return [sys.executable, "-m", "benchmarks.fairness", "--flood", f"{target.host}:{target.port}"]
    url = f"tcp://{target.host}:{target.port}"
    return [*PYTHON, "headrace", "bench", "--url", url, *LOADS[name], "-t", str(60 + 2 * seconds)]


def beside(name: str, target: Target, seconds: int) -> dict[str, float]:
    command = ["nice", "-n", "10", *flooding(name, target, seconds)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as flooder:
        try:
            time.sleep(UNDER_WAY_S)
            found = paced(target, seconds)
            if flooder.poll() is not None:
                raise RuntimeError(f"the flood {name} ended with {flooder.returncode}")
        finally:
            flooder.terminate()
    return found


def among_floods(broker: str, seconds: int) -> dict[str, dict[str, float]]:
    """Latencies alone and beside each flood; of headrace also what its watchdog saw."""
    ours = broker == "headrace"
    admin = free_port() if ours else 0
    with running(broker, options=("--admin", f"http://127.0.0.1:{admin}") if ours else ()) as target:
        alone = paced(target, seconds)
        found = {"alone": alone}
        for name in FLOODS:
            before = stalls(admin) if ours else {}
            found[name] = beside(name, target, seconds)
            found[name]["p99_moved"] = round(found[name]["p99"] - alone["p99"], 2)
            if ours:
                after = stalls(admin)
                found[name]["stalls"] = sum(
                    n - before[what] for what, n in after.items() if what != "longest_ms"
                )
                found[name]["longest_stall"] = after["longest_ms"]
    return found


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.fairness", description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--flood", metavar="HOST:PORT", help="be the flood, and nothing else")
    options = parser.parse_args()
    if options.flood:
        host, _, port = options.flood.rpartition(":")
        flood(host, int(port))
    peer = among_floods("mosquitto", options.seconds)
    found = among_floods("headrace", options.seconds)
    result = {"question": __doc__, "machine": machine(), "unit": "ms", "headrace": found, "mosquitto": peer}
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for name in ("alone", *FLOODS):
        print(f"{name:10}  headrace {json.dumps(found[name])}  mosquitto {json.dumps(peer[name])}")
    return 1 if any(found[name]["p99_moved"] > ALLOWED_MS for name in FLOODS) else 0


if __name__ == "__main__":
    raise SystemExit(main())
