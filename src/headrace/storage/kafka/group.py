"""The membership of one worker in the group of Kafka that shares out the shards: one partition of a topic without records
for each of them.

Runs on the loop, which polls it: so a worker whose loop stands still leaves the group (`max.poll.interval.ms`), and so
does one that Kafka has not heard for 6 s. What the group says is advice, and goes to `claims`; who wants to know whether
it still holds asks, and the group's answer to a commit under the membership of now is that. `ask` may be called on any
thread.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from headrace.storage.kafka.claims import Claims
from headrace.storage.kafka.cluster_url import Client

SESSION_S: Final = 6.0
HEARTBEAT_S: Final = 1.5
STANDSTILL_S: Final = 10.0

Tell = Callable[[], None]


def group_of(topic: str) -> str:
    """Return the name of the group that shares the partitions of a topic."""
    return f"{topic}-workers"


class Group:
    """One member. It is made, polled every 0.1 s or so, and closed. `trouble` is why Kafka does not let it be one now; ""
    where nothing is known to be wrong."""

    def __init__(
        self,
        client: Client,
        topic: str,
        worker: str,
        claims: Claims,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Join the group that shares the partitions of `topic`, one of which is each shard's, under the name of a
        worker."""
        self._topic = topic
        self._claims = claims
        self._clock = clock
        self.trouble = ""
        self._named: set[int] = set()
        self._is_told = True  # the claims know the names
        self._asked: deque[tuple[int, Tell]] = deque()
        self._waiting: dict[int, list[Tell]] = {}  # for the answer to a commit
        self._config: dict[str, Any] = {
            **client,
            "group.id": group_of(topic),
            "client.id": worker,
            "session.timeout.ms": int(SESSION_S * 1000),
            "heartbeat.interval.ms": int(HEARTBEAT_S * 1000),
            "max.poll.interval.ms": int(STANDSTILL_S * 1000),
            "partition.assignment.strategy": "cooperative-sticky",  # a new member moves its share and nothing else
            "enable.auto.commit": False,
            "auto.offset.reset": "latest",
            "on_commit": self._committed,
        }
        self._consumer = self._join()

    def _join(self) -> Consumer:
        consumer = Consumer(self._config)
        consumer.subscribe([self._topic], self._assigned, self._revoked, self._lost)
        return consumer

    def join_anew(self) -> Consumer:
        """Join as a new member. Returns the consumer of before, whose `close` waits for Kafka and is for another
        thread."""
        before, self._consumer = self._consumer, self._join()
        self._named.clear()
        self._answer_none()
        return before

    def poll(self) -> None:
        """Hear what the group says, and ask it what was asked here."""
        message = self._consumer.poll(0)
        error = None if message is None else message.error()
        if error is not None:
            self.trouble = error.str()
        if not self._is_told:
            self._is_told = True
            self._claims.on_assigned(self._named, self._clock())
        while self._asked:
            self._commit(*self._asked.popleft())

    def ask(self, shard: int, tell: Tell) -> None:
        """Have `tell` called, within `poll`, if the group says that the shard is this member's now; never, if it does
        not, or does not answer."""
        self._asked.append((shard, tell))

    def close(self) -> None:
        """Leave the group. Waits for Kafka."""
        self._answer_none()
        self._consumer.close()

    def _answer_none(self) -> None:
        self._waiting.clear()
        self._asked.clear()

    # Asking: a commit is taken of a member alone, and under the assignment that holds

    def _commit(self, shard: int, tell: Tell) -> None:
        if shard not in self._named:
            return
        waiting = self._waiting.setdefault(shard, [])
        waiting.append(tell)
        if len(waiting) > 1:
            return
        try:
            self._consumer.commit(offsets=[TopicPartition(self._topic, shard, 0)], asynchronous=True)
        except KafkaException:
            self._waiting.pop(shard, None)

    def _committed(self, error: KafkaError | None, places: list[TopicPartition]) -> None:
        """Pass an answer on. Runs within `poll`."""
        for place in places:
            waiting = self._waiting.pop(place.partition, [])
            if error is None and place.error is None and place.partition in self._named:
                self._claims.on_heard(self._clock())
                for tell in waiting:
                    tell()

    # What the group says; all of it within `poll`

    def _assigned(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        self.trouble = ""
        consumer.incremental_assign(places)
        if places:
            consumer.pause(places)  # there is nothing to read
        self._named |= {place.partition for place in places}
        self._is_told = False

    def _revoked(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        consumer.incremental_unassign(places)
        self._named -= {place.partition for place in places}
        self._is_told = False

    def _lost(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        consumer.incremental_unassign(places)
        self._named.clear()
        self._is_told = True
        self._answer_none()
        self._claims.on_lost(self._clock())
