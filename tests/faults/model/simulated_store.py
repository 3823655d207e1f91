"""A store of two primaries that may do all that a store does to us: it answers late, twice and never, forgets its last
second, is promoted under an open connection, gives a queue to the other primary, is wiped, and fails within a batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random

from headrace.core.ports.clock import Clock
from headrace.core.ports.queue_store import (
    ABSENT,
    ANOTHER,
    DONE,
    REFUSED,
    SAME,
    THERE,
    UNSETTLED,
    UNSURE,
    Context,
    Primary,
    QueueName,
    QueueStore,
    StoreCapabilities,
    StoreListener,
)
from headrace.stores.memory import MemoryStream

FORGETS_MS = 1000
PATIENCE_MS = 30_000
Streams = dict[QueueName, MemoryStream]
Answer = Callable[[StoreListener], None]


def copied(streams: Streams) -> Streams:
    copies: Streams = {}
    for name, stream in streams.items():
        copy = copies[name] = MemoryStream()
        copy.entries, copy.last = dict(stream.entries), stream.last
    return copies


class Server:
    """What one primary has, and has had in its last second and a little more."""

    def __init__(self) -> None:
        self.streams: Streams = {}
        self.identity = 0
        self.versions: deque[tuple[int, Streams]] = deque([(0, {})])

    def changed(self, now_ms: int) -> None:
        self.versions.append((now_ms, copied(self.streams)))
        while len(self.versions) > 1 and self.versions[1][0] < now_ms - FORGETS_MS:
            self.versions.popleft()

    def as_of(self, ms: int) -> Streams:
        """What it would have if it forgot what came after a time."""
        return next((streams for at, streams in reversed(self.versions) if at <= ms), self.versions[0][1])

    def forget(self, ms: int, now_ms: int) -> None:
        self.streams = copied(self.as_of(ms))
        self.versions.append((now_ms, copied(self.streams)))
        self.identity += 1

    def wipe(self, new_id: bool, all_of_it: bool) -> None:
        """Lose everything, or go back to what was there long ago."""
        for stream in self.streams.values():
            entries = list(stream.entries.items())
            stream.entries = dict(entries[: len(entries) // 2])
            stream.last = max(stream.entries, default=0)
        if all_of_it:
            self.streams = {}
        self.versions = deque([(0, copied(self.streams))])
        self.identity += new_id


class Request:
    def __init__(
        self,
        number: int,
        name: QueueName | None,
        done: Callable[[Connection], Answer],
        failed: Callable[[int], Answer],
    ) -> None:
        self.number = number
        self.name = name
        self.done = done
        self.failed = failed


class Connection:
    """The connection to one of the primaries: what is sent and not done, what is done and not heard."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.open = True
        self.primary = Primary("p")
        self.identity = 0  # as it was seen last
        self.vouched: Streams = {}  # what would have outlasted a crash when the last look was done that was heard of
        self.sent: deque[Request] = deque()
        self.answers: deque[tuple[Request, Answer]] = deque()


class SimulatedStore(QueueStore):
    """The store. What happens when is the history's to say."""

    def __init__(self, draw: Random, clock: Clock, atomic: bool, tells_primary: bool) -> None:
        super().__init__(
            StoreCapabilities(
                "simulated",
                atomic_put=atomic,
                dense_ids=True,
                tells_primary=tells_primary,
                waits_for_replicas=False,
                forgets_ms=FORGETS_MS,
                entry_bytes_max=40,
                put_bytes_max=200,
                put_entries_max=4,
            )
        )
        self.draw = draw
        self.clock = clock
        self.connections = [Connection(Server()), Connection(Server())]
        self.homes: dict[int, int] = {}  # incarnation -> primary
        self.moved_ms: dict[int, int] = {}  # incarnation -> when it came to the primary where it is
        self.echoes: list[Answer] = []  # answers that come once more
        self.stragglers: list[tuple[int, Request]] = []  # sent over connections that are over
        self.refusals: list[Answer] = []
        self.heard: set[int] = set()  # looks whose answer has come, once at least
        self.unanswered: dict[
            int, tuple[int, int]
        ] = {}  # incarnation -> number of its put, and when it was sent

    def home(self, name: QueueName) -> Connection:
        return self.connections[self.homes.setdefault(name.incarnation, name.incarnation & 1)]

    def room(self) -> int:
        return 1000 if any(connection.open for connection in self.connections) else 0

    def _send(self, request: Request, connection: Connection) -> None:
        if connection.open:
            connection.sent.append(request)
        else:
            self.refusals.append(request.failed(REFUSED))

    # The port

    def put(self, number: int, name: QueueName, first: int, entries: list[bytes], begins: bool) -> None:
        before, sent_ms = self.unanswered.get(name.incarnation, (0, -PATIENCE_MS))
        assert sent_ms + PATIENCE_MS <= self.clock.mono_ms, f"put {before} is not answered"
        self.unanswered[name.incarnation] = (number, self.clock.mono_ms)

        def answered(outcome: int, primary: Primary | None) -> Answer:
            def tell(listener: StoreListener) -> None:
                if self.unanswered.get(name.incarnation, (0, 0))[0] == number:
                    del self.unanswered[name.incarnation]
                listener.took(number, outcome, primary)

            return tell

        def done(connection: Connection) -> Answer:
            outcome = self._put(connection.server, name, first, entries, begins)
            connection.server.changed(self.clock.mono_ms)
            return answered(outcome, connection.primary)

        self._send(Request(number, name, done, lambda code: answered(code, None)), self.home(name))

    def _put(self, server: Server, name: QueueName, first: int, entries: list[bytes], begins: bool) -> int:
        if self.draw.random() < 0.03:
            return REFUSED
        stream = server.streams.get(name)
        if stream is None and not begins:
            return ABSENT
        if stream is None:
            stream = server.streams[name] = MemoryStream()
        elif begins and stream.last:
            return THERE
        if not self.capabilities.atomic_put and self.draw.random() < 0.2:
            stream.put(first, entries[: self.draw.randrange(len(entries))])
            return UNSURE
        return DONE if stream.put(first, entries) else THERE

    def look(self, number: int, name: QueueName) -> None:
        def done(connection: Connection) -> Answer:
            stream = connection.server.streams.get(name)
            found = None if stream is None else stream.found()
            primary = connection.primary
            kept = self._kept(connection)

            def tell(listener: StoreListener) -> None:
                if not self.capabilities.tells_primary and number not in self.heard:
                    connection.vouched = kept
                self.heard.add(number)
                listener.looked(number, DONE if found else ABSENT, found, primary)

            return tell

        self._send(
            Request(
                number, name, done, lambda code: lambda listener: listener.looked(number, code, None, None)
            ),
            self.home(name),
        )

    def read(self, number: int, name: QueueName, first: int, count: int) -> None:
        def done(connection: Connection) -> Answer:
            stream = connection.server.streams.get(name)
            entries = {} if stream is None else stream.entries
            serials = [serial for serial in range(first, first + count) if serial in entries]
            values = [entries[serial] for serial in serials]
            outcome = ABSENT if stream is None else DONE
            return lambda listener: listener.read_back(number, outcome, first + count - 1, serials, values)

        self._send(
            Request(
                number, name, done, lambda code: lambda listener: listener.read_back(number, code, 0, [], [])
            ),
            self.home(name),
        )

    def trim(self, number: int, name: QueueName, floor: int) -> None:
        def done(connection: Connection) -> Answer:
            if name in connection.server.streams:
                connection.server.streams[name].trim(floor)
                connection.server.changed(self.clock.mono_ms)
            return lambda listener: listener.finished(number, DONE)

        self._send(
            Request(number, name, done, lambda code: lambda listener: listener.finished(number, code)),
            self.home(name),
        )

    def delete(self, number: int, name: QueueName) -> None:
        def done(connection: Connection) -> Answer:
            connection.server.streams.pop(name, None)
            connection.server.changed(self.clock.mono_ms)
            return lambda listener: listener.finished(number, DONE)

        self._send(
            Request(number, name, done, lambda code: lambda listener: listener.finished(number, code)),
            self.home(name),
        )

    def sight(self, number: int, primary: Primary) -> None:
        assert self.capabilities.tells_primary

        def done(connection: Connection) -> Answer:
            if self.draw.random() < 0.1:
                return lambda listener: listener.seen(number, UNSETTLED)
            outcome = SAME if connection.identity == connection.server.identity else ANOTHER
            kept = self._kept(connection)
            if outcome == ANOTHER:
                connection.identity = connection.server.identity
                connection.primary = Primary("p")

            def tell(listener: StoreListener) -> None:
                if number not in self.heard:
                    connection.vouched = kept
                self.heard.add(number)
                listener.seen(number, outcome)

            return tell

        for connection in self.connections:
            if connection.primary is primary and connection.open:
                self._send(
                    Request(number, None, done, lambda _: lambda listener: listener.seen(number, UNSETTLED)),
                    connection,
                )
                return
        self.refusals.append(lambda listener: listener.seen(number, ANOTHER))

    def _kept(self, connection: Connection) -> Streams:
        """What would have outlasted a crash at this moment."""
        return copied(connection.server.as_of(self.clock.mono_ms - FORGETS_MS))

    def keep_context(self, number: int, name: QueueName, context: Context | None) -> None:
        self.refusals.append(lambda listener: listener.finished(number, DONE))

    def scan(self, number: int, cursor: str) -> None:
        names = [name for connection in self.connections for name in connection.server.streams]
        self.refusals.append(lambda listener: listener.scanned(number, DONE, names, ""))

    # What happens

    def _tell(self, answer: Answer) -> None:
        assert self.listener is not None
        answer(self.listener)
        if self.draw.random() < 0.05:
            self.echoes.append(answer)

    def work(self, connection: Connection) -> None:
        """Do the next request, or send it to the primary whose it is now."""
        if connection.sent:
            request = connection.sent.popleft()
            if request.name is not None and self.home(request.name) is not connection:
                self._send(request, self.home(request.name))
            else:
                connection.answers.append((request, request.done(connection)))

    def hear(self, connection: Connection, never: bool) -> None:
        """Hear the next answer, or never."""
        if connection.answers:
            _, answer = connection.answers.popleft()
            if not never:
                self._tell(answer)

    def hear_others(self) -> None:
        answers, self.refusals = self.refusals, []
        for answer in answers:
            self._tell(answer)
        if self.echoes and self.draw.random() < 0.3 and self.listener is not None:
            self.echoes.pop(self.draw.randrange(len(self.echoes)))(self.listener)

    def straggle(self) -> None:
        """Do something that was sent over a connection that is over: a server that stood still reads it now."""
        if self.stragglers:
            place, request = self.stragglers.pop(0)
            if request.name is not None and self.home(request.name) is self.connections[place]:
                request.done(self.connections[place])

    def cut(self, place: int) -> None:
        """End a connection: nobody knows what became of what was sent over it."""
        connection = self.connections[place]
        if not connection.open:
            return
        connection.open = False
        lost = [request for request, _ in connection.answers] + list(connection.sent)
        self.stragglers += [(place, request) for request in connection.sent if self.draw.random() < 0.5]
        connection.answers.clear()
        connection.sent.clear()
        assert self.listener is not None
        self.listener.lost(connection.primary)
        for request in lost:
            if self.draw.random() < 0.8:
                self._tell(request.failed(UNSURE))

    def connect(self, place: int) -> None:
        connection = self.connections[place]
        if not connection.open:
            connection.open = True
            connection.primary = Primary("p")
            connection.identity = connection.server.identity

    def fail_over(self, place: int) -> None:
        """Another one takes over, without what came last; the connection stays with it, or is over."""
        now_ms = self.clock.mono_ms
        self.connections[place].server.forget(now_ms - self.draw.randrange(FORGETS_MS), now_ms)
        if self.draw.random() < 0.5:
            self.cut(place)

    def move(self, incarnation: int) -> None:
        """Give a queue to the other primary, with all its streams."""
        self.moved_ms[incarnation] = self.clock.mono_ms
        source = self.homes.setdefault(incarnation, incarnation & 1)
        self.homes[incarnation] = 1 - source
        old, new = self.connections[source].server, self.connections[1 - source].server
        for name in [name for name in old.streams if name.incarnation == incarnation]:
            new.streams[name] = old.streams.pop(name)
        for server in (old, new):
            server.identity += 1
            server.changed(self.clock.mono_ms)
