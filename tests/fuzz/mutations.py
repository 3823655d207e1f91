"""Conversations made of good and bad packets, with a few bytes changed. The same seed makes the same ones."""

from __future__ import annotations

import random
from collections.abc import Iterator

from vectors.mqtt import refused, valid

INTERESTING = (0x00, 0x01, 0x7F, 0x80, 0xFF, 0x10, 0x82, 0x30)
MUTATIONS_MAX = 4


def corpus() -> tuple[list[bytes], list[bytes]]:
    """(CONNECT packets, everything else): every vector that we have, right and wrong ones."""
    rows = [row.data for row in valid.ALL] + [row.data for row in refused.ALL]
    packets = sorted({data for data in rows if 0 < len(data) < 2000})
    connects = [data for data in packets if data[0] == 0x10]
    return connects, [data for data in packets if data[0] != 0x10]


def mutated(random_: random.Random, data: bytes, other: bytes) -> bytes:
    """`data` with one to four changes: bits, bytes, cuts, repeats, lengths, or its tail taken from `other`."""
    found = bytearray(data)
    for _ in range(random_.randint(1, MUTATIONS_MAX)):
        at = random_.randrange(len(found)) if found else 0
        kind = random_.randrange(7)
        if not found:
            found += other
        elif kind == 0:
            found[at] ^= 1 << random_.randrange(8)
        elif kind == 1:
            found[at] = random_.choice(INTERESTING)
        elif kind == 2:
            del found[at : at + random_.randint(1, 4)]
        elif kind == 3:
            found[at:at] = found[at : at + random_.randint(1, 8)]
        elif kind == 4 and len(found) > 1:
            found[1] = random_.randrange(128)  # the remaining length, most often
        elif kind == 5:
            found[at:] = other[random_.randrange(len(other)) :]
        else:
            found[at:at] = random_.randbytes(random_.randint(1, 4))
    return bytes(found)


def conversations(seed: int, packets: int, length: int = 3) -> Iterator[list[bytes]]:
    """Lists of packets for one connection each: a CONNECT, good nine times in ten, then mutated packets."""
    random_ = random.Random(seed)
    connects, others = corpus()
    good = [row.data for row in valid.CONNECT if b"\x06MQIsdp" in row.data or b"\x04MQTT" in row.data]
    sent = 0
    while sent < packets:
        first = random_.choice(good)
        if random_.random() < 0.1:
            first = mutated(random_, random_.choice(connects), random_.choice(others))
        count = min(length, packets - sent)
        sent += count
        yield [
            first,
            *(mutated(random_, random_.choice(others), random_.choice(others)) for _ in range(count)),
        ]
