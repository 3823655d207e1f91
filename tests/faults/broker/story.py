"""The story that is told to a broker while its system calls fail: what devices do in a month, in two seconds.

Subscribers that stay, leave and return, with messages in flight and with a long backlog; a shared group whose member
goes; a will; retained messages that change; segments of a few kilobytes, so that they roll, are compacted and dropped;
pages of a backlog; a snapshot; SIGHUP; a stop and a start. Every step waits for what must follow from it.
"""

from __future__ import annotations

import signal
import time
from typing import Protocol

from broker_process import BrokerProcess
from faults.broker.fleet import Device, Fleet, GaveUp

SETTINGS: dict[str, object] = {
    "journal.segment_bytes_max": 16 << 10,
    "journal.retention_bytes": 48 << 10,
    "journal.snapshot_interval_bytes": 24 << 10,
    "journal.reserve_bytes": 4096,
    "session.page_messages": 4,
    "session.inflight_max": 8,
    "sys_interval_s": 1,
}
TOPICS = 6  # with a retained message


class Broker(Protocol):
    """What a story may do to the broker."""

    broker: BrokerProcess

    def start(self) -> None: ...

    def ended(self) -> bool: ...

    def again(self) -> None: ...

    def stop(self) -> None: ...


class Story:
    """One telling. `tell` leaves in the fleet what was not as promised."""

    def __init__(self, fleet: Fleet, lives: Broker) -> None:
        self.fleet, self.lives = fleet, lives

    def tell(self) -> None:
        self.lives.start()
        self._gather()
        self._publish()
        self._lose_some()
        self._wait_for_a_snapshot()
        self._return()
        self._leave_again()
        self.lives.again()
        self._after_the_start()
        self.lives.stop()

    def _settle(self, what: str) -> None:
        """Everybody who wants to be there is, and has its answers, also from a broker that had to start again."""
        self.fleet.expect(lambda: not self.lives.ended() and self.fleet.idle(), what)

    def _gather(self) -> None:
        fleet = self.fleet
        self.live = fleet.device("live", "d/#", "will/#")
        self.away = fleet.device("away", "d/#")
        self.holder = fleet.device("holder", "h/#")
        self.members = tuple(fleet.device(f"member-{n}", "$share/g/s/#") for n in range(2))
        self.publisher = fleet.device("publisher")
        self.mourned = fleet.device("mourned", will=("will/mourned", b"%d " % fleet.next_number()))
        self._settle("everybody is connected and subscribed")
        self.away.leave()
        self.holder.holding = True

    def _publish(self) -> None:
        publisher = self.publisher
        for number in range(TOPICS):
            publisher.publish(f"r/{number}", 1, retain=True, size=100)
        for number in range(4):
            publisher.publish("h/1", 1 + number % 2)
        self._settle("the first acknowledgements")
        self.fleet.expect(lambda: len(self.holder.held) >= 4, "what is to be held arrives")
        self.holder.abort()
        for number in range(24):
            publisher.publish(f"d/{number % 2}", number % 3, size=200)
            publisher.publish("filler", 1, size=3000)
            if number % 4 == 0:
                publisher.publish("s/x", 1 + number // 4 % 2)
            self.fleet.pump(lambda: True)
        for number in range(0, TOPICS, 2):
            publisher.publish(f"r/{number}", 1, retain=True, size=50)
        self._settle("the acknowledgements of a busy hour")

    def _lose_some(self) -> None:
        self.mourned.abort()
        self.members[1].abort()
        for _ in range(4):
            self.publisher.publish("s/x", 1)
        self._settle("acknowledgements while members go")
        self.fleet.expect(lambda: any(g.topic == "will/mourned" for g in self.live.books.got), "P5: the will")

    def _wait_for_a_snapshot(self) -> None:
        """Housekeeping comes once a second; a broker that failed at it must come to it again. A little is published
        meanwhile, or none would be due."""
        journal = self.lives.broker.data_dir / "journal"
        before = {path.name for path in journal.glob("*.snapshot")}
        began = time.time()
        published = 0

        def taken() -> bool:
            nonlocal published
            if self.lives.ended():
                return False
            if self.publisher.idle and time.time() - began > 0.1 * published:
                self.publisher.publish("filler", 1, size=3000)
                published += 1
            return any(p.name not in before or p.stat().st_mtime > began for p in journal.glob("*.snapshot"))

        self.fleet.expect(taken, "a snapshot is taken")
        for device in (self.live, self.publisher):
            device.ping()
        self._settle("answers to PINGREQ beside the housekeeping")
        assert self.lives.broker.process is not None
        self.lives.broker.process.send_signal(signal.SIGHUP)

    def _return(self) -> None:
        fleet = self.fleet
        self.away.connect()
        self.holder.holding = False
        self.holder.connect()
        self.members[1].connect()
        for number in range(6):
            self.publisher.publish("d/0", 1 + number % 2)
            self.publisher.publish("h/1", 1)
        self._settle("answers after the return")
        self._everything_arrives("before the stop")
        reader = fleet.device("reader-1", "r/#", clean=True)
        self._settle("a new client is served")
        self._retained(reader)

    def _retained(self, reader: Device) -> None:
        topics = {sent.topic for sent in self.fleet.acked("r/")}
        self.fleet.pump(lambda: {g.topic for g in reader.books.got if g.retain} >= topics)
        self.fleet.check_retained(reader, "r/")
        reader.leave()

    def _everything_arrives(self, when: str) -> None:
        fleet = self.fleet
        group = self.members
        fleet.pump(
            lambda: (
                not self.lives.ended()
                and fleet.has_all(self.live, "d/")
                and fleet.has_all(self.away, "d/")
                and fleet.has_all(self.holder, "h/")
                and fleet.has_all(group[0], "s/", group[1:])
                and not self.holder.returning
            )
        )
        fleet.check_delivered("d/", self.live)
        fleet.check_delivered("d/", self.away)
        fleet.check_delivered("h/", self.holder)
        fleet.check_delivered("s/", *group)
        fleet.check_returned(self.holder)
        if fleet.faults:
            raise GaveUp

    def _leave_again(self) -> None:
        """Something waits over the next start, and something is in flight."""
        self.away.abort()
        self.holder.holding = True
        for number in range(8):
            self.publisher.publish("d/1", 1 + number % 2, size=100)
        self.publisher.publish("h/2", 1)
        self.publisher.publish("h/2", 2)
        self._settle("the last acknowledgements")
        self.fleet.expect(lambda: len(self.holder.held) >= 2, "what is to be held arrives again")
        for device in self.fleet.devices:
            device.abort()

    def _after_the_start(self) -> None:
        self.holder.holding = False
        for device in (self.live, self.away, self.holder, *self.members, self.publisher):
            device.connect()
        self.publisher.publish("d/1", 1)
        self._settle("everybody is served after the start")
        self._everything_arrives("after the start")
        reader = self.fleet.device("reader-2", "r/#", clean=True)
        self._settle("a new client is served after the start")
        self._retained(reader)
