"""Locks of the dormitory: each is a producer with a connection of its own; one process simulates many.

    python locks.py URL FIRST COUNT OPENINGS SECONDS

Each lock tells OPENINGS openings at random moments of SECONDS, and does not forget one before the broker has answered.
At the end a line of JSON: how many were answered, how often connections were made, and for each answer when it came
(Unix, seconds) and how long it took (ms).
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import struct
import sys
import time
from typing import NamedTuple

from headrace.clients.frame import Producer

TOPIC = "dormitory/openings"
OPENING = struct.Struct(">IIQQ")  # lock, how many it had before, card, Unix time in ms: 24 bytes


class Report(NamedTuple):
    answered: int
    connections: int
    answers: list[tuple[float, float]]


async def lock(
    url: str, number: int, openings: int, seconds: float, report: list[tuple[float, float]]
) -> int:
    """One lock. Returns how many connections it needed."""
    moments = sorted(random.uniform(0, seconds) for _ in range(openings))
    began = time.monotonic()
    producer = Producer(
        url, f"lock-{number:04}", shortest_pause_s=0.2, longest_pause_s=5.0, open_timeout_s=60.0
    )
    async with producer:
        for count, moment in enumerate(moments):
            await asyncio.sleep(max(0.0, began + moment - time.monotonic()))
            asked = time.time()
            card = random.getrandbits(48)
            await producer.publish(TOPIC, OPENING.pack(number, count, card, int(asked * 1000)))
            report.append((time.time(), (time.time() - asked) * 1000))
    return producer.connections


async def simulate(url: str, first: int, count: int, openings: int, seconds: float) -> Report:
    answers: list[tuple[float, float]] = []
    locks = (lock(url, number, openings, seconds, answers) for number in range(first, first + count))
    connections = await asyncio.gather(*locks)
    return Report(len(answers), sum(connections), answers)


def main() -> None:
    url, first, count, openings, seconds = sys.argv[1:]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    report = asyncio.run(simulate(url, int(first), int(count), int(openings), float(seconds)))
    print(json.dumps(report._asdict()), flush=True)


if __name__ == "__main__":
    main()
