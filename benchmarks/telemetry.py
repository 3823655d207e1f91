"""A journal of JSON telemetry, 200 bytes a payload, written through the log itself: a broker would need minutes for it.

Message n comes from device n % 1000, on a topic of its own, and the messages are spread over one day. `with_sessions`
adds what a broker writes when ten applications subscribe to a tenth of the topics each: sessions, subscriptions and the
acknowledgement of every message, half a second after it. `write_crowd` opens many more sessions before the messages, each
subscribed to the commands for one device; then every tenth message is such a command, for one session after the other.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from librt.strings import BytesWriter

from headrace.core.records.event import BROKER_STARTED, SESSION_OPENED, SUBSCRIBED, Event
from headrace.core.records.message import Message
from headrace.core.records.record import ACKED, Progress, Record
from headrace.journal.log import LogSettings, SegmentedLog

PAYLOAD_BYTES: Final = 200
DEVICES: Final = 1000
APPLICATIONS: Final = 10
COMMAND_EVERY: Final = 10
CROWD: Final = 1 + 2 * APPLICATIONS
BATCH: Final = 500
DAY_US: Final = 86_400_000_000
MIDNIGHT_US: Final = 1_790_000_000_000_000 // DAY_US * DAY_US
TOPIC_SCHEMAS: Final = """[[schema]]
name = "reading"
topics = ["site/+/line/+"]
event_time = "time_ms"
required = ["device", "temperature"]
[schema.fields]
device = "string"
seq = "long"
time_ms = "timestamp_ms"
temperature = "double"

[[schema]]
name = "command"
topics = ["command/#"]
"""


def topic(device: int) -> str:
    return f"site/{device % APPLICATIONS}/line/{device}"


def with_copies(batch: int, rows: int, copy_every: int) -> list[int]:
    """Return the messages of a batch, by number; one in `copy_every` is a copy of one of the batch before, by the same
    device. `rows`: a multiple of `copy_every`.

    Which one it is moves on from batch to batch: in the place where the batch before has a copy itself there is nothing
    to copy, for the number of that place never came.
    """
    numbers = range(batch * rows, (batch + 1) * rows)
    return [n - rows if batch and (n - batch) % copy_every == 0 else n for n in numbers]


def write_journal(data_dir: Path, messages: int, with_sessions: bool = False) -> None:
    """`messages`: a multiple of BATCH."""
    if with_sessions:
        write_crowd(data_dir, 0)
    write_messages(data_dir, messages, 0, with_sessions)


def write_crowd(data_dir: Path, count: int) -> None:
    """Write the sessions of the applications, and so many more: number k has the incarnation CROWD + 2 * k."""
    log = SegmentedLog.open(data_dir, LogSettings(durability="none"), print)
    opening = _encoded_all(_sessions())
    log.append(b"".join(opening), len(opening), MIDNIGHT_US, MIDNIGHT_US)
    for base in range(0, count, BATCH):
        records = _encoded_all(_crowd(range(base, min(count, base + BATCH))))
        log.append(b"".join(records), len(records), MIDNIGHT_US, MIDNIGHT_US)
    log.close()


def write_messages(data_dir: Path, messages: int, crowd: int, are_acknowledged: bool) -> None:
    """`messages`: a multiple of BATCH. `crowd`: how many sessions `write_crowd` has opened beside the applications."""
    log = SegmentedLog.open(data_dir, LogSettings(durability="none"), print)
    devices = [Device(number) for number in range(DEVICES)]
    before: range | None = None
    for base in range(0, messages, BATCH):
        numbers = range(base, base + BATCH)
        stamps = [MIDNIGHT_US + n * DAY_US // messages for n in numbers]
        records = [
            _encoded(_command(n, stamp, crowd))
            if crowd and n % COMMAND_EVERY == 0
            else devices[n % DEVICES].record(n, stamp)
            for n, stamp in zip(numbers, stamps, strict=True)
        ]
        if are_acknowledged and before is not None:
            records.append(_encoded(_acknowledged(before, stamps[-1], crowd)))
        log.append(b"".join(records), len(records), stamps[0], stamps[-1])
        before = numbers
    log.close()


class Device:
    """Its records differ in their time, a running number and a reading; the rest is put together once."""

    def __init__(self, number: int) -> None:
        payload = b'{"device":"device-%03d","seq":%09d,"time_ms":%013d,"temperature":%05.2f,"note":"' % (
            number, 100_000_000, 1_000_000_000_000, 10.0,
        )  # fmt: skip
        note = (b"%08x" % (number * 2_654_435_761 % (1 << 32))) * 25
        self._note = note[: PAYLOAD_BYTES - len(payload) - 2]
        self._begin = b'{"device":"device-%03d","seq":' % number
        text = topic(number).encode()
        origin = b"default" + b"device-%03d" % number
        whole = _encoded(Message(0, 1, 7, 0, "default", origin, 7, text, b"", -1, bytes(PAYLOAD_BYTES)))
        self._length, self._head = whole[:8], whole[16:-PAYLOAD_BYTES]

    def record(self, n: int, timestamp_us: int) -> bytes:
        return b'%b%b%b%b%d,"time_ms":%d,"temperature":%d.%02d,"note":"%b"}' % (
            self._length, timestamp_us.to_bytes(8, "little"), self._head, self._begin, 100_000_000 + n,
            timestamp_us // 1000, 10 + n % 89, n * 31 % 100, self._note,
        )  # fmt: skip


def _encoded(record: Record) -> bytes:
    out = BytesWriter()
    record.encode_into(out)
    return bytes(out.getvalue())


def _encoded_all(records: Iterable[Record]) -> list[bytes]:
    return [_encoded(record) for record in records]


def _crowd(numbers: range) -> Iterator[Event]:
    for k in numbers:
        client = {"t": "default", "c": f"crowd-{k:07}"}
        yield Event(
            SESSION_OPENED, MIDNIGHT_US, client | {"ty": 0, "ex": 1 << 31, "v": 5, "lim": 0, "w": None}
        )
        subscription = [f"command/crowd-{k:07}/#", 1, 0, 0, 0, 0]
        incarnation = CROWD + 2 * k
        yield Event(SUBSCRIBED, MIDNIGHT_US, client | {"inc": incarnation, "subs": [subscription], "ret": []})


def _command(n: int, timestamp_us: int, crowd: int) -> Message:
    """Return message n, a command: it goes to the next of the crowd."""
    text = b"command/crowd-%07d/set" % (n // COMMAND_EVERY % crowd)
    payload = b"%0*d" % (PAYLOAD_BYTES, n)
    return Message(timestamp_us, 1, 7, 0, "default", b"defaultdevice-000", 7, text, b"", -1, payload)


def _sessions() -> Iterator[Event]:
    """Application k opens the session of incarnation 1 + 2 * k and subscribes to the topics of site k."""
    yield Event(BROKER_STARTED, MIDNIGHT_US, {})
    for k in range(APPLICATIONS):
        client = {"t": "default", "c": f"app-{k}"}
        yield Event(
            SESSION_OPENED, MIDNIGHT_US, client | {"ty": 1, "ex": 1 << 31, "v": 4, "lim": 0, "w": None}
        )
        subscription = [f"site/{k}/#", 1, 0, 0, 0, 0]
        yield Event(SUBSCRIBED, MIDNIGHT_US, client | {"inc": 1 + 2 * k, "subs": [subscription], "ret": []})


def _acknowledged(numbers: range, timestamp_us: int, crowd: int) -> Progress:
    """Message n is number n // APPLICATIONS + 1 of application n % APPLICATIONS, unless it is a command: then the
    application with that remainder has none of them."""
    packed = array("Q")
    for n in numbers:
        if crowd and n % COMMAND_EVERY == 0:
            turn = n // COMMAND_EVERY
            packed.extend((CROWD + 2 * (turn % crowd), turn // crowd + 1))
        else:
            packed.extend((1 + 2 * (n % APPLICATIONS), n // APPLICATIONS + 1))
    return Progress(ACKED, timestamp_us, packed.tobytes())
