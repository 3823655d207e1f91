"""Clusters against a model, with time, lost connections, limits and restarts; and a replay that equals the live state."""

from __future__ import annotations

import random
from array import array
from collections import OrderedDict
from typing import Final

import pytest
from mypy_extensions import i64

from headrace.core.broker import Broker
from headrace.core.homes import Homes
from headrace.core.inbound import consuming
from headrace.core.inbound.devices import DeviceLink
from headrace.core.outbound import clusters
from headrace.core.outbound.cluster_readers import Consumer, Guest
from headrace.core.ports.clock import Clock
from headrace.core.ports.identity import DEFAULT_TENANT
from headrace.core.ports.settings import BrokerSettings
from headrace.core.ports.voice import Draught, Voice
from headrace.core.records.message import FrameMessage
from headrace.core.records.record import SHARED_BACKLOG_PAGE, Progress, Record
from headrace.core.state.replay import Replay
from headrace.core.state.snapshots import SnapshotPass, restore
from headrace.core.state.state import Fold
from headrace.core.state.topic_queues import TopicQueue
from headrace.core.worker import Worker
from headrace.frames.server import FrameHandler, ServerFrames
from headrace.links.frame_link import FrameVoice
from headrace.storage.memory import ManualScheduler, MemoryJournal, MemoryLink

TOPIC: Final = b"locks"
NOW_US: Final = 1_700_000_000_000_000


class Notes(Voice):
    """Writes down what is said."""

    def __init__(self) -> None:
        super().__init__()
        self.got: list[Draught] = []
        self.codes: list[int] = []
        self.news = 0

    def joined(self, sn: bytes, code: int) -> None:
        self.codes.append(code)

    def left(self, sn: bytes, code: int) -> None:
        self.codes.append(code)

    def acknowledged(self, sn: bytes, code: int) -> None:
        self.codes.append(code)

    def notify(self, sn: bytes, topic: bytes, cluster: bytes, available: i64) -> None:
        self.news += 1

    def pulled(self, sn: bytes, messages: list[Draught]) -> None:
        self.got += messages


class Bench:
    """A broker on a journal in memory, whose topic has a queue."""

    def __init__(self, bodies: list[bytes] | None = None, shards: int = 1, **settings: int) -> None:
        made = BrokerSettings()
        made.backlog_page = 8
        for name, value in settings.items():
            setattr(made, name, value)
        self.journal = MemoryJournal(bodies)
        self.clock = Clock()
        self.clock.now_us = NOW_US
        self.worker = Worker(ManualScheduler(), self.clock, made, Homes(shards))
        self.broker = self.worker.own(0, self.journal)
        replay = Replay(self.broker.fold)
        for record in list(self.journal.records):
            replay.record(record)
        self.broker.sessions.absences.start()
        self.consuming = self.broker.devices.consuming
        self.consuming.start()
        self.consuming.open(self.broker.fold.tenant("default"), TOPIC)
        self.sync()
        self.sent = 0

    def sync(self) -> None:
        self.journal.sync(self.broker)

    @property
    def queue(self) -> TopicQueue:
        return self.broker.fold.tenant("default").queues[TOPIC]

    def publish(self, count: int) -> None:
        for _ in range(count):
            self.broker.commit.append(self.message())
        self.sync()

    def message(self, topic: bytes = TOPIC) -> FrameMessage:
        payload = b"%d" % self.sent
        self.sent += 1
        return FrameMessage(self.clock.now_us, self.sent, "default", b"defaultd", 7, topic, -1, payload)

    def guest(self, cluster: bytes = b"c") -> Guest:
        found = Guest(MemoryLink(self.broker.worker), Notes())
        self.consuming.join(found, b"s", TOPIC, cluster)
        self.sync()
        return found

    def pull(self, guest: Guest, most: int, cluster: bytes = b"c") -> list[Draught]:
        notes = guest.voice
        assert isinstance(notes, Notes)
        notes.got = []
        self.consuming.pull(guest, b"s", TOPIC, cluster, most, 0)
        self.sync()
        return notes.got

    def ack(self, guest: Guest, ids: list[bytes], cluster: bytes = b"c") -> int:
        notes = guest.voice
        assert isinstance(notes, Notes)
        self.consuming.ack(guest, b"s", TOPIC, cluster, ids)
        self.sync()
        return notes.codes[-1]

    def later(self, ms: int) -> None:
        self.clock.mono_ms += ms
        self.clock.now_us += ms * 1000
        self.worker.on_timer()
        self.sync()


def state(fold: Fold) -> list[object]:
    """What a fold knows of queues, without where a reference is kept and who holds a message: that is not durable."""
    found: list[object] = []
    for queue in fold.queues.by_id.values():
        serials = range(int(queue.first), int(queue.next_serial))
        rows = [
            (cluster.name, cluster.cluster_id, [serial for serial in serials if cluster.has_finished(serial)])
            for cluster in queue.clusters.values()
        ]
        found.append(
            (queue.topic, queue.queue_id, serials, [queue.ref_at(serial) for serial in serials], rows)
        )
    return found


def replayed(journal: MemoryJournal) -> Fold:
    fold = Fold(journal)
    replay = Replay(fold)
    for record in journal.records:
        replay.record(record)
    return fold


def from_snapshot(bench: Bench, entries: list[bytes], position: int) -> Fold:
    fold = Fold(bench.journal)
    restore(fold, [entries])
    replay = Replay(fold)
    for record in bench.journal.records[position:]:
        replay.record(record)
    return fold


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_nothing_is_lost_and_a_replay_equals_the_live_state(seed: int) -> None:
    chance = random.Random(seed)
    bench = Bench(visibility_ms=5000, queue_messages_max=0 if seed % 2 else 60)
    guests = [bench.guest() for _ in range(3)]
    held: list[list[Draught]] = [[] for _ in guests]
    done: set[bytes] = set()
    entries, position = [], 0
    for step in range(150):
        at = chance.randrange(3)
        what = chance.random()
        if what < 0.25:
            bench.publish(chance.randrange(1, 12))
        elif what < 0.6:
            held[at] += bench.pull(guests[at], chance.randrange(1, 15))
        elif what < 0.85 and held[at]:
            some = chance.sample(held[at], chance.randrange(1, len(held[at]) + 1))
            bench.ack(guests[at], [draught.message_id for draught in some])
            done |= {draught.message.payload for draught in some}
            held[at] = [draught for draught in held[at] if draught not in some]
        elif what < 0.92:
            bench.later(chance.choice([1000, 6000]))
        else:
            guests[at].link.close()
            bench.consuming.lost(guests[at])
            bench.sync()
            guests[at], held[at] = bench.guest(), []
        if step == 70:
            walk = SnapshotPass(bench.broker.fold, bench.broker.commit)
            entries, position = [entry for part in walk.slices() for entry in part], walk.position
    live = state(bench.broker.fold)
    assert state(replayed(bench.journal)) == live
    assert state(from_snapshot(bench, entries, position)) == live
    for guest in guests:
        bench.consuming.lost(guest)
    last = bench.guest()
    left = []
    while got := bench.pull(last, 20):
        left += got
        assert bench.ack(last, [draught.message_id for draught in got]) == 0
    seen = done | {draught.message.payload for draught in left}
    lost = bench.broker.fold.tenant("default").counters.dropped
    assert len(seen) >= bench.sent - sum(lost.values())
    if seed % 2:
        assert seen == {b"%d" % number for number in range(bench.sent)}
        assert not {draught.message.payload for draught in left} & done


def test_a_long_queue_is_in_pages_and_a_short_piece_of_it_in_memory() -> None:
    bench = Bench()
    guest = bench.guest()
    for _ in range(40):
        bench.publish(25)
    behind = bench.queue.behind
    assert len(behind.refs) <= 24
    assert len(behind.rows()) // 6 >= 120
    read = []
    while got := bench.pull(guest, 100):
        read += [int(draught.message.payload) for draught in got]
        bench.ack(guest, [draught.message_id for draught in got])
    assert read == list(range(1000))
    again = replayed(bench.journal)
    assert len(again.queues.by_id[bench.queue.queue_id].behind.refs) <= 24
    assert state(again) == state(bench.broker.fold)


def test_what_cannot_be_read_now_is_given_later_and_what_is_gone_is_counted() -> None:
    bench = Bench()
    guest = bench.guest()
    bench.publish(3)
    bench.journal.reads_fail = True
    assert bench.pull(guest, 5) == []
    bench.journal.reads_fail = False
    bench.journal.records[bench.queue.ref_at(2) >> 20] = bench.journal.records[0]
    got = bench.pull(guest, 5)
    assert [draught.message.payload for draught in got] == [b"0", b"2"]
    assert sum(bench.broker.fold.tenant("default").counters.dropped.values()) == 1


def test_what_may_have_been_delivered_before_a_crash_is_flagged_and_nothing_is_after_a_stop() -> None:
    bench = Bench()
    guest = bench.guest()
    bench.publish(600)
    assert len(bench.pull(guest, 2)) == 2
    crashed = Bench(list(bench.journal.bodies))
    flags = [draught.redelivered for draught in crashed.pull(crashed.guest(), 256)]
    assert flags[:2] == [True, True]
    bench.consuming.clusters.stop()
    bench.sync()
    stopped = Bench(list(bench.journal.bodies))
    flags = [draught.redelivered for draught in stopped.pull(stopped.guest(), 256)]
    assert flags == [True, True] + [False] * 254


def test_a_shard_that_is_not_the_home_of_a_topic_has_no_queue_of_it_and_no_consumers() -> None:
    bench = Bench(shards=2)
    assert Homes(2).of_topic("default", TOPIC.decode()) == 1
    notes = bench.guest().voice
    assert isinstance(notes, Notes)
    assert notes.codes == [0x88]
    assert not bench.queue.clusters
    bench.consuming.start()
    bench.sync()
    assert bench.broker.fold.queues.by_id == replayed(bench.journal).queues.by_id == {}


def test_no_more_is_in_flight_than_is_allowed() -> None:
    bench = Bench(cluster_in_flight_max=10)
    one, two = bench.guest(), bench.guest()
    bench.publish(30)
    assert len(bench.pull(one, 8)) == 8
    got = bench.pull(two, 8)
    assert len(got) == 2
    assert bench.pull(two, 8) == []
    bench.ack(two, [draught.message_id for draught in got])
    assert len(bench.pull(one, 8)) == 2


def test_queues_and_clusters_are_only_so_many() -> None:
    bench = Bench(clusters_max=2, queues_max=2)
    codes = []
    for topic, name in ((TOPIC, b"a"), (TOPIC, b"b"), (TOPIC, b"c"), (b"t2", b"a"), (b"t3", b"a")):
        guest = Guest(MemoryLink(bench.broker.worker), Notes())
        bench.consuming.join(guest, b"s", topic, name)
        bench.sync()
        assert isinstance(guest.voice, Notes)
        codes += guest.voice.codes
    assert codes == [0, 0, 0x97, 0, 0x97]


def test_queues_of_other_shards_count() -> None:
    bench = Bench(queues_max=3)  # one is there
    tenant = bench.broker.fold.tenant(DEFAULT_TENANT)
    tenant.queues_elsewhere = 1
    assert [bench.consuming.open(tenant, topic) for topic in (b"t1", b"t2")] == [0, 0x97]
    bench.sync()
    tenant.queues_elsewhere = 0
    assert [bench.consuming.open(tenant, topic) for topic in (b"t1", b"t2", b"t3")] == [0, 0, 0x97]


def test_a_topic_that_has_no_queue_any_more_loses_it_at_the_start() -> None:
    bench = Bench()
    bench.guest()
    bench.publish(3)
    bench.broker.worker.settings.queue_topics = ["other/#", "named"]
    again = Fold(bench.journal)
    bench.consuming._has_queue.clear()
    bench.consuming.start()
    bench.sync()
    assert [queue.topic for queue in bench.broker.fold.queues.by_id.values()] == [b"named"]
    assert bench.broker.fold.queues.clusters == {}
    again = replayed(bench.journal)
    assert state(again) == state(bench.broker.fold)


def waits(bench: Bench, guest: Guest, most: int) -> Notes:
    """A PULL that waits for a minute."""
    notes = guest.voice
    assert isinstance(notes, Notes)
    notes.got = []
    bench.consuming.pull(guest, b"s", TOPIC, b"c", most, 60_000)
    bench.sync()
    return notes


def test_a_consumer_whose_pull_is_on_its_way_is_not_notified() -> None:
    bench = Bench()
    guest = bench.guest()
    bench.publish(1)
    notes = guest.voice
    assert isinstance(notes, Notes)
    assert notes.news == 1
    bench.broker.commit.append(bench.message())
    bench.broker.end_tick()  # the message is on its way to the disk
    durable = bench.journal.next_offset()
    bench.consuming.pull(
        guest, b"s", TOPIC, b"c", 5, 0
    )  # waits until it is durable that it may have been sent
    bench.broker.commit.on_high_watermark(durable)
    assert (len(notes.got), notes.news) == (0, 1)
    bench.sync()
    assert (len(notes.got), notes.news) == (2, 1)
    bench.publish(1)
    assert notes.news == 2, "its PULL is answered"


def test_a_connection_has_only_so_many_consumers() -> None:
    bench = Bench()
    guest = Guest(MemoryLink(bench.worker), Notes())
    most = clusters.CONSUMERS_MAX
    for number in range(most + 2):
        bench.consuming.join(guest, b"%d" % number, TOPIC, b"c")
    bench.sync()
    assert isinstance(guest.voice, Notes)
    assert guest.voice.codes == [0] * most + [0x97] * 2
    bench.consuming.leave(guest, b"0", TOPIC, b"c")
    bench.consuming.join(guest, b"x", TOPIC, b"c")
    bench.sync()
    assert guest.voice.codes[-1] == 0x97, "the LEAVE before it was not answered yet"
    bench.consuming.join(guest, b"x", TOPIC, b"c")
    bench.sync()
    assert guest.voice.codes[-1] == 0


def test_an_acknowledgement_that_makes_room_serves_who_waits() -> None:
    bench = Bench(cluster_in_flight_max=10)
    one, two = bench.guest(), bench.guest()
    bench.publish(20)
    got = bench.pull(one, 10)
    notes = waits(bench, two, 5)
    assert notes.got == []
    bench.ack(one, [draught.message_id for draught in got])
    assert len(notes.got) == 5


def test_a_pull_that_waits_is_answered_when_the_journal_can_be_read_again() -> None:
    bench = Bench()
    guest = bench.guest()
    bench.publish(3)
    bench.journal.reads_fail = True
    notes = waits(bench, guest, 5)
    assert notes.got == []
    bench.journal.reads_fail = False
    bench.later(2000)
    assert len(notes.got) == 3


def test_all_clusters_that_wait_for_one_page_are_served_as_soon_as_it_can_be_read() -> None:
    bench = Bench()
    guests = [bench.guest(), bench.guest(b"d")]
    bench.publish(40)
    pages = bench.queue.page_offsets()
    bench.journal.unreadable = set(pages)
    notes = []
    for guest, cluster in zip(guests, (b"c", b"d"), strict=True):
        assert isinstance(guest.voice, Notes)
        bench.consuming.pull(guest, b"s", TOPIC, cluster, 5, 60_000)
        bench.sync()
        notes.append(guest.voice)
    assert [note.got for note in notes] == [[], []]
    assert len(bench.broker.unread) == 2
    bench.journal.unreadable = set()
    assert bench.journal.fetch_page(pages[0]), "somebody else reads"
    bench.sync()
    assert [[draught.message.payload for draught in note.got] for note in notes] == [
        [b"%d" % number for number in range(5)]
    ] * 2
    assert len(bench.broker.unread) == 0


def test_a_cluster_that_ended_while_it_waited_is_not_woken() -> None:
    bench = Bench()
    guest = bench.guest()
    bench.publish(3)
    bench.journal.reads_fail = True
    notes = waits(bench, guest, 5)
    clusters = bench.consuming.clusters
    (cluster,) = bench.queue.clusters.values()
    bench.broker.fold.queues.ended(cluster)
    clusters.readers.forget(cluster.cluster_id)
    bench.journal.reads_fail = False
    bench.later(5_000)
    assert notes.got == []
    assert len(bench.broker.unread) == 0


def test_a_pull_that_asks_for_very_many_reserves_no_more_than_it_can_get() -> None:
    bench = Bench(backlog_page=1024)
    bench.publish(2000)
    assert len(bench.pull(bench.guest(), 65535)) == 256
    crashed = Bench(list(bench.journal.bodies), backlog_page=1024)
    guest = crashed.guest()
    flags = [draught.redelivered for _ in range(8) for draught in crashed.pull(guest, 256)]
    assert (len(flags), sum(flags)) == (2000, 512)


@pytest.mark.interpreted
def test_a_limit_that_could_not_be_written_down_is_not_taken_for_durable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    guest = bench.guest()
    bench.publish(10)
    with monkeypatch.context() as patch:
        patch.setattr(clusters, "number_record", _no_memory)
        with pytest.raises(MemoryError):
            bench.pull(guest, 5)
    bench.consuming.lost(guest)
    assert len(bench.pull(bench.guest(), 5)) == 5
    crashed = Bench(list(bench.journal.bodies))
    assert [draught.redelivered for draught in crashed.pull(crashed.guest(), 5)] == [True] * 5


def _no_memory(*_: object) -> None:
    raise MemoryError


def test_nothing_is_remembered_of_messages_that_are_done_with() -> None:
    bench = Bench(visibility_ms=5000, queue_messages_max=100)
    live = bench.consuming.clusters.readers.live
    for _ in range(30):
        bench.publish(100)
        guest = bench.guest()
        bench.pull(guest, 100)
        bench.consuming.lost(guest)
        bench.later(6000)  # given back, and then dropped by the limit
    assert len(live(bench.queue.clusters[b"c"]).by_id) <= 1400
    guest = bench.guest()
    for _ in range(30):
        bench.publish(100)
        bench.ack(guest, [draught.message_id for draught in bench.pull(guest, 100)])
    assert len(live(bench.queue.clusters[b"c"]).deadlines) <= 1400


@pytest.mark.interpreted  # a compiled link has no subclass here
def test_pulls_in_a_row_are_answered_as_fast_as_they_are_read() -> None:
    bench = Bench(write_buffer_high=10_000)
    link = Slow(bench.broker)
    voice = FrameVoice(link)
    voice.frames = ServerFrames(FrameHandler(), 1 << 20)
    voice.frames.version = 2
    guest = Guest(link, voice)
    bench.consuming.join(guest, b"s", TOPIC, b"c")
    bench.sync()
    for _ in range(50):
        message = FrameMessage(bench.clock.now_us, 1, "default", b"defaultd", 7, TOPIC, -1, bytes(8000))
        bench.broker.commit.append(message)
    bench.sync()
    for _ in range(50):
        bench.consuming.pull(guest, b"s", TOPIC, b"c", 1, 0)
    bench.sync()
    assert len(link.sent) > 50 * 8000
    assert link.largest < 20_000


class Slow(MemoryLink):
    """Notes how much was written at once."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker.worker)
        self.largest = 0

    def flush(self) -> None:
        self.largest = max(self.largest, int(self.buffered()))
        super().flush()


def test_messages_from_before_the_clock_was_set_do_not_age_by_that() -> None:
    bench = Bench(queue_age_s=100)
    bench.clock.now_us = 1_000_000_000
    bench.publish(5)
    bench.clock.now_us = NOW_US
    bench.later(2000)
    bench.later(2000)
    assert bench.queue.count == 5


def test_a_message_that_is_lost_keeps_none_behind_it_from_ageing() -> None:
    bench = Bench(queue_age_s=100)
    bench.publish(20)  # the first of them in a page
    bench.journal.records[bench.queue.ref_at(1) >> 20] = bench.journal.records[0]
    bench.journal.records[bench.queue.ref_at(8) >> 20] = bench.journal.records[0]
    for _ in range(3):
        bench.later(200_000)
    assert bench.queue.count == 0


def test_queues_age_after_a_start_though_nothing_comes() -> None:
    bench = Bench(queue_age_s=100)
    bench.publish(5)
    again = Bench(list(bench.journal.bodies), queue_age_s=100)
    for _ in range(2):
        again.later(200_000)
    assert again.queue.count == 0


def test_a_limit_that_was_lowered_is_reached_little_by_little() -> None:
    bench = Bench()
    bench.publish(1000)
    bench.broker.worker.settings.queue_messages_max = 10
    bench.publish(1)
    assert bench.queue.count == 901
    for _ in range(3):
        bench.later(2000)
    assert bench.queue.count == 10
    assert state(replayed(bench.journal)) == state(bench.broker.fold)


def test_clusters_that_are_on_their_way_count() -> None:
    bench = Bench(clusters_max=2)
    guest = Guest(MemoryLink(bench.broker.worker), Notes())
    for topic in (TOPIC, b"new"):
        for at in range(20):
            bench.consuming.join(guest, b"s", topic, b"%d" % at)
    bench.sync()
    queues = bench.broker.fold.tenant("default").queues
    assert [len(queues[topic].clusters) for topic in (TOPIC, b"new")] == [2, 2]
    assert isinstance(guest.voice, Notes)
    assert guest.voice.codes.count(0) == 4


@pytest.mark.interpreted
def test_a_queue_that_could_not_be_opened_is_opened_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    tenant = bench.broker.fold.tenant("default")
    with monkeypatch.context() as patch:
        patch.setattr(consuming, "queue_record", _no_memory)
        with pytest.raises(MemoryError):
            bench.consuming.open(tenant, b"new")
    assert bench.consuming.open(tenant, b"new") == 0
    bench.sync()
    assert b"new" in tenant.queues


@pytest.mark.interpreted
@pytest.mark.parametrize("place", ["refs", "sizes"])
def test_a_message_for_which_there_was_no_memory_keeps_its_place(place: str) -> None:
    bench = Bench()
    behind = bench.queue.behind
    whole = getattr(behind, place)
    setattr(behind, place, Full(whole))
    bench.publish(1)
    setattr(behind, place, whole)
    assert bench.queue.in_memory()[-1] >> 20 == bench.queue.lowest_offset()
    bench.publish(2)
    guest = bench.guest()
    got = bench.pull(guest, 1)
    assert got[0].message.payload == b"0"
    assert bench.ack(guest, [got[0].message_id]) == 0
    assert state(replayed(bench.journal)) == state(bench.broker.fold)


class Full:
    """An array that cannot grow."""

    def __init__(self, values: array[int]) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, at: slice) -> array[int]:
        return self._values[at]

    def append(self, value: int) -> None:
        raise MemoryError


def test_where_a_cluster_begins_is_not_guessed_while_it_cannot_be_read() -> None:
    bench = Bench(cluster_start_us=NOW_US + 5_000_000)
    bench.publish(10)
    bench.later(10_000)
    bench.publish(10)
    codes = []
    for fails in (True, False):
        bench.journal.reads_fail = fails
        guest = bench.guest()
        assert isinstance(guest.voice, Notes)
        codes += guest.voice.codes
    assert (codes, bench.queue.clusters[b"c"].next) == ([0x89, 0], 11)


def test_requests_with_long_names_are_held_back_by_their_bytes_while_the_disk_is_slow() -> None:
    bench = Bench()
    guest, topic = bench.guest(), b"t" * 60_000
    joins = 0
    while not guest.link.holds:
        bench.consuming.join(guest, b"s", topic, b"c")
        joins += 1
        assert joins < 1000
    bench.sync()
    assert (guest.link.holds, guest.link.deferred) == (False, 0)


def test_a_connection_with_ever_new_devices_is_held_back_while_the_disk_is_slow() -> None:
    bench = Bench(commit_bytes_max=10_000)
    link = MemoryLink(bench.broker.worker)
    link.identity = bench.broker.fold.tenant("default").identity_of("user")
    client = DeviceLink(link, Voice(), bench.worker.bind_device)
    frames = ServerFrames(client, 1 << 20)
    client.take(frames)
    for number in range(1000):
        bench.broker.devices.speak_as(client, b"door-%d" % number, f"door-{number}", False)
    assert link.holds


def test_a_queue_at_its_limit_writes_each_reference_into_one_page() -> None:
    bench = Bench(backlog_page=128, queue_messages_max=256)
    for _ in range(40):
        bench.publish(50)
    pages = [record for record in bench.journal.records if _is_page(record)]
    assert len(pages) < 2000 / 128 + 2
    assert state(replayed(bench.journal)) == state(bench.broker.fold)


def _is_page(record: Record) -> bool:
    return isinstance(record, Progress) and record.subkind == SHARED_BACKLOG_PAGE


def test_a_pull_comes_to_what_is_behind_very_many_expired_messages() -> None:
    bench = Bench(backlog_page=1024)
    guest = bench.guest()
    for _ in range(600):
        bench.broker.commit.append(
            FrameMessage(bench.clock.now_us, 1, "default", b"defaultd", 7, TOPIC, 1, b"old")
        )
    bench.later(2000)
    bench.publish(3)
    assert [draught.message.payload for draught in bench.pull(guest, 10)] == [b"0", b"1", b"2"]


@pytest.mark.interpreted
def test_nobody_who_waits_is_asked_while_no_more_may_be_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(cluster_in_flight_max=1)
    first, *others = [bench.guest() for _ in range(20)]
    bench.publish(1)
    got = bench.pull(first, 1)
    notes = [waits(bench, other, 1) for other in others]
    asked: list[Guest] = []
    answer = bench.consuming.clusters.answer_pulls

    def noted(guest: Guest) -> None:
        asked.append(guest)
        answer(guest)

    monkeypatch.setattr(bench.consuming.clusters, "answer_pulls", noted)
    bench.publish(2)
    assert asked == []
    bench.ack(first, [got[0].message_id])
    assert (len(asked), len(notes[0].got)) == (1, 1)


def test_a_consumer_that_was_told_and_does_not_pull_keeps_no_message_from_one_that_would() -> None:
    """What is told to one that stands still would wait until the next message comes, and there may be none."""
    bench = Bench()
    still, ready = bench.guest(), bench.guest()
    told = ready.voice
    assert isinstance(told, Notes)
    bench.publish(2)
    for _ in range(6):
        assert told.news == 1
        told.news = 0
        got = bench.pull(ready, 256)
        bench.ack(ready, [draught.message_id for draught in got])
        bench.publish(1)
    assert isinstance(still.voice, Notes)
    assert still.voice.news == 1


class Looked(OrderedDict[Consumer, None]):
    """Counts how often somebody is taken from the front, or put behind the others."""

    times = 0

    def move_to_end(self, key: Consumer, last: bool = True) -> None:
        self.times += 1
        super().move_to_end(key, last)

    def popitem(self, last: bool = True) -> tuple[Consumer, None]:
        self.times += 1
        return super().popitem(last)


def test_whoever_was_told_of_messages_is_not_looked_at_with_each_one_that_leaves() -> None:
    bench = Bench()
    guests = [bench.guest() for _ in range(300)]
    live = bench.broker.clusters.readers.live(bench.queue.clusters[b"c"])
    looked = live.idle = Looked(live.idle)
    bench.publish(1000)
    for guest in guests:
        bench.consuming.lost(guest)
        bench.sync()
    assert looked.times == 300


class Hoarse(Notes):
    """A voice for which there is no memory."""

    def notify(self, sn: bytes, topic: bytes, cluster: bytes, available: i64) -> None:
        raise MemoryError

    def pulled(self, sn: bytes, messages: list[Draught]) -> None:
        raise MemoryError


def with_voice(bench: Bench, voice: Notes, topic: bytes, wait_ms: int) -> Guest:
    found = Guest(MemoryLink(bench.broker.worker), voice)
    bench.consuming.join(found, b"s", topic, b"c")
    bench.sync()
    if wait_ms:
        bench.consuming.pull(found, b"s", topic, b"c", 1, wait_ms)
        bench.sync()
    return found


@pytest.mark.parametrize("wait_ms", [0, 60_000])
def test_a_consumer_that_cannot_be_told_costs_no_other_one_its_message(wait_ms: int) -> None:
    """Neither one of the same cluster, nor one of the next queue of the batch."""
    bench = Bench()
    bench.consuming.open(bench.broker.fold.tenant("default"), b"doors")
    bench.sync()
    hoarse = with_voice(bench, Hoarse(), TOPIC, wait_ms)
    others = [Notes(), Notes()]
    for voice, topic in zip(others, (TOPIC, b"doors"), strict=True):
        with_voice(bench, voice, topic, wait_ms)
    for topic in (TOPIC, TOPIC, b"doors"):
        bench.broker.commit.append(bench.message(topic))
    bench.sync()
    assert [len(voice.got) if wait_ms else voice.news for voice in others] == [1, 1]
    assert hoarse.link.closed


def test_a_consumer_that_cannot_be_given_what_another_one_held_keeps_it_from_nobody() -> None:
    bench = Bench()
    gone, hoarse, third = bench.guest(), with_voice(bench, Hoarse(), TOPIC, 0), Notes()
    bench.publish(2)
    assert len(bench.pull(gone, 2)) == 2
    bench.consuming.pull(hoarse, b"s", TOPIC, b"c", 1, 60_000)
    with_voice(bench, third, TOPIC, 60_000)
    bench.consuming.lost(gone)
    bench.sync()
    assert len(third.got) == 1
    assert hoarse.link.closed


class Scarce(dict[int, object]):
    """A dictionary for which there is no memory to put something in, until `enough`."""

    enough = False

    def __setitem__(self, key: int, value: object) -> None:
        if not self.enough:
            raise MemoryError
        super().__setitem__(key, value)


@pytest.mark.interpreted  # compiled code puts into a dictionary itself
@pytest.mark.parametrize("way", ["overdue", "lost"])
def test_what_cannot_be_given_back_for_want_of_memory_is_later(way: str) -> None:
    bench = Bench()
    guest = bench.guest()
    bench.publish(3)
    assert len(bench.pull(guest, 2)) == 2
    cluster = bench.queue.clusters[b"c"]
    scarce = Scarce()
    cluster.returned = scarce  # type: ignore[assignment]
    if way == "lost":
        bench.consuming.lost(guest)
    bench.later(31_000)
    scarce.enough = True
    bench.later(31_000)
    assert [draught.redelivered for draught in bench.pull(bench.guest(), 9)] == [True, True, False]


@pytest.mark.interpreted
def test_what_cannot_be_given_to_a_consumer_for_want_of_memory_waits_for_the_next_one() -> None:
    bench = Bench()
    bench.publish(1)
    guest, cluster = bench.guest(), bench.queue.clusters[b"c"]
    cluster.in_flight = Scarce()  # type: ignore[assignment]
    bench.pull(guest, 1)
    assert guest.link.closed
    cluster.in_flight = {}
    assert len(bench.pull(bench.guest(), 1)) == 1
