"""One node's candidacy for the shards of a cluster, all of which one node owns: Kafka's group names it, and the others
stand by until it has gone.

The group shares out the one partition of the topic of owners. Its members are polled every 0.1 s: by whoever waits, by a
thread while shards are opened and replayed, which may take long, and by the loop once they are served. So a node whose
loop stands still leaves the group (`group`).
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaException

from headrace.storage.kafka.claims import Claims, HandOver, JoinAnew, Stage
from headrace.storage.kafka.cluster_url import ClusterUrl
from headrace.storage.kafka.group import Group
from headrace.storage.kafka.topics import KafkaUnusable

POLL_S: Final = 0.1
LEAVE_WITHIN_S: Final = 5.0
# For so long another node has to be named before this one ends. A group that was lost, as with its coordinator, may have
# a dead member for 6 s, and wait for one for 10 s; to end for that would leave a cluster of one node without any.
STANDS_S: Final = 20.0
ALL: Final = 0  # the number under which the claims know all shards

Report = Callable[[str], None]


def _nothing() -> None:
    """Do nothing: nobody is to hear that a turn is over."""


class Candidate:
    """A node's membership in that group. `over` is called when another node is named instead, and has been for a while:
    the shards are to be given up in good order."""

    def __init__(self, url: ClusterUrl, worker: str, report: Report) -> None:
        """Join under the name of a worker. `report` hears lines for the log. Raises KafkaUnusable."""
        self._report = report
        self.over: Callable[[], None] = _nothing
        self._said = ""
        self._claims = Claims(1, random.random, time.monotonic(), STANDS_S)
        try:
            self._group = Group(url.client, url.owners, worker, self._claims)
        except (KafkaException, RuntimeError) as error:
            raise KafkaUnusable(f"{url.bootstrap}: a client of Kafka cannot be made: {error}") from error
        self._thread: threading.Thread | None = None
        self._serves = threading.Event()

    @property
    def is_named(self) -> bool:
        """Return whether the group has named this node, and it was not told since to give the shards up."""
        return self._claims.stage(ALL) in (Stage.TAKING, Stage.OWNED)

    def stand_by(self, alive: Callable[[], None], within_s: float) -> None:
        """Wait until the group names this node, and call `alive` every now and then. Raises KafkaUnusable after so many
        seconds."""
        deadline = time.monotonic() + within_s
        self.poll()
        while not self.is_named:
            if time.monotonic() >= deadline:
                raise KafkaUnusable(
                    f"the group has not named this node within {within_s:.0f} s: another one serves"
                )
            time.sleep(POLL_S)
            self.poll()
            alive()

    def ask(self, tell: Callable[[], None]) -> None:
        """Have `tell` called if the group says that this node is named now; never, if it does not, or does not
        answer."""
        self._group.ask(ALL, tell)

    def poll_on_a_thread(self, alive: Callable[[], None]) -> None:
        """Have a thread poll, and call `alive`, until `serve`."""

        def poll() -> None:
            while not self._serves.wait(POLL_S):
                self.poll()
                alive()

        self._thread = threading.Thread(target=poll, name="kafka-group", daemon=True)
        self._thread.start()

    def serve(self) -> None:
        """Note that the shards are served: the loop polls from now on."""
        self._end_thread()
        self._claims.on_owned(ALL, time.monotonic())

    def _end_thread(self) -> None:
        self._serves.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def poll(self) -> None:
        """Hear what the group says, and do what comes of it."""
        self._group.poll()
        if self._group.trouble != self._said:
            self._said = self._group.trouble
            self._report(f"the group of the cluster's nodes: {self._said or 'it answers again'}")
        self._claims.on_time(time.monotonic())
        for action in self._claims.take_actions():
            if isinstance(action, HandOver):
                self.over()
            elif isinstance(action, JoinAnew):
                threading.Thread(target=self._group.join_anew().close, daemon=True).start()

    def leave(self) -> None:
        """Leave the group, so that another node is named at once. Waits for Kafka, and not for long."""
        self._end_thread()
        thread = threading.Thread(target=self._group.close, name="kafka-group", daemon=True)
        thread.start()
        thread.join(LEAVE_WITHIN_S)
