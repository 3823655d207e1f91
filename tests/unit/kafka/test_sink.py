"""One sink at one shard: what it sends, where it goes on, and what holds the journal for it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from broker_process import wait_until
from headrace.journal.consumers import ConsumerPosition
from headrace.journal.repair import Repair
from headrace.kafka import sink as sinks
from headrace.kafka.errors import SinkFenced, SinkTrouble
from headrace.kafka.position import Position
from headrace.kafka.rendering import Rendered
from headrace.kafka.settings import SinkSettings
from headrace.kafka.sink import SinkOfShard, transactional_id
from unit.journal.log_at import Started, filled, opened
from unit.kafka.journals import encoded, message

SINK = SinkSettings("s", ("127.0.0.1:1",), "d/#", "t", start="beginning")


class Kafka:
    """A topic and the positions: each transaction is there whole, or not at all. `fails`: what the next ones raise, and
    whether they are there all the same."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.positions: dict[str, Position] = {}
        self.fails: list[tuple[Exception, bool]] = []
        self.away: Exception | None = None
        self.connected = 0

    def connect(self, _: SinkSettings, name: str) -> Producer:
        if self.away is not None:
            raise self.away
        self.connected += 1
        return Producer(self, name)


class Producer:
    def __init__(self, kafka: Kafka, name: str) -> None:
        self._kafka, self._name = kafka, name
        self._is_over = False
        self.position = kafka.positions.get(name)

    def send(self, records: list[Rendered], position: Position) -> None:
        assert not self._is_over, "a producer that has failed is used again"
        error, is_there = self._kafka.fails.pop(0) if self._kafka.fails else (None, True)
        if is_there:
            self._kafka.values += [one.value for one in records]
            self._kafka.positions[self._name] = position
        if error is not None:
            self._is_over = True
            raise error

    def close(self) -> None:
        self._is_over = True


@pytest.fixture
def kafka() -> Kafka:
    return Kafka()


@pytest.fixture(autouse=True)
def _in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (
        ("POLL_S", 0.005),
        ("PAUSE_S", 0.005),
        ("LONGEST_PAUSE_S", 0.01),
        ("FENCED_S", 0.01),
    ):
        monkeypatch.setattr(sinks, name, seconds)


Runs = Callable[..., SinkOfShard]


@pytest.fixture
def runs(tmp_path: Path, kafka: Kafka) -> Iterator[Runs]:
    """Runs a sink on a thread, until the test ends."""
    made: list[tuple[SinkOfShard, threading.Thread]] = []

    def run(settings: SinkSettings = SINK) -> SinkOfShard:
        one = SinkOfShard(settings, 0, tmp_path, kafka.connect)
        thread = threading.Thread(target=one.run)
        made.append((one, thread))
        thread.start()
        return one

    yield run
    for one, thread in made:
        one.stop()
        thread.join(10)
        assert not thread.is_alive()


def bodies(*numbers: int) -> list[bytes]:
    return [encoded(message("d/x", b"%d" % number)) for number in numbers]


def drained(tmp_path: Path, kafka: Kafka, settings: SinkSettings = SINK) -> SinkOfShard:
    """Run a sink that is to stop at once: it sends what is there."""
    one = SinkOfShard(settings, 0, tmp_path, kafka.connect)
    one.stop()
    one.run()
    return one


def test_a_stop_sends_what_the_journal_has_and_the_consumer_is_at_its_end(
    tmp_path: Path, kafka: Kafka
) -> None:
    filled(tmp_path, [*bodies(0, 1), encoded(message("e"))])
    one = drained(tmp_path, kafka)
    assert kafka.values == [b"0", b"1"]
    assert ConsumerPosition.read(tmp_path, "sink.s").offset == 3
    assert (one.figures.records, one.figures.transactions, one.figures.trouble) == (2, 1, "")
    drained(tmp_path, kafka)
    assert kafka.values == [b"0", b"1"]


def test_a_new_sink_begins_at_the_end_unless_it_is_told_otherwise(tmp_path: Path, kafka: Kafka) -> None:
    filled(tmp_path, bodies(0, 1))
    drained(tmp_path, kafka, replace(SINK, start="end"))
    assert kafka.values == []


def test_it_follows_the_journal(tmp_path: Path, kafka: Kafka, runs: Runs) -> None:
    started = Started(tmp_path)
    one = runs()
    for number, body in enumerate(bodies(*range(5))):
        started.append(body)
        wait_until(partial(lambda wanted: len(kafka.values) == wanted, number + 1), "sent")
    assert one.figures.is_up
    started.log.close()


@pytest.mark.parametrize("is_there", [True, False])
def test_whatever_became_of_a_transaction_nothing_is_sent_twice(
    tmp_path: Path, kafka: Kafka, runs: Runs, is_there: bool
) -> None:
    filled(tmp_path, bodies(*range(10)))
    kafka.fails = [(SinkTrouble("no answer"), is_there), (SinkFenced("somebody"), is_there)]
    runs()
    wait_until(lambda: len(kafka.values) == 10, "sent")
    assert kafka.values == [b"%d" % number for number in range(10)]


def test_while_kafka_is_away_it_is_said_and_the_consumer_stays_where_it_is(
    tmp_path: Path, kafka: Kafka, runs: Runs
) -> None:
    filled(tmp_path, bodies(0))
    kafka.away = SinkTrouble("connection refused")
    one = runs()
    wait_until(lambda: one.figures.trouble == "connection refused", "said")
    assert ConsumerPosition.read(tmp_path, "sink.s").offset == 0
    assert (one.figures.is_up, one.figures.lag_records) == (False, 1)
    kafka.away = None
    wait_until(lambda: kafka.values == [b"0"], "sent")
    wait_until(lambda: one.figures.trouble == "", "said")


def test_what_the_journal_has_let_go_of_is_counted_and_the_rest_is_sent(tmp_path: Path, kafka: Kafka) -> None:
    filled(tmp_path, bodies(*range(200)))  # several segments
    drained(tmp_path, kafka)
    kept = ConsumerPosition.read(tmp_path, "sink.s")
    log = opened(tmp_path)
    (first, second, *_) = sorted((tmp_path / "journal").glob("*.log"))
    log.close()
    first.unlink()
    start = int(second.stem)
    kafka.values.clear()
    name = transactional_id(SINK, 0, kept.uuid)
    kafka.positions[name] = Position(kept.uuid, kept.epoch, start - 5)
    one = drained(tmp_path, kafka)
    assert kafka.values == [b"%d" % number for number in range(start, 200)]
    assert (one.figures.lost, "5 offsets" in one.figures.odd) == (5, True)


def test_the_position_is_written_also_where_nothing_matches(
    tmp_path: Path, kafka: Kafka, monkeypatch: pytest.MonkeyPatch, runs: Runs
) -> None:
    monkeypatch.setattr(sinks, "IDLE_S", 0.01)
    filled(tmp_path, [encoded(message("e")) for _ in range(3)])
    runs()
    wait_until(lambda: [one.offset for one in kafka.positions.values()] == [3], "written")
    assert kafka.values == []


def test_a_broker_with_another_journal_fences_nobody(tmp_path: Path) -> None:
    assert transactional_id(SINK, 0, "a") != transactional_id(SINK, 0, "b")
    assert transactional_id(SINK, 0, "a") != transactional_id(SINK, 1, "a")


def test_an_older_copy_of_the_journal_that_has_grown_past_the_position_is_said_and_not_passed_over(
    tmp_path: Path, kafka: Kafka
) -> None:
    """Its files were copied, and put back: its uuid and epoch are those of before."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    filled(data, bodies(0, 1))
    shutil.copytree(data, copy)
    filled(data, bodies(2, 3))
    one = SinkOfShard(SINK, 0, data, kafka.connect)
    one.stop()
    one.run()
    assert kafka.values == [b"0", b"1", b"2", b"3"]
    others = [message("d/x", b"%d" % number) for number in range(12, 17)]
    for number, other in enumerate(others):
        other.timestamp_us += 1 + number
    filled(copy, [encoded(other) for other in others])
    one = SinkOfShard(SINK, 0, copy, kafka.connect)
    one.stop()
    one.run()
    assert "another copy of the one that was sent: record 3 is another one" in one.figures.trouble
    assert len(kafka.values) == 4


def test_a_repair_that_could_not_read_the_last_record_that_was_sent_stops_no_sink(
    tmp_path: Path, kafka: Kafka
) -> None:
    """What is in its place, a void record, is of another time; the rest is what was there."""
    made = [message("d/x", b"%d" % number) for number in range(8)]
    for number, one in enumerate(made):
        one.timestamp_us += number
    filled(tmp_path, [encoded(one) for one in made[:4]])
    drained(tmp_path, kafka)
    filled(tmp_path, [encoded(one) for one in made[4:]])
    (segment,) = (tmp_path / "journal").glob("*.log")
    data = segment.read_bytes()
    last = data.index(encoded(made[3]))
    segment.write_bytes(data[:last] + b"\xff" + data[last + 1 :])
    with Repair(tmp_path) as repair:
        repair.plan()
        repair.run()
        assert repair.lost_records == 1
    assert drained(tmp_path, kafka).figures.trouble == ""
    assert kafka.values[4:] == [b"4", b"5", b"6", b"7"]


def test_what_came_since_in_an_older_copy_that_still_ends_before_the_position_is_sent(
    tmp_path: Path, kafka: Kafka
) -> None:
    """Kafka may have been away while it grew."""
    data, copy = tmp_path / "data", tmp_path / "copy"

    def fill(directory: Path, *numbers: int) -> None:
        log = opened(directory)
        for number in numbers:
            one = message("d/x", b"%d" % number)
            one.timestamp_us += number
            log.append(encoded(one), 1, one.timestamp_us, one.timestamp_us)
        log.close()

    fill(data, 0, 1)
    shutil.copytree(data, copy)
    fill(data, 2, 3, 4, 5)
    drained(data, kafka)
    fill(copy, 7, 8)
    assert "ends at 4" in drained(copy, kafka).figures.odd
    for number in (9, 10, 11):  # also beyond where it was sent
        fill(copy, number)
        assert drained(copy, kafka).figures.trouble == ""
    assert kafka.values == [b"%d" % number for number in (0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11)]
