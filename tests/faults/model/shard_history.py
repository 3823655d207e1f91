"""Whole histories of three shards from a seed: clients at home in each, wires that break, owners that crash or change.

    python -m faults.model.shard_history --seed 7            replay one
    python -m faults.model.shard_history --crashes 100000    as many as it takes

The promises are those of one broker (`actor`): nothing acknowledged is lost (P1, P2), nothing comes twice at QoS 2, each
publisher's messages on a topic come in order (P3), what is in flight comes back (P4), what is retained is what the
journal of the topic's home says (P6), and what is published anywhere after SUBACK comes (P11). A shared subscription has
members in all shards: each message at QoS 1 comes to one of them at least, at QoS 2 to one exactly, and none is lost
while a persistent member is there.
"""

from __future__ import annotations

import argparse
import sys
import time
from itertools import count
from random import Random

from faults.model.actor import NO, Actor
from faults.model.reference import GROUP, Publication, Reference
from faults.model.shards import Cluster, End, Owner, Shard
from faults.model.world import Violation, World
from harness import held
from headrace.core.homes import Homes
from headrace.core.ports.identity import DEFAULT_TENANT
from headrace.core.ports.settings import BrokerSettings
from headrace.core.records.message import Copy, Given
from headrace.core.records.record import KIND_COPY
from headrace.core.shards.neighbours import Neighbours
from headrace.core.shards.stream_settings import StreamSettings
from headrace.core.state.away import borrowing_of
from headrace.core.state.queue import REF_QOS
from headrace.core.state.session import Session
from headrace.core.state.state import Fold
from headrace.mqtt.topics import matches

SHARDS = 3
CLIENTS = 5
TOPICS = ("t/1", "t/2", "u/1")
FILTERS = ("t/1", "t/+", "#", "u/1", "t/2")
STEPS = (
    ("connect", 25),
    ("publish", 50),
    ("subscribe", 20),
    ("unsubscribe", 3),
    ("seam", 15),
    ("answer", 50),
    ("read", 60),
    ("tick", 40),
    ("commit", 40),
    ("settle", 25),
    ("lose", 3),
    ("disconnect", 2),
    ("advance", 6),
    ("snapshot", 30),
    ("reads", 3),
    ("crash", 2),
    ("replace", 2),
    ("bury", 2),
    ("stop", 1),
    ("peer", 25),
    ("deliver", 120),
    ("break", 6),
    ("tell", 20),
)
GROUP_STEPS = (("share", 12), ("unshare", 1))


class Due:
    """A subscription that was acknowledged, and what of its topics was retained and acknowledged before it was sent."""

    def __init__(self, actor: Actor, topic_filter: str, acked: set[int], late: int) -> None:
        self.actor = actor
        self.epoch = actor.epoch
        self.topic_filter = topic_filter
        self.acked = acked
        self.late = late


class ShardReference(Reference):
    """Knows the clients: who leaves a subscription may miss what has been acknowledged and is still on its way. Each
    SUBSCRIBE may bring one copy of a message, retained or as something new; and what one publisher has published comes
    in order, retained or not."""

    actors: list[Actor]

    def __init__(self) -> None:
        super().__init__(False)
        self.qos0_in_order = False  # a copy of what is older than a subscription may come after a crash
        self.dues: list[Due] = []
        self._asks: dict[
            str, list[str]
        ] = {}  # filters, by client: what ends a session may be lost in a crash
        self._acked: dict[tuple[str, int, int], tuple[set[int], int]] = {}  # when it was asked, by packet
        self._came: dict[tuple[str, int, int], int] = {}
        self._newest: dict[tuple[object, ...], int] = {}
        self.retained: dict[
            tuple[str, int], int
        ] = {}  # how often it came with RETAIN, by client and publication
        self.has_two_ways = True
        self._unsubscribed: set[str] = set()  # whose sessions may end with entries of the group

    def group_unsubscribed(self, name: str) -> None:
        self._unsubscribed.add(name)
        super().group_left(name)

    def group_left(self, name: str) -> None:
        """A member's session ends: QoS 1 goes to the others, if any of them is sure to be there."""
        wants = [p for p in self.publications.values() if p.group_wants and p.qos == 1]
        super().group_left(name)
        if self.group_members and name not in self._unsubscribed:
            for publication in wants:
                publication.group_wants = True
        self._unsubscribed.discard(name)

    def asked(self, actor: Actor, packet_id: int, topic_filter: str) -> None:  # type: ignore[override]
        self._asks.setdefault(actor.name, []).append(topic_filter)
        acked = {p.number for p in self.publications.values() if p.retain and p.acked}
        before = self._acked.get(
            (actor.name, actor.epoch - 1, packet_id)
        )  # sent before CONNACK told of a new session
        self._acked[actor.name, actor.epoch, packet_id] = before or (acked, _late(actor.world))

    def granted(self, actor: Actor, packet_id: int, topic_filter: str, qos: int) -> None:  # type: ignore[override]
        found = self._acked.get((actor.name, actor.epoch, packet_id))
        straggler = actor.link is None or actor.link.worker is not actor.world.worker
        is_due = qos and topic_filter != GROUP and not actor.transient and not straggler
        if is_due and found is not None:
            self.dues.append(Due(actor, topic_filter, *found))

    def crashed(self, shard: Shard, late: int) -> None:
        """An owner is gone that has sent `late` SUBACKs without an answer: what is due to those may be lost."""
        self.dues = [due for due in self.dues if due.actor.world is not shard or due.late == late]
        for due in self.dues:
            if due.actor.world is shard:
                due.late = 0

    def arrived(self, actor: Actor, publication: Publication, qos: int, retained: bool) -> None:  # type: ignore[override]
        number, topic = publication.number, publication.topic
        session = (actor.name, actor.epoch)
        came = self._came[(*session, number)] = self._came.get((*session, number), 0) + 1
        asks = sum(matches(topic_filter, topic) for topic_filter in self._asks.get(actor.name, ()))
        if came > asks + publication.sends - 1:
            actor.fail(f"P2: {number} came {came} times, {asks} SUBSCRIBE asked for it")
        if retained:
            self.retained[actor.name, number] = self.retained.get((actor.name, number), 0) + 1
        if publication.sends > 1 or (qos == 0 and actor.in_group):
            return
        key = (*session, publication.publisher, topic, publication.qos, qos)
        if self._newest.get(key, 0) > number:
            actor.fail(f"P6: {number} {retained=} came behind {self._newest[key]} of {topic}")
        if retained or publication.retain:
            self._newest[key] = number

    def left(self, name: str, topic_filter: str) -> None:
        self.dues = [d for d in self.dues if (d.actor.name, d.topic_filter) != (name, topic_filter)]
        fresh = next(actor.fresh for actor in self.actors if actor.name == name)
        for publication in self.publications.values():
            if publication.number not in fresh and matches(topic_filter, publication.topic):
                publication.wants.pop(name, None)


def _late(world: World) -> int:
    neighbours = world.broker.neighbours
    return neighbours.asking.late if isinstance(neighbours, Neighbours) else 0


class ShardHistory:
    """One seed: its shards, its clients, its steps."""

    def __init__(
        self,
        seed: int,
        steps: int,
        shards: int = SHARDS,
        retained: bool = True,
        groups: bool = True,
        rushes: bool = True,
        moves: bool = False,
    ) -> None:
        self.rng = rng = Random(seed)
        self.retained = retained  # some messages are
        self.groups = groups  # there are members of a shared subscription
        self.habits = Random(
            seed + 1_000_000_007
        )  # of what is retained, apart: the others stay what they are
        settings, streams = BrokerSettings(), StreamSettings()
        settings.inflight_max = rng.choice((1, 3, 20))
        settings.page_messages = rng.choice((1, 2, 256))
        settings.deliveries_at_once = rng.choice((1, 2, 500))
        settings.backlog_page = rng.choice((1, 2, 4))
        streams.window_bytes = rng.choice((1, 500, 1 << 20))
        streams.note_step = rng.choice((3, 10, 10_000))
        streams.read_at_once = rng.choice((1, 5, 500))
        streams.owed_max = Random(seed + 2_000_000_011).choice((0, 2, 100_000))  # as above
        streams.note_bytes = Random(seed + 3_000_000_019).choice((300, 5000, 16 << 20))  # as above
        streams.withdraw_after_ms = rng.choice((0, 1000, 60_000))
        self.disks = Random(seed + 4_000_000_007)  # as above: of what is full
        self.often_full = self.disks.random() < 0.3
        self.paces = Random(seed + 6_000_000_029)  # as above: of who publishes much at once
        self.rushes = rushes
        self.ways = Random(seed + 7_000_000_003)  # as above: of shards that are given up and taken
        self.moves, self.moved = moves, 0
        if groups:  # histories without them were found before there was any of this
            pace = Random(seed + 5_000_000_023)  # as above
            streams.pending_max = pace.choice((1, 3, 4096))
            streams.crowded_at = pace.choice((1, 3, 1000))
            streams.late_at = pace.choice((1, 2, 0))
        self.filters: tuple[str, ...] = FILTERS
        if retained:
            streams.page_messages = self.habits.choice((1, 2, 64))
            if self.habits.random() < 0.6:
                self.filters = TOPICS  # most is looked at for nobody
        self.cluster = Cluster(shards, rng, settings, streams)
        self.reference = ShardReference()
        self.actors = [
            Actor(self.cluster.shards[at % shards], self.reference, name_at_home(at % shards, shards, at))
            for at in range(CLIENTS)
        ]
        self.reference.actors = self.actors
        self.steps = steps
        self.new_topics = 0
        self.done: list[str] = []

    @property
    def crashes(self) -> int:
        return sum(shard.crashes for shard in self.cluster.shards)

    @property
    def copies(self) -> int:
        """Copies in the journals."""
        return sum(m.kind == KIND_COPY for shard in self.cluster.shards for m in shard.journal.messages())

    def run(self, replays: bool = False) -> None:
        """Take all steps; then what is held live is what a replay gives, or everybody takes everything."""
        possible = STEPS + GROUP_STEPS if self.groups else STEPS
        names = [name for name, _ in possible]
        weights = [weight for _, weight in possible]
        for _ in range(self.steps):
            step = self.rng.choices(names, weights)[0]
            self.done.append(step)
            getattr(self, "step_" + step)()
            if self.often_full and self.disks.random() < 0.03:
                self.fill()
            if self.rushes and self.paces.random() < 0.03:
                self.rush()
            if self.moves and self.ways.random() < 0.04:
                self.move()
            for shard in self.cluster.shards:
                shard.check()
        if replays:
            self.check_replays()
        else:
            self.finish()

    def _actor(self) -> Actor:
        actor = self.rng.choice(self.actors)
        self.done[-1] += f" {actor.name}"
        return actor

    def _ready(self) -> Actor | None:
        """Somebody who is connected."""
        ready = [actor for actor in self.actors if actor.ready]
        if not ready:
            return None
        actor = self.rng.choice(ready)
        self.done[-1] += f" {actor.name}"
        return actor

    def _shard(self) -> Shard:
        shard = self.rng.choice(self.cluster.shards)
        self.done[-1] += f" {shard.number}"
        return shard

    def _at_home(self, shard: Shard) -> list[Actor]:
        return [actor for actor in self.actors if actor.world is shard]

    # What clients do

    def step_connect(self) -> None:
        actor, rng = self._actor(), self.rng
        if actor.ready and rng.random() < 0.8:
            return
        if rng.random() < 0.5:
            actor.read()
        actor.connect(rng.choice((4, 5)), rng.random() < 0.1, rng.choice((1, 2, 10)), -1)

    def step_publish(self) -> None:
        actor, rng = self._ready(), self.rng
        if actor is None:
            return
        for _ in range(rng.choice((1, 1, 3))):
            self._publish(actor, rng.choice(TOPICS))

    def _publish(self, actor: Actor, topic: str) -> None:
        subscribers = {a.name: (a.epoch, a.subscriptions) for a in self.actors}
        qos = self.rng.choice((0, 1, 1, 2))
        retain = self.retained and self.habits.random() < 0.3
        expires = retain and self.habits.random() < 0.1
        made = self.reference.publish(actor.name, topic, qos, retain, expires, subscribers)
        if retain and not expires and self.habits.random() < 0.2:
            made.clears = True
            made.wants.clear()
            made.group_wants = False
        if expires:
            made.group_wants = False
        kind = "clears" if made.clears else "expires" if expires else "retained" if retain else ""
        self.done[-1] += f" {made.number}:{made.topic} q{qos} {kind}"
        actor.publish(made)

    def step_subscribe(self) -> None:
        actor = self._ready()
        if actor is not None:
            topic_filter, qos = self.rng.choice(self.filters), self.rng.choice((0, 1, 2, 2))
            self.done[-1] += f" {topic_filter} q{qos}"
            actor.subscribe(topic_filter, qos)

    def step_unsubscribe(self) -> None:
        actor = self._ready()
        if actor is not None:
            topic_filter = self.rng.choice(self.filters)
            self.done[-1] += f" {topic_filter}"
            actor.unsubscribe(topic_filter)

    def step_share(self) -> None:
        """Somebody becomes a member of the group, or subscribes anew."""
        actor = self._ready()
        if actor is not None:
            actor.subscribe(GROUP, self.rng.choice((1, 2, 2)))

    def step_unshare(self) -> None:
        actor = self._ready()
        if actor is not None:
            actor.unsubscribe(GROUP)

    def step_seam(self) -> None:
        """Somebody subscribes, perhaps to what was let go a while ago, and at once somebody elsewhere publishes there."""
        reader, writer = self._ready(), self._ready()
        if reader is None or writer is None or reader.world is writer.world:
            return
        topic = self._new_topic(reader) or self.rng.choice(TOPICS)
        self.done[-1] += f" {topic}"
        if self.rng.random() < 0.4:
            reader.unsubscribe(topic)
            reader.world.settle()
            if self.rng.random() < 0.5:
                self.cluster.advance(self.rng.choice((0.1, 1.0)))
            self._deliver_some()
        reader.subscribe(topic, self.rng.choice((1, 2)))
        reader.world.settle()
        if self.rng.random() < 0.5:
            self._deliver_some()
        if self.rng.random() < 0.3:
            self.cluster.advance(self.rng.choice((1.0, 61.0)))
            self._deliver_some()
        reader.read()
        self._publish(writer, topic)
        if self.rng.random() < 0.7:
            writer.world.settle()

    def _new_topic(self, reader: Actor) -> str:
        """Mostly a topic that nobody has wanted yet: soon all others are looked for everywhere, whoever subscribes. It is
        at home where its reader is, whose SUBACK so waits for nothing but the routes."""
        if not self.groups or self.habits.random() < 0.2:
            return ""
        homes, here = reader.world.worker.homes, self.actors.index(reader) % len(self.cluster.shards)
        if self.new_topics == 0 or self.habits.random() < 0.8:
            self.new_topics += 1
        while homes.of_topic(DEFAULT_TENANT, f"s/{self.new_topics}") != here:
            self.new_topics += 1
        return f"s/{self.new_topics}"

    def _deliver_some(self) -> None:
        for _ in range(self.rng.choice((1, 3, 10))):
            self.step_deliver()

    def step_answer(self) -> None:
        actor = self._actor()
        for _ in range(self.rng.choice((1, 2, 5))):
            actor.answer(self.rng.choice((0, 0, 1, 7)))

    def step_read(self) -> None:
        self._actor().read()

    def step_lose(self) -> None:
        self._actor().lose()

    def step_disconnect(self) -> None:
        actor = self._actor()
        if actor.ready:
            actor.disconnect()

    # What brokers do

    def step_tick(self) -> None:
        self.rng.choice(self._shard().owners()).worker.end_tick()

    def step_commit(self) -> None:
        self._shard().commit()

    def step_settle(self) -> None:
        self._shard().settle()

    def step_advance(self) -> None:
        self.cluster.advance(self.rng.choice((0.1, 1.0, 4.0, 61.0)))

    def step_snapshot(self) -> None:
        self._shard().snapshot_slice()

    def step_reads(self) -> None:
        """A disk cannot be read for a while."""
        self._shard().journal.reads_fail = self.rng.random() < 0.5

    def fill(self) -> None:
        """A disk is full, or has space again."""
        shard, full = self.disks.choice(self.cluster.shards), self.disks.random() < 0.6
        self.done.append(f"full {shard.number} {full}")
        shard.broker.set_storage_full(full)

    def rush(self) -> None:
        """Somebody publishes much at once; the others hear of it, and it becomes durable there, while they have hardly a
        pass of the loop."""
        ready = [actor for actor in self.actors if actor.ready]
        if not ready:
            return
        writer, topic = self.paces.choice(ready), self.paces.choice(TOPICS)
        self.done.append(f"rush {writer.name}")
        for _ in range(self.paces.choice((3, 8))):
            self._publish(writer, topic)
        writer.world.settle()
        for _ in range(self.paces.choice((5, 20))):
            end = self._end([end for pair in self.cluster.wires for end in pair if end.coming])
            if end is not None:
                self.cluster.deliver(end, self.paces.choice((1, 2, 20)))
            shard = self.paces.choice(self.cluster.shards)
            if self.paces.random() < 0.5:
                shard.commit()
            else:
                shard.tick()

    def step_crash(self) -> None:
        shard = self._shard()
        for actor in self._at_home(shard):
            if self.rng.random() < 0.5:
                actor.read()
        self.reference.crashed(shard, _late(shard))
        shard.crash()
        self._begun_anew(shard)

    def step_stop(self) -> None:
        shard = self._shard()
        before = shard.owner.neighbours.asking
        shard.stop()
        for actor in self._at_home(shard):
            if self.rng.random() < 0.5:
                actor.read()
        self.reference.crashed(shard, before.late)
        self._begun_anew(shard)

    def move(self) -> None:
        """A shard is given up at run time, for its journal has failed or in good order, and taken again."""
        shard, fails = self.ways.choice(self.cluster.shards), self.ways.random() < 0.4
        self.done.append(f"move {shard.number} {fails}")
        self.moved += 1
        late = _late(shard)
        shard.move(self.ways, fails)
        for actor in self._at_home(shard):
            if self.ways.random() < 0.5:
                actor.read()
        self.reference.crashed(shard, late)
        self._begun_anew(shard)

    def _begun_anew(self, shard: Shard) -> None:
        for actor in self._at_home(shard):
            actor.broker_crashed(shard.kept)
        self.cluster.bury()
        self.cluster.set_clocks()
        self.check_journals()
        self._check_kept(shard)

    def step_replace(self) -> None:
        """Another owner begins; some clients stay with the one before."""
        shard = self._shard()
        self.reference.crashed(shard, _late(shard))
        shard.replace()
        for actor in self._at_home(shard):
            if self.rng.random() < 0.5:
                actor.broker_crashed(shard.kept)
            elif actor.transient:  # its session ends with the new owner, which it does not know of
                self.reference.group_left(actor.name)
        self.check_journals()

    def step_bury(self) -> None:
        """A straggler ends at last."""
        shard = self._shard()
        if shard.stragglers:
            self._bury(shard, shard.stragglers.pop(self.rng.randrange(len(shard.stragglers))))

    def _bury(self, shard: Shard, straggler: Owner) -> None:
        straggler.alive = False
        for actor in self._at_home(shard):
            if actor.link is not None and actor.link.worker is straggler.worker:
                actor.broker_crashed(shard.kept)
        self.cluster.bury()

    # What happens on wires

    def step_peer(self) -> None:
        """Somebody follows another shard on a new wire, mostly where there is none."""
        shard, other = self.rng.sample(self.cluster.shards, 2)
        follower = self.rng.choice([shard.owner, *shard.owners()])
        if follower.neighbours.follows(other.number) and self.rng.random() < 0.8:
            return
        self.done[-1] += f" {shard.number} follows {other.number}"
        self.cluster.connect(follower, other.number, self.rng.choice([other.owner, *other.owners()]))

    def _end(self, ends: list[End]) -> End | None:
        return self.rng.choice(ends) if ends else None

    def step_deliver(self) -> None:
        end = self._end([end for pair in self.cluster.wires for end in pair if end.coming])
        if end is not None:
            self.cluster.deliver(end, self.rng.choice((1, 2, 20)))

    def step_break(self) -> None:
        if self.cluster.wires:
            self.cluster.break_wire(self.rng.choice(self.cluster.wires))

    def step_tell(self) -> None:
        end = self._end(self._broken())
        if end is not None:
            self.cluster.tell(end)

    def _broken(self) -> list[End]:
        """Those who have still to hear that their wire has broken, on either side."""
        return [
            end
            for pair in self.cluster.wires
            for end in pair
            if not end.told and (pair[0].broken or pair[1].broken)
        ]

    # Checks

    def check_journals(self) -> None:
        """P1: what was acknowledged is there."""
        there = {m.payload for shard in self.cluster.shards for m in shard.journal.messages()}
        for publication in self.reference.publications.values():
            if publication.acked and publication.payload not in there:
                raise Violation(f"P1: {publication.number} was acknowledged and is lost")

    def check_replays(self) -> None:
        """Nobody is connected, no wire is left, and all is durable: a start finds what there is."""
        self.done.append("replays")
        for actor in self.actors:
            actor.lose()
        for shard in self.cluster.shards:
            shard.journal.reads_fail = False
            while shard.stragglers:
                self._bury(shard, shard.stragglers.pop())
        for pair in list(self.cluster.wires):
            self.cluster.break_wire(pair)
            for end in pair:
                self.cluster.tell(end)
        for shard in self.cluster.shards:
            shard.settle()
            shard.check()
            shard.journal.floor, shard.journal.compacted = 0, set()
            live = _state_of(shard.broker.fold)
            for snapshot in (None, *shard.snapshots):
                found = _state_of(shard.recovered(snapshot))
                if found != live:
                    what = "the whole journal" if snapshot is None else f"snapshot {snapshot.positions}"
                    raise Violation(f"shard {shard.number}: {what} gives\n{found}, not\n{live}")

    def finish(self) -> None:
        """Everybody comes back and takes everything; then nothing may be missing."""
        self.done.append("finish")
        for shard in self.cluster.shards:
            shard.journal.reads_fail = False
            shard.broker.set_storage_full(False)
            while shard.stragglers:
                self._bury(shard, shard.stragglers.pop())
        self.cluster.bury()
        self.heal()
        for _ in range(3):
            self.cluster.advance(10)
            self.heal()
        self.check_stand_ins()
        for actor in self.actors:
            if actor.exists != NO or actor.link is None:
                actor.read()
                actor.connect(self.rng.choice((4, 5)), False, 10, -1)
        self._take_all()
        self.check_journals()
        self.check_deliveries()
        self.check_dues()
        self.reference.retained.clear()
        for actor in self.actors:
            actor.subscribe("#", 2)
        self._take_all()
        self.check_stand_ins()
        self.check_streams()
        self.check_retained()
        self.check_new_subscribers()
        self.check_pace()

    def check_pace(self) -> None:
        """Nothing is left lying, nobody waits, and what is on its way to take effect is counted as what it is."""
        for shard in self.cluster.shards:
            found, gate = shard.owner.neighbours, shard.broker.gate
            lying = [len(taker.inbox) for taker in found._takers.values()]
            waiting = [len(sender.crowd.waiting) for sender in found._senders.values()]
            held = [actor.name for actor in self._at_home(shard) if actor.link and actor.link.holds]
            if any(lying) or any(waiting) or held or gate.crowded or found.intake.pending:
                raise Violation(
                    f"shard {shard.number}: {lying} lie, {waiting} and {held} wait, {gate.crowded} are counted, "
                    f"{found.intake.pending} are pending"
                )

    def _take_all(self) -> None:
        """Everybody takes everything, until nothing comes any more."""
        quiet = 0
        while quiet < 3:
            self.cluster.advance(1)
            self.heal()
            moved = 0
            for actor in self.actors:
                moved += actor.read()
                while actor.answer(0):
                    moved += 1
            quiet = 0 if moved else quiet + 1

    def heal(self) -> None:
        """Every shard follows every other one's owner, and all that was said is heard."""
        self.cluster.settle()
        for _ in range(2):
            for end in self._broken():
                self.cluster.tell(end)
        for shard in self.cluster.shards:
            for other in self.cluster.shards:
                if other is not shard and not self._follows(shard.owner, other.owner):
                    self.cluster.connect(shard.owner, other.number, other.owner)
        self.cluster.settle()

    def _follows(self, follower: Owner, owner: Owner) -> bool:
        for near, far in self.cluster.wires:
            if near.owner is follower and far.owner is owner and not near.broken and not far.broken:
                return True
        return False

    def check_deliveries(self) -> None:
        for publication in self.reference.publications.values():
            for actor in self.actors:
                wanted = publication.acked and publication.wants.get(actor.name) == actor.epoch
                wanted = wanted and not publication.expires
                if wanted and publication.number not in actor.fresh:
                    raise Violation(f"P2: {actor.name} never got {publication.number}")
        for actor in self.actors:
            if actor.must_return:
                raise Violation(f"P4: {actor.name}: {actor.must_return} did not come back")
            if actor.outgoing:
                raise Violation(f"{actor.name}: {list(actor.outgoing)} was never acknowledged")
        self.check_group()

    def check_group(self) -> None:
        """Nothing of the group is lost, waits, or is in flight; and nobody is left who is no member."""
        for publication in self.reference.publications.values():
            missing = publication.number not in self.reference.group_delivered
            if publication.acked and publication.group_wants and missing:
                raise Violation(f"P2: the group never got {publication.number}")
        for shard in self.cluster.shards:
            fold = shard.broker.fold
            for group in fold.groups.by_id.values():
                if group.members and (group.waiting or group.drawn):
                    raise Violation(
                        f"shard {shard.number}: entries of the group wait, or are in flight, for ever"
                    )
            if fold.away.loans:
                raise Violation(f"shard {shard.number}: {list(fold.away.loans)} were never settled")

    def check_stand_ins(self) -> None:
        """A home knows of each member elsewhere what its own shard does: its groups, and whether it is connected. One
        that is taken for connected is given what nobody else gets."""
        known: set[tuple[int, int, int, str]] = set()
        for home in self.cluster.shards:
            for (shard, incarnation), stand in home.owner.neighbours.homes._members.items():
                where = f"shard {home.number}, member {incarnation} of {shard}"
                session = self.cluster.shards[shard].broker.fold.by_incarnation.get(incarnation)
                if session is None:
                    raise Violation(f"{where}: its session has ended")
                link = session.link
                if (stand.link() is not None) != (link is not None and link.ready):
                    raise Violation(f"{where}: connected is {link is not None}, the home says otherwise")
                known.update((home.number, shard, incarnation, name) for name in stand.rows)
        members = {
            (at, shard.number, session.incarnation, name)
            for shard in self.cluster.shards
            for session in shard.broker.fold.by_incarnation.values()
            for name, at in _groups_elsewhere(session).items()
        }
        if known != members:
            raise Violation(f"homes have the members {known}, their shards {members}")

    def check_streams(self) -> None:
        """No journal holds a copy twice, and a position is behind every copy."""
        for shard in self.cluster.shards:
            shard.check()
            taken = shard.broker.fold.streams.taken
            last: dict[int, int] = {}
            for message in shard.journal.messages():
                if isinstance(message, Copy) and message.kind == KIND_COPY:
                    if message.source_offset <= last.get(message.source, -1):
                        raise Violation(f"shard {shard.number}: copy {message.source_offset} out of order")
                    last[message.source] = message.source_offset
            for source, offset in last.items():
                if taken[source] <= offset:
                    raise Violation(
                        f"shard {shard.number} has {offset} of {source}, its position is {taken[source]}"
                    )

    def check_retained(self) -> None:
        """P6: what is retained is at its home alone, where the order of that journal decides; and everything that was
        published so is in it."""
        for shard in self.cluster.shards:
            self._check_kept(shard)
            self._check_taken(shard)

    def check_new_subscribers(self) -> None:
        """P6: whoever subscribes to everything gets what all homes keep, each once."""
        kept: dict[str, set[int]] = {actor.name: set() for actor in self.actors}
        for shard in self.cluster.shards:
            for message in shard.broker.fold.tenant(DEFAULT_TENANT).retained.messages():
                for name, numbers in kept.items():
                    if not message.expired(shard.now_us):
                        numbers.add(int(message.payload))
                        if self.reference.retained.get((name, int(message.payload)), 0) != 1:
                            raise Violation(f"P6: {name} was not given {message.payload!r} once")
        for name, number in self.reference.retained:
            if number not in kept[name] and not self.reference.publications[number].expires:
                raise Violation(f"P6: {name} was given {number}, which nobody keeps")

    def check_dues(self) -> None:
        """P6: an acknowledged subscription has got the newest retained message of each topic, or a newer one."""
        orders = {topic: self._order(topic) for topic in TOPICS}
        for due in self.reference.dues:
            actor = due.actor
            if due.epoch != actor.epoch:
                continue
            for topic in TOPICS:
                if not matches(due.topic_filter, topic):
                    continue
                order = orders[topic]
                known = [at for at, made in enumerate(order) if made.number in due.acked]
                newer = order[max(known) :] if known else []
                if any(made.clears or made.expires or made.qos == 0 for made in newer):
                    continue
                if newer and not any(made.number in actor.fresh for made in newer):
                    raise Violation(
                        f"P6: {actor.name} asked for {due.topic_filter}, never got {newer[0].number}"
                    )

    def _order(self, topic: str) -> list[Publication]:
        """What was published as retained on a topic, in the order of its home's journal."""
        home = self.cluster.shards[self.cluster.shards[0].worker.homes.of_topic(DEFAULT_TENANT, topic)]
        cleared = Publication(0, "", topic, 0, True, False)
        cleared.clears = True
        return [
            self.reference.publications[int(m.payload)] if m.payload else cleared
            for m in home.journal.messages()
            if m.retain and m.topic == topic.encode() and not isinstance(m, Given)
        ]

    def _check_kept(self, shard: Shard) -> None:
        homes = shard.worker.homes
        last: dict[bytes, bytes] = {}
        for message in shard.journal.messages():
            if isinstance(message, Given):
                continue
            if message.retain and homes.of_retained(b"default", message.topic) == shard.number:
                last[message.topic] = message.payload
        kept = shard.broker.fold.tenant(DEFAULT_TENANT).retained
        found = {m.topic: m.payload for m in kept.messages()}
        for topic, payload in list(last.items()):
            if not payload or self.reference.publications[int(payload)].expires:
                del last[topic]
                if payload:
                    found.pop(topic, None)
        if last != found:
            raise Violation(f"P6: shard {shard.number} keeps {found}, its journal says {last}")

    def _check_taken(self, home: Shard) -> None:
        homes = home.worker.homes
        copies = [m for m in home.journal.messages() if isinstance(m, Copy) and m.kind == KIND_COPY]
        taken = {(copy.source, copy.source_offset) for copy in copies}
        for shard in self.cluster.shards:
            for message in shard.journal.messages():
                if isinstance(message, Copy) or not message.retain or shard is home:
                    continue
                at_home = homes.of_retained(b"default", message.topic) == home.number
                if at_home and (shard.number, message.offset) not in taken:
                    raise Violation(f"P6: {message.offset} of {shard.number} never came to {home.number}")


def _state_of(fold: Fold) -> list[object]:
    """Return all that is durable in a shard, taken out of its queues: what waits in each, sessions and groups, the QoS 2
    of groups elsewhere, and who is a member there."""
    loans = [row for row in sorted(fold.away.rows()) if row[3] in fold.by_incarnation]
    members = [
        (incarnation, sorted(filters.items()))
        for incarnation, session in sorted(fold.away.sessions.items())
        if (filters := _groups_elsewhere(session))
    ]
    _hand_back(fold)
    return [*held(fold), loans, members]


def _hand_back(fold: Fold) -> None:
    """Give back what members had at QoS 1, who all are gone. Where an UNSUBSCRIBE, or a SUBSCRIBE behind one, was on its
    way when a connection ended, the broker and a replay differ in whether that one was a member."""
    for group in fold.groups.all():
        for draw in list(group.drawn.values()):
            if draw.ref & REF_QOS == 1:
                group.give_back(draw)
        if not group.members:
            group.dissolve()


def _groups_elsewhere(session: Session) -> dict[str, int]:
    """The shared subscriptions of a session that are at home in other shards, and where."""
    found = borrowing_of(session)
    return {} if found is None else found.filters


def name_at_home(shard: int, shards: int, number: int) -> str:
    """A client id whose home is this shard, another one for each number."""
    homes = Homes(shards)
    names = (f"c{number}-{at}" for at in count())
    return next(name for name in names if homes.of_client(DEFAULT_TENANT, name) == shard)


def run(
    seed: int,
    steps: int,
    shards: int = SHARDS,
    retained: bool = True,
    groups: bool = True,
    replays: bool = False,
    rushes: bool = True,
    moves: bool = False,
) -> ShardHistory:
    """Run one seed; raises what it finds, with the seed and the last steps in it."""
    history = ShardHistory(seed, steps, shards, retained, groups, rushes, moves)
    try:
        history.run(replays)
    except Exception as error:
        tail = "\n  ".join(history.done[-60:])
        error.add_note(f"seed {seed}, {shards} shards, {steps} steps, step {len(history.done)}:\n  {tail}")
        raise
    return history


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, help="replay this one")
    parser.add_argument("--from", dest="first", type=int, default=1, help="first seed")
    parser.add_argument("--crashes", type=int, default=2000, help="stop after this many")
    parser.add_argument("--steps", type=int, default=600, help="steps of a history")
    parser.add_argument("--shards", type=int, default=SHARDS)
    options = parser.parse_args()
    if options.seed is not None:
        run(options.seed, options.steps, options.shards)
        print(f"seed {options.seed}: every promise kept")
        return 0
    seed, crashes, started = options.first, 0, time.monotonic()
    while crashes < options.crashes:
        try:
            crashes += run(seed, options.steps, options.shards).crashes
        except Exception:
            print(
                f"FAILED: python -m faults.model.shard_history --seed {seed} --steps {options.steps}"
                f" --shards {options.shards}",
                file=sys.stderr,
            )
            raise
        seed += 1
    print(
        f"{seed - options.first} histories of {options.shards} shards, {crashes} crashes, "
        f"{time.monotonic() - started:.0f} s: every promise kept"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
