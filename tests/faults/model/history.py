"""Whole broker histories from a seed, checked against the reference at each recovery and at the end.

In a *narrow* history sessions have few packet ids, so that these wrap all the time, and clients leave messages unanswered
for long.

    python -m faults.model.history --seed 7            replay one
    python -m faults.model.history --crashes 100000    as many as it takes, every other history narrow

A failing seed is printed with its last steps and replays to the same failure.
"""

from __future__ import annotations

import argparse
import sys
import time
from random import Random

from faults.model.actor import NO, Actor
from faults.model.reference import GROUP, LastWill, Reference
from faults.model.world import Violation, World
from headrace.core.ports.settings import BrokerSettings

NAMES = ("c1", "c2", "c3", "c4")
TOPICS = ("t/1", "t/2", "u/1")
FILTERS = ("t/1", "t/+", "#", "u/1", "t/2", GROUP)
STEPS = (
    ("connect", 10),
    ("publish", 30),
    ("subscribe", 8),
    ("unsubscribe", 2),
    ("answer", 30),
    ("read", 20),
    ("tick", 20),
    ("commit", 20),
    ("settle", 6),
    ("lose", 4),
    ("disconnect", 3),
    ("advance", 4),
    ("snapshot", 15),
    ("reads", 4),
    ("crash", 5),
    ("stop", 1),
)
# Much is sent, sessions last, and connections end one by one rather than all at once.
NARROW_STEPS = (
    ("connect", 4),
    ("publish", 40),
    ("subscribe", 4),
    ("unsubscribe", 1),
    ("answer", 40),
    ("read", 40),
    ("tick", 20),
    ("commit", 20),
    ("settle", 20),
    ("lose", 2),
    ("disconnect", 1),
    ("advance", 1),
    ("snapshot", 10),
    ("crash", 2),
    ("stop", 1),
)


JUMPS_S = (1, 5, 3 * 3600, 400 * 86_400, 20 * 365 * 86_400)  # in either direction


class History:
    """One seed: its world, its clients, its steps. With `narrow` packet ids are few; with `jumps` somebody sets the
    clock now and then."""

    def __init__(self, seed: int, steps: int, narrow: bool = False, jumps: bool = False) -> None:
        self.rng = Random(seed)
        self.habits = Random(
            seed + 1_000_000_007
        )  # of a narrow history, apart: the others stay what they are
        self.narrow = narrow
        settings = BrokerSettings()
        settings.inflight_max = self.rng.choice((1, 3, 20))
        settings.page_messages = self.rng.choice((1, 2, 256))
        settings.deliveries_at_once = self.rng.choice((1, 2, 500))
        settings.backlog_page = self.rng.choice((1, 2, 4))
        self.limited = self.rng.random() < 0.2
        if narrow:
            settings.direct_ids = self.habits.choice((2, 3, 5, 8, 30))
            settings.upper_ids = self.habits.choice((1, 2, 5, 1000))
            self.limited = self.limited or self.habits.random() < 0.3
        if self.limited:
            settings.backlog_messages_max = 3
        settings.application_client_ids = ["c2"]
        self.jumps = jumps
        if jumps:  # a session must not end because the clock is set
            settings.v311_session_expiry_s = settings.session_expiry_max_s
        self.settings = settings
        self.world = World(self.rng, settings)
        self.world.settle()
        self.reference = Reference(self.limited)
        self.actors = [Actor(self.world, self.reference, name) for name in NAMES]
        self.steps = steps
        self.done: list[str] = []

    def run(self) -> None:
        steps = NARROW_STEPS if self.narrow else STEPS
        if self.jumps:
            steps = (*steps, ("jump", 5))
        names = [name for name, _ in steps]
        weights = [weight for _, weight in steps]
        for _ in range(self.steps):
            step = self.rng.choices(names, weights)[0]
            self.done.append(step)
            getattr(self, "step_" + step)()
            if self.narrow:
                self._keep_back()
        self.finish()

    def _actor(self) -> Actor:
        actor = self.rng.choice(self.actors)
        self.done[-1] += f" {actor.name}"
        return actor

    def _keep_back(self) -> None:
        """Now and then a client decides not to answer a message, or to answer all it has kept back. Who is away comes
        back soon."""
        habits = self.habits
        for actor in self.actors:
            if actor.link is None and habits.random() < 0.1:
                actor.connect(habits.choice((4, 5)), False, habits.choice((2, 10)), -1)
        if habits.random() < 0.1:
            habits.choice(self.actors).hold(habits.randrange(8))
        if habits.random() < 0.01:
            habits.choice(self.actors).let_go()

    # Steps

    def step_connect(self) -> None:
        actor, rng = self._actor(), self.rng
        if rng.random() < 0.5:
            actor.read()
        versions = (5, 5) if self.jumps else (4, 5)  # of 5 is who sees an expiry
        actor.connect(
            rng.choice(versions),
            rng.random() < (0.02 if self.narrow else 0.15),
            rng.choice((1, 2, 10)),
            rng.choice((-1, -1, -1, 0, 5)),
        )

    def step_publish(self) -> None:
        actor, rng = self._actor(), self.rng
        if not actor.ready:
            return
        subscribers = {a.name: (a.epoch, a.subscriptions) for a in self.actors}
        for _ in range(rng.choice((1, 1, 3))):
            publication = self.reference.publish(
                actor.name,
                rng.choice(TOPICS),
                rng.choice((0, 1, 1, 2)),
                rng.random() < 0.2,
                rng.random() < (0.5 if self.jumps else 0.05),
                subscribers,
            )
            self.done[-1] += f" {publication.number}:{publication.topic} q{publication.qos}"
            actor.publish(publication)

    def step_subscribe(self) -> None:
        actor = self._actor()
        if actor.ready:
            topic_filter, qos = self.rng.choice(FILTERS), self.rng.choice((0, 1, 2, 2))
            self.done[-1] += f" {topic_filter} q{qos}"
            actor.subscribe(topic_filter, qos)

    def step_unsubscribe(self) -> None:
        actor = self._actor()
        if actor.ready:
            topic_filter = self.rng.choice(FILTERS)
            self.done[-1] += f" {topic_filter}"
            actor.unsubscribe(topic_filter)

    def step_answer(self) -> None:
        actor = self._actor()
        for _ in range(self.rng.choice((1, 2, 5))):
            actor.answer(self.rng.choice((0, 0, 1, 7)))

    def step_read(self) -> None:
        self._actor().read()

    def step_tick(self) -> None:
        self.world.tick()

    def step_commit(self) -> None:
        self.world.commit()

    def step_settle(self) -> None:
        self.world.settle()

    def step_lose(self) -> None:
        self._actor().lose()

    def step_disconnect(self) -> None:
        actor = self._actor()
        if actor.ready:
            actor.disconnect()

    def step_advance(self) -> None:
        self.world.advance(self.rng.choice((0.1, 1.0, 7.0)))

    def step_jump(self) -> None:
        seconds = self.rng.choice(JUMPS_S) * self.rng.choice((-1, 1))
        if self.world.wrong_us + seconds * 1_000_000 < -30 * 365 * 86_400 * 1_000_000:
            seconds = -seconds  # the journal's clock begins in 1970
        self.done[-1] += f" {seconds} s"
        self.world.jump(seconds)

    def step_snapshot(self) -> None:
        self.world.snapshot_slice()

    def step_reads(self) -> None:
        """The disk cannot be read for a while."""
        self.world.journal.reads_fail = self.rng.random() < 0.5

    def step_crash(self) -> None:
        for actor in self.actors:
            if self.rng.random() < 0.5:
                actor.read()
        self.world.crash()
        for actor in self.actors:
            actor.broker_crashed(self.world.kept)
        self.check_journal()

    def step_stop(self) -> None:
        self.world.stop()
        for actor in self.actors:
            if self.rng.random() < 0.5:
                actor.read()
            actor.broker_crashed(self.world.kept)
        self.check_journal()

    # Checks

    def check_journal(self) -> None:
        """P1: what was acknowledged is there."""
        there = {m.payload for m in self.world.journal.messages()}
        for publication in self.reference.publications.values():
            if publication.acked and publication.payload not in there:
                raise Violation(f"P1: {publication.number} was acknowledged and is lost")

    def finish(self) -> None:
        """Everybody comes back and takes everything; then nothing may be missing."""
        self.done.append("finish")
        self.world.journal.reads_fail = False
        for actor in self.actors:
            actor.let_go()
        self.world.settle()
        for _ in range(3):
            self.world.advance(10)
            self.world.settle()
        for actor in self.actors:
            if actor.exists != NO or actor.link is None:
                actor.read()
                actor.connect(self.rng.choice((5, 5) if self.jumps else (4, 5)), False, 10, -1)
        quiet = 0
        while quiet < 3:
            self.world.settle()
            moved = 0
            for actor in self.actors:
                moved += actor.read()
                while actor.answer(0):
                    moved += 1
            quiet = 0 if moved else quiet + 1
        self.check_journal()
        self.check_deliveries()
        self.check_wills()
        self.check_retained()

    def check_deliveries(self) -> None:
        missing: dict[str, int] = {}
        for publication in self.reference.publications.values():
            if not publication.acked or publication.expires:
                continue
            for actor in self.actors:
                wanted = publication.wants.get(actor.name) == actor.epoch
                if wanted and publication.number not in actor.fresh:
                    if not self.limited:
                        raise Violation(f"P2: {actor.name} never got {publication.number}")
                    missing[actor.name] = missing.get(actor.name, 0) + 1
            if publication.group_wants and publication.number not in self.reference.group_delivered:
                raise Violation(f"P2: the group never got {publication.number}")
        sessions = self.world.broker.fold.tenant("default").sessions
        for name, count in missing.items():
            dropped = sessions[name].drops_by_name().get("backlog_limit", 0)
            if dropped < count:
                raise Violation(f"P2: {name} misses {count}, {dropped} were counted as dropped")
        for actor in self.actors:
            if actor.must_return:
                raise Violation(f"P4: {actor.name}: {actor.must_return} did not come back")
            if actor.outgoing:
                raise Violation(f"{actor.name}: {list(actor.outgoing)} was never acknowledged")

    def check_wills(self) -> None:
        fired: dict[bytes, int] = {}
        for message in self.world.journal.messages():
            if message.payload.startswith(b"w"):
                fired[message.payload] = fired.get(message.payload, 0) + 1
        for will, owner in self.reference.wills.items():
            count = fired.get(will.payload, 0)
            must = will.state in (LastWill.MUST, LastWill.WAITING)
            if count > 1 or (must and count == 0) or (will.state == LastWill.NEVER and count):
                raise Violation(f"P5: {will.payload!r} of {owner} is {will.state}, fired {count} times")

    def _expires(self, payload: bytes) -> bool:
        publication = None if payload.startswith(b"w") else self.reference.publications[int(payload)]
        return publication is not None and publication.expires

    def check_retained(self) -> None:
        """P6: the journal's order decides."""
        last: dict[bytes, bytes] = {}
        for message in self.world.journal.messages():
            if message.retain:
                last[message.topic] = message.payload
        kept = self.world.broker.fold.tenant("default").retained
        found = {m.topic: m.payload for m in kept.messages()}
        for topic, payload in list(last.items()):
            if self._expires(payload):
                del last[topic]
                found.pop(topic, None)
        if last != found:
            raise Violation(f"P6: retained {found}, the journal says {last}")


def run(seed: int, steps: int, narrow: bool = False, jumps: bool = False) -> History:
    """Run one seed; raises what it finds, with the seed and the last steps in it."""
    history = History(seed, steps, narrow, jumps)
    try:
        history.run()
    except Exception as error:
        tail = "\n  ".join(history.done[-40:])
        kind = "narrow, " if narrow else ""
        error.add_note(f"seed {seed}, {kind}{steps} steps, step {len(history.done)}:\n  {tail}")
        raise
    return history


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, help="replay this one")
    parser.add_argument("--narrow", action="store_true", help="replay it with few packet ids")
    parser.add_argument("--from", dest="first", type=int, default=1, help="first seed")
    parser.add_argument("--crashes", type=int, default=2000, help="stop after this many")
    parser.add_argument("--steps", type=int, default=300, help="steps of a history")
    parser.add_argument("--jumps", action="store_true", help="the clock is set, by seconds, hours and years")
    options = parser.parse_args()
    if options.seed is not None:
        run(options.seed, options.steps, options.narrow, options.jumps)
        print(f"seed {options.seed}: every promise kept")
        return 0
    seed, crashes, started = options.first, 0, time.monotonic()
    while crashes < options.crashes:
        narrow = options.narrow or seed % 2 == 0
        try:
            crashes += run(seed, options.steps, narrow, options.jumps).world.crashes
        except Exception:
            print(
                f"FAILED: python -m faults.model.history --seed {seed} --steps {options.steps}"
                + " --narrow" * narrow
                + " --jumps" * options.jumps,
                file=sys.stderr,
            )
            raise
        seed += 1
    print(
        f"{seed - options.first} histories, {crashes} crashes, {time.monotonic() - started:.0f} s: every promise kept"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
