"""A shard takes from the others what its sessions get that keep up, publishers elsewhere wait for that, and nobody waits
for a slow client."""

from __future__ import annotations

import itertools

import pytest

from harness import Client, Harness
from headrace.core.inbound.gate import LET_GO_AT_ONCE
from headrace.core.ports.link import Crowd
from headrace.core.ports.settings import BrokerSettings
from headrace.core.records.record import DROP_LIMIT, DROP_QOS0_SLOW
from headrace.core.shards import intake, sources
from headrace.core.shards.peer import Looked
from headrace.core.shards.stream_settings import StreamSettings
from headrace.core.state.session import APPLICATION, Session, session_of
from headrace.mqtt.packets import Subscribe, SubscriptionRequest
from headrace.mqtt.properties import Properties
from headrace.storage.memory import ManualScheduler
from shard_wires import WiredShard, WiredShards, received

LIMIT = 60
WINDOW = 6


def shards(owed_max: int = 100_000, **settings: int) -> WiredShards:
    """Three shards whose queues, windows and crowds are small."""
    made, streams = BrokerSettings(), StreamSettings()
    made.backlog_messages_max = LIMIT
    made.inflight_max = WINDOW
    for name, value in settings.items():
        setattr(made, name, value)
    streams.pending_max = 8
    streams.crowded_at = 10
    streams.window_bytes = 20 << 10
    streams.owed_max = owed_max
    streams.share_of = 4
    return WiredShards(3, made, streams)


def waits(client: Client) -> bool:
    """Whether nothing is read from it."""
    return client.link.holds != 0


class Load:
    """Publishers at home in shards 0 and 1, who publish whenever they are read from, in steps of a millisecond."""

    def __init__(self, cluster: WiredShards, topic: str, qos: int = 1) -> None:
        self.cluster, self.topic, self.qos = cluster, topic, qos
        self.writers = [cluster[at].client(f"w{at}", version=5) for at in (0, 1)]
        self.sent: list[list[bytes]] = [[], []]
        self.waited = 0

    def step(self, each: int = 5) -> None:
        for at, writer in enumerate(self.writers):
            for _ in range(each):
                if waits(writer):
                    self.waited += 1
                    break
                self.sent[at].append(b"%d %d" % (at, len(self.sent[at])))
                writer.publish(self.topic, self.sent[at][-1], self.qos)
        self.cluster.carry()
        self.cluster.advance(0.001)

    def of(self, got: list[bytes]) -> list[list[bytes]]:
        return [[one for one in got if one.startswith(b"%d " % at)] for at in (0, 1)]


def take(reader: Client, most: int) -> list[bytes]:
    """Take what has come, and acknowledge it."""
    got = reader.publishes()
    assert len(got) <= most
    for packet_id, _, _, qos in got:
        if qos:
            reader.ack(packet_id, sync=False)
    reader.harness.sync()
    return [payload for _, payload, _, _ in got]


def drops(cluster: WiredShards, shard: int, reason: int) -> int:
    return cluster[shard].broker.fold.tenant("default").counters.dropped.get(reason, 0)


def drain(cluster: WiredShards, reader: Client) -> list[bytes]:
    """Take all that is still to come."""
    found: list[bytes] = []
    quiet = 0
    while quiet < 700:
        got = take(reader, WINDOW)
        found += got
        cluster.carry()
        cluster.advance(0.001)
        quiet = 0 if got else quiet + 1
    return found


@pytest.mark.parametrize("owed_max", [100_000, 12])
def test_a_subscriber_that_takes_all_the_time_loses_nothing(owed_max: int) -> None:
    """However much publishers in other shards could publish meanwhile: they wait."""
    cluster = shards(owed_max)
    reader = cluster[2].client("r", version=5)
    reader.subscribe("a", 1)
    cluster.carry()
    load = Load(cluster, "a")
    got: list[bytes] = []
    for _ in range(400):
        load.step()
        got += take(reader, WINDOW)
    assert len(got) > 2000
    assert load.waited > 100 or owed_max < 100_000
    got += drain(cluster, reader)
    assert load.of(got) == load.sent
    assert drops(cluster, 2, DROP_LIMIT) == 0
    assert not any(waits(writer) for writer in load.writers)


@pytest.mark.slow
def test_nobody_waits_for_a_slow_client() -> None:
    """It is at its limit, and loses what is too much for it as in one shard. What others get takes as long as before but
    for a tenth of the time."""
    cluster = shards()
    slow, quick = cluster[2].client("s", version=5), cluster[2].client("q", version=5)
    slow.subscribe("a", 1)
    quick.subscribe("b", 1)
    cluster.carry()
    load = Load(cluster, "a")
    other = cluster[0].client("o", version=5)
    late = 0
    for at in range(2000):
        load.step()
        if at % 400 == 0:
            take(slow, WINDOW)
        other.publish("b", b"%d" % at)
        cluster.carry()
        late += take(quick, WINDOW)[-1:] != [b"%d" % at]
    assert late < 2000 // (intake.POOR_REST - 1)
    assert drops(cluster, 2, DROP_LIMIT) > 1000
    assert cluster[2].neighbours.intake.held_ms < 2000 // (intake.POOR_REST - 1)
    assert load.waited < 1000


@pytest.mark.slow
def test_who_was_found_to_be_slow_is_not_waited_for_again_at_once() -> None:
    cluster = shards()
    slow = cluster[2].client("s", version=5)
    slow.subscribe("a", 1)
    cluster.carry()
    load = Load(cluster, "a")
    found = cluster[2].neighbours.intake
    while not found.held_ms:
        load.step()
    first = found.held_ms
    for _ in range(intake.SLOW_MS - 100):
        load.step(1)
    assert found.held_ms == first
    assert first <= 2 * intake.CHECK_MS


@pytest.mark.slow
def test_nothing_is_left_lying_for_long() -> None:
    """Somebody takes much, and gets as much from a publisher in its own shard: the others have their turn."""
    cluster = shards(inflight_max=20)
    reader, near = cluster[2].client("r", version=5), cluster[2].client("n", version=5)
    reader.subscribe("a", 1)
    cluster.carry()
    load = Load(cluster, "a")
    got: list[bytes] = []
    for at in range(3000):
        load.step()
        for _ in range(20 if at < 2000 else 0):
            near.publish("a", b"near", sync=False)
        got += take(reader, 20)
    mine = load.of(got)
    assert min(len(one) for one in mine) > 500
    assert cluster[2].neighbours.intake.held_ms < 2500


def test_nobody_waits_for_a_session_that_gets_what_its_own_shard_publishes() -> None:
    """What comes of others is for somebody who keeps up, and the next message here is for one that is late."""
    cluster = shards()
    reader, other = cluster[2].client("r", version=5), cluster[2].client("o", version=5)
    near = cluster[2].client("n", version=5)
    reader.subscribe("near", 1)
    other.subscribe("a", 1)
    cluster.carry()
    load = Load(cluster, "a")
    found = cluster[2].neighbours.intake
    for _ in range(LIMIT // 2):
        near.publish("near", b"near", sync=False)
    cluster.carry()
    session = session_of(reader.link)
    for _ in range(60):
        for _ in range(WINDOW):
            near.publish("near", b"near")
            load.step(1)
            take(other, WINDOW)
        take(reader, WINDOW)
        assert session is not None
        assert not found.keeps_up(session)
    assert cluster[2].neighbours.copies_taken > 100
    assert found.held_ms == 0
    assert not found.holds
    assert drops(cluster, 2, DROP_LIMIT) == 0


def test_an_application_is_not_waited_for() -> None:
    cluster = shards()
    reader = cluster[2].client("r", version=5)
    session = session_of(reader.link)
    assert session is not None
    session.session_type = APPLICATION
    reader.subscribe("a", 1)
    cluster.carry()
    load = Load(cluster, "a")
    for _ in range(300):
        load.step()
    assert cluster[2].neighbours.intake.held_ms == 0
    assert load.of(received(reader) + drain(cluster, reader))[0][:3] == load.sent[0][:3]
    assert drops(cluster, 2, DROP_LIMIT) == 0


def crowded() -> tuple[WiredShards, Load, Client]:
    """Both publishers wait: shard 2 takes nothing for the moment."""
    cluster = shards()
    reader = cluster[2].client("r", version=5)
    reader.subscribe("a", 1)
    cluster.carry()
    load = Load(cluster, "a")
    while not all(waits(writer) for writer in load.writers):
        load.step()
    return cluster, load, reader


def test_publishers_do_not_wait_for_a_shard_that_stands_still() -> None:
    cluster, load, reader = crowded()
    cluster.held = {(2, 0)}
    for _ in range(1200):
        cluster.advance(0.001)
    assert not waits(load.writers[0])
    before = len(load.sent[0])
    for _ in range(20):
        load.step()
    assert len(load.sent[0]) == before + 100
    cluster.held = set()
    got = drain(cluster, reader)
    assert set(got) <= {one for sent in load.sent for one in sent}


def test_publishers_go_on_when_the_stream_breaks_and_everything_comes_once() -> None:
    cluster, load, reader = crowded()
    assert [shard.broker.gate.crowded for shard in cluster.shards] == [1, 1, 0]
    waiting = cluster[2].neighbours._takers
    assert all(waiting[at].inbox for at in (0, 1))
    for at in (0, 1):
        cluster.disconnect(2, at)
    assert not any(taker.inbox for taker in waiting.values())
    cluster.carry()
    assert not any(waits(writer) for writer in load.writers)
    for at in (0, 1):
        cluster.connect(2, at)
    cluster.carry()
    assert load.of(drain(cluster, reader)) == load.sent


def test_publishers_who_left_while_they_waited_are_forgotten() -> None:
    cluster, load, reader = crowded()
    load.writers[0].lose()
    got = drain(cluster, reader)
    assert load.of(got) == load.sent
    broker = cluster[0].broker
    assert (broker.publishing.waiting(), broker.gate.crowded) == ((0, 0), 0)
    assert not waits(load.writers[1])


def test_a_subscription_is_acknowledged_behind_what_waits() -> None:
    """And what is published then is found."""
    cluster, _, _ = crowded()
    other = cluster[2].client("x", version=5)
    other.subscribe("new", 1)
    for _ in range(2 * intake.HOLD_MS_MAX):
        cluster.advance(0.001)
    assert any(first >> 4 == 9 for first, _ in other.take())
    cluster[0].client("y", version=5).publish("new", b"1")
    for _ in range(2 * intake.HOLD_MS_MAX):
        cluster.advance(0.001)
    assert received(other) == [b"1"]


def test_who_publishes_at_qos_0_waits_where_that_would_be_dropped() -> None:
    cluster, load, reader = crowded()
    writer = cluster[0].client("z", version=5)
    for number in range(100):
        if waits(writer):
            break
        writer.publish("a", b"zero %d" % number, 0)
    assert waits(writer)
    assert drops(cluster, 0, DROP_QOS0_SLOW) == 1
    drain(cluster, reader)
    assert not waits(writer)
    assert not any(waits(one) for one in load.writers)


# What one client can do, and what is so for a moment only


@pytest.mark.slow
def test_what_is_dropped_for_a_session_was_not_taken_by_it() -> None:
    """It takes nothing, while a publisher of its own shard, who does not wait, fills its queue above the limit."""
    cluster = shards()
    dead, near = cluster[2].client("d", version=5), cluster[2].client("n", version=5)
    dead.subscribe("a", 1)
    cluster.carry()
    load = Load(cluster, "a")
    for _ in range(600):
        for _ in range(20):
            near.publish("a", b"near", sync=False)
        load.step()
    assert drops(cluster, 2, DROP_LIMIT) > 10_000
    assert 0 < cluster[2].neighbours.intake.held_ms <= intake.CHECK_MS + 5


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.slow
def test_who_connects_again_and_again_is_not_waited_for(clean: bool) -> None:
    """Each time before it would have been found to be slow."""
    cluster = shards()
    client = cluster[2].client("s", version=5, clean=clean)
    client.subscribe("a", 1)
    cluster.carry()
    load = Load(cluster, "a")
    for at in range(800):
        if at % 40 == 39:
            client.lose()
            client = Client(cluster[2], client.link.client_id, version=5, clean=clean)
            if clean:
                client.subscribe("a", 1)
        load.step(3)
    assert cluster[2].neighbours.intake.held_ms < 800 // intake.POOR_REST + 40


def test_a_session_that_takes_nothing_is_slow_however_few_its_messages_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is late by their bytes, and others take enough."""
    monkeypatch.setattr(intake, "TAKEN_PER_S", 0)
    cluster = shards(backlog_bytes_max=8000)
    slow = cluster[2].client("s", version=5)
    slow.subscribe("a", 1)
    cluster.carry()
    writer = cluster[0].client("w", version=5)
    for _ in range(WINDOW + 12):
        writer.publish("a", b"x" * 900)
    cluster.carry()
    found = cluster[2].neighbours.intake
    assert found.holds
    for _ in range(intake.CHECK_MS + 2):
        cluster.advance(0.001)
    assert not found.holds


def test_after_a_stop_publishers_are_waited_for_again_soon() -> None:
    """The process stood still, or nobody looked, in the middle of a hold."""
    cluster, load, reader = crowded()
    found = cluster[2].neighbours.intake
    cluster.advance(3600)
    taken = cluster[2].neighbours.copies_taken
    cluster.advance(intake.POOR_REST * intake.HOLD_MS_MAX / 1000)
    cluster.advance(intake.SLOW_MS / 1000)
    held_ms = found.held_ms
    for _ in range(60):
        load.step()
        take(reader, WINDOW)
    assert found.holds or found.held_ms > held_ms
    assert cluster[2].neighbours.copies_taken > taken


def one_batch(shard: WiredShard) -> None:
    """One batch becomes durable, and takes effect."""
    shard.worker.end_tick()
    shard.journal.durable = len(shard.journal.records)
    shard.broker.commit.on_high_watermark(shard.journal.durable)
    shard.worker.end_tick()


def test_streams_have_their_turns_though_little_is_taken_at_a_time() -> None:
    """Less than one of them brings."""
    cluster = shards(inflight_max=1000, backlog_messages_max=10_000)
    reader = cluster[2].client("r", version=5)
    reader.subscribe("a", 1)
    cluster.carry()
    load = Load(cluster, "a")
    for _ in range(60):
        for writer in load.writers:
            for _ in range(12):
                if not waits(writer):
                    writer.publish("a", b"x")
        for end in [end for pair in cluster.wires.values() for end in pair]:
            while end.said:
                cluster.hear(end)
        for shard in cluster.shards[:2]:
            shard.advance(0.001)
        one_batch(cluster[2])
    found = cluster[2].neighbours._takers
    assert min(found[at].copies for at in (0, 1)) > 150


def test_a_pass_of_the_loop_takes_so_much_of_what_waited() -> None:
    cluster = shards()
    seen = cluster[2].neighbours
    for taker in seen._takers.values():
        taker.inbox.extend(Looked(0) for _ in range(sources.TAKEN_AT_ONCE))
    requests = cluster[2].worker._scheduler.requests  # type: ignore[attr-defined]
    cluster[2].worker.end_tick()
    left = [len(taker.inbox) for taker in seen._takers.values()]
    assert sum(left) == sources.TAKEN_AT_ONCE
    assert max(left) - min(left) <= sources.TAKEN_IN_TURN
    assert cluster[2].worker._scheduler.requests > requests  # type: ignore[attr-defined]
    cluster[2].worker.end_tick()
    assert not any(taker.inbox for taker in seen._takers.values())


def test_whoever_publishes_much_after_a_pause_waits() -> None:
    """Nothing was granted for long, since nothing was published."""
    cluster, _, reader = crowded()
    drain(cluster, reader)
    cluster.advance(30)
    writer = cluster[0].client("z", version=5)
    number = 0
    while not waits(writer) and number < 100:
        writer.publish("a", b"zero", 0)
        number += 1
    assert waits(writer)
    assert drops(cluster, 0, DROP_QOS0_SLOW) == 1


def test_who_waits_has_a_turn_though_others_come_all_the_time() -> None:
    """Each of them publishes something, and leaves: they wait for nobody."""
    cluster = shards()
    reader = cluster[2].client("r", version=5)
    reader.subscribe("a", 1)
    cluster.carry()
    load = Load(cluster, "a")
    load.writers.pop()
    waited = longest = 0
    for at in range(400):
        other = cluster[0].client(f"o{at}-", version=5, clean=True, sync=False)
        for _ in range(WINDOW + 1):
            other.publish("a", b"other", sync=False)
        cluster[0].sync()
        other.lose()
        load.step()
        take(reader, WINDOW)
        waited = waited + 1 if waits(load.writers[0]) else 0
        longest = max(longest, waited)
    assert 10 < longest < 150


def test_who_publishes_retained_messages_waits_for_their_home() -> None:
    cluster, load, _ = crowded()
    cluster.held = {(2, 0)}
    writer = cluster[0].client("z", version=5)
    topic = cluster.topic_in(2, "z/")
    for _ in range(100):
        if not waits(writer):
            writer.publish(topic, b"kept", retain=True)
    assert waits(writer)
    assert waits(load.writers[0])


def test_a_crowd_disperses_in_the_order_in_which_it_came_some_in_each_pass() -> None:
    """And stays where it is when it is crowded again."""
    shard = shards()[0]
    gate, crowd = shard.broker.gate, Crowd()
    crowd.crowded = True
    clients = [shard.client(f"c{at}-", version=5) for at in range(2 * LET_GO_AT_ONCE + 10)]
    for client in clients:
        gate.join(client.link, crowd)
    shard.sync()
    clients[3].lose()
    assert gate.crowded == len(clients)
    gate.disperse(crowd)
    gate.disperse(crowd)
    shard.worker.end_tick()
    assert [waits(one) for one in clients] == [at > LET_GO_AT_ONCE for at in range(len(clients))]
    crowd.crowded = True
    gate.join(clients[0].link, crowd)
    shard.worker.end_tick()
    shard.worker.end_tick()
    assert gate.crowded == len(clients) - LET_GO_AT_ONCE
    gate.disperse(crowd)
    shard.worker.end_tick()
    assert waits(clients[0])
    assert not waits(clients[2 * LET_GO_AT_ONCE])
    shard.worker.end_tick()
    assert not any(waits(one) for one in clients)
    assert (gate.crowded, len(crowd.waiting)) == (0, 0)


def test_clients_who_publish_to_each_other_lose_nothing() -> None:
    """Nobody reads what they acknowledge while they wait for the other's shard, which waits for them."""
    cluster = shards()
    pair = [cluster[at].client(f"p{at}-", version=5) for at in (0, 1)]
    load = [(cluster[at].client(f"o{at}{n}-", version=5), f"to {1 - at}") for at in (0, 1) for n in range(3)]
    for at in (0, 1):
        pair[at].subscribe(f"to {at}", 1)
        load.append((pair[at], f"to {1 - at}"))
    cluster.carry()
    sent = got = 0
    for step in range(500):
        for client, topic in load:
            for _ in range(4):
                if step < 300 and not waits(client):
                    client.publish(topic, b"x", sync=False)
                    sent += 1
        cluster.carry()
        cluster.advance(0.001)
        for client in pair:
            for packet_id, _, _, qos in client.publishes():
                got += 1 if qos else 0
                client.ack(packet_id, sync=False)
    for client in pair:
        got += len(drain(cluster, client))
    assert got == sent > 3000
    assert drops(cluster, 0, DROP_LIMIT) == drops(cluster, 1, DROP_LIMIT) == 0


def test_who_waits_is_read_from_when_it_has_much_to_take_itself() -> None:
    cluster, load, _ = crowded()
    writer, near = load.writers[0], cluster[0].client("n", version=5)
    gate = cluster[0].broker.gate
    session = session_of(writer.link)
    assert session is not None
    subscribed = SubscriptionRequest("b", 1, False, False, 0)
    cluster[0].broker.on_subscribe(writer.link, Subscribe(1, [subscribed], 0, Properties()))
    cluster[0].sync()
    assert gate.crowded == 1
    for _ in range(WINDOW + LIMIT // 4 + 2):
        near.publish("b", b"near")
    assert not waits(writer)
    assert gate.crowded == 0
    writer.publish("a", b"more")
    assert not waits(writer)
    while got := writer.publishes():
        for packet_id, _, _, _ in got:
            writer.ack(packet_id)
    writer.publish("a", b"more")
    assert waits(writer)


def test_the_timer_has_passes_while_something_is_left_lying_and_cuts_no_stream_for_what_lies_there() -> None:
    """What a source has confirmed may be among it, and nothing else may happen that a pass would come of."""
    cluster, _, _ = crowded()
    seen, scheduler = cluster[2].neighbours, cluster[2].worker._scheduler
    assert isinstance(scheduler, ManualScheduler)
    taker = seen._takers[0]
    assert taker.inbox
    taker.asked_ms = cluster[2].clock.mono_ms - cluster.streams.answer_within_ms
    cluster[2].worker._tick_requested = False
    before = scheduler.requests
    seen.on_timer()
    assert seen.cuts == 0
    assert scheduler.requests > before
    taker.inbox.clear()
    taker.asked_ms -= cluster.streams.answer_within_ms
    seen.on_timer()
    assert seen.cuts == 1


# By itself


class Watch:
    """An intake for which a session with more than 10 messages is late."""

    def __init__(self) -> None:
        self.harness = Harness()
        streams = StreamSettings()
        streams.late_at = 10
        streams.pending_max = 5
        streams.share_of = 0
        self.clock = self.harness.clock
        broker = self.harness.broker
        self.intake = intake.Intake(self.clock, streams, broker.gate)

    def session(self, name: str) -> Session:
        found = session_of(self.harness.client(name, version=5).link)
        assert found is not None
        return found

    def give(self, session: Session, count: int) -> None:
        for _ in range(count):
            session.outbound().push(1 << 20 | 1, 10)
            self.intake.grown(session, session.outbound())

    def run(self, ms: int, takers: dict[Session, int] | None = None, step: int = 1) -> int:
        """Take so many messages of each in each step; return for how long was held."""
        before = self.intake.held_ms
        for _ in range(0, ms, step):
            self.clock.mono_ms += step
            for session, count in (takers or {}).items():
                session.outbound().drop_head(min(count, session.outbound().backlog.count))
            self.intake.look()
        return self.intake.held_ms - before


def test_copies_that_have_not_taken_effect_close_it() -> None:
    found = Watch().intake
    found.pending = 4
    assert found.open
    found.pending = 5
    assert not found.open


def test_a_session_that_takes_much_is_waited_for_until_it_is_in_time() -> None:
    watch = Watch()
    session = watch.session("a")
    watch.give(session, 30)
    assert watch.intake.holds
    assert watch.run(100, {session: 10}) == 3
    watch.give(session, 11)
    assert watch.intake.holds  # again at once


def test_sessions_that_take_too_little_together_are_slow() -> None:
    watch = Watch()
    session = watch.session("a")
    watch.give(session, 3000)
    assert watch.run(2 * intake.CHECK_MS, {session: 4}) == intake.CHECK_MS
    watch.run(intake.POOR_REST * intake.CHECK_MS)
    watch.give(session, 1)
    other = watch.session("b")
    watch.give(other, 20)
    assert list(watch.intake._watched) == [other.incarnation]
    watch.run(intake.SLOW_MS)
    watch.give(session, 1)
    assert watch.intake.holds


def test_one_that_takes_too_little_of_much_is_slow_beside_others() -> None:
    watch = Watch()
    slow, quick = watch.session("a"), watch.session("b")
    watch.give(slow, 400)
    watch.give(quick, 50 * intake.CHECK_MS)
    watch.run(intake.CHECK_MS + 1, {slow: 0, quick: 20})
    assert watch.intake.holds
    assert list(watch.intake._watched) == [quick.incarnation]


def test_however_much_is_taken_the_others_have_their_turn() -> None:
    watch = Watch()
    session = watch.session("a")
    watch.give(session, 8000)
    assert watch.run(intake.HOLD_MS_MAX, {session: 10}) == intake.HOLD_MS_MAX
    watch.give(session, 1)
    watch.run(intake.REST_MS - 1, {session: 10})
    watch.give(session, 1)
    assert not watch.intake.holds
    watch.run(1)
    watch.give(session, 1)
    assert watch.intake.holds


def test_nobody_is_found_to_be_slow_in_a_pass_that_took_long() -> None:
    """Nobody's acknowledgements were read meanwhile."""
    watch = Watch()
    session = watch.session("a")
    watch.give(session, 30)
    step = intake.CHECK_MS + 10
    watch.run((intake.CHECK_PASSES - 1) * step, step=step)
    assert watch.intake.holds
    watch.run(step, step=step)
    assert not watch.intake.holds


def test_one_that_goes_while_it_is_waited_for_is_slow_unless_it_was_in_time() -> None:
    watch = Watch()
    client = watch.harness.client("a", version=5)
    session = session_of(client.link)
    assert session is not None
    watch.give(session, 20)
    watch.run(10)
    client.link.closed = True
    assert watch.run(10) == 11
    client.link.closed = False
    watch.run(intake.SLOW_MS - intake.CHECK_MS)
    watch.give(session, 1)
    assert not watch.intake.holds


def test_so_many_are_watched_and_so_many_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    if intake.__file__.endswith(".so"):
        pytest.skip("a constant of compiled code")
    monkeypatch.setattr(intake, "WATCHED_MAX", 3)
    monkeypatch.setattr(intake, "SLOW_MAX", 4)
    watch = Watch()
    sessions = [watch.session(f"c{at}") for at in range(5)]
    for session in sessions:
        watch.give(session, 20)
    assert len(watch.intake._watched) == 3
    for _ in range(3):
        watch.run(intake.CHECK_MS + intake.CHECK_MS * intake.POOR_REST + 2)
        for session in sessions:
            watch.give(session, 1)
    assert len(watch.intake._slow) == 4
    watch.run(2 * intake.SLOW_MS_MAX)
    watch.give(sessions[4], 1)
    watch.run(intake.CHECK_MS + 1)
    assert list(watch.intake._slow) == [sessions[4].incarnation]


def test_one_that_is_slow_again_and_again_is_waited_for_less_and_less() -> None:
    watch = Watch()
    session = watch.session("a")

    def next_hold() -> int:
        """After how many milliseconds it is waited for again."""
        for ms in range(0, 2 * intake.SLOW_MS_MAX, 100):
            watch.give(session, 20)
            if watch.intake.holds:
                watch.run(2 * intake.CHECK_MS)
                return ms
            watch.run(100, step=100)
        raise AssertionError("never")

    waits = [next_hold() for _ in range(9)]
    assert waits[0] == 0
    for before, after in itertools.pairwise(waits[1:5]):
        assert 1.5 * before < after < 2.5 * before
    assert 0.9 * intake.SLOW_MS_MAX < waits[-1] <= intake.SLOW_MS_MAX
    watch.run(3 * intake.SLOW_MS_MAX, step=100)
    assert next_hold() == 0
    assert next_hold() < 1.2 * intake.SLOW_MS


@pytest.mark.parametrize("share", [0.35, 0.7])
def test_nobody_waits_for_those_who_get_less_than_half_of_what_is_taken(share: float) -> None:
    """They take much all the time, and less than they get."""
    cluster = shards()
    some, others = cluster[2].client("s", version=5), cluster[2].client("o", version=5)
    some.subscribe("a", 1)
    others.subscribe("b", 1)
    cluster.carry()
    writer = cluster[0].client("w", version=5)
    for _ in range(100):
        for at in range(20):
            if not waits(writer):
                writer.publish("a" if int(at * share) < int((at + 1) * share) else "b", b"x")
        cluster.carry()
        while take(others, WINDOW):
            pass
        take(some, WINDOW)
        cluster.advance(0.001)
    held = cluster[2].neighbours.intake.held_ms
    assert held == 0 if share < 0.5 else held > 0


def test_new_filters_let_nobody_pass_who_waits() -> None:
    """With each of them what is owed is looked at again."""
    cluster = shards()
    reader = cluster[2].client("r", version=5)
    reader.subscribe("a", 1)
    cluster.carry()
    load = Load(cluster, "a")
    got: list[bytes] = []
    for at in range(600):
        if at % 10 == 0:
            reader.subscribe(f"new/{at}", 1)
        load.step()
        got += take(reader, WINDOW)
    assert load.waited > 400
    assert sum(len(sent) for sent in load.sent) - len(got) < 300
    got += drain(cluster, reader)
    assert load.of(got) == load.sent
    assert drops(cluster, 2, DROP_LIMIT) == 0
