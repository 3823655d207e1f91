"""Redis in trouble, real servers throughout: refused, full, loading, without a password, a replica, restarted empty,
failed over, stopped, and slots that move under a put."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from broker_process import free_port
from certificates import Authority
from contract.test_queue_store import DEADLINE_S, RAISED, Engine, User, name, nothing_was_raised
from headrace.core.ports.clock import Clock
from headrace.core.ports.queue_store import (
    ABSENT,
    ANOTHER,
    DONE,
    REFUSED,
    SAME,
    UNSETTLED,
    UNSURE,
    Context,
    Primary,
    QueueName,
)
from headrace.core.storing.notes import StoreNotes, StoringSettings
from headrace.core.storing.stored_queue import StoredQueue, Waiting
from headrace.core.storing.storing import Storing
from headrace.stores.names import RedisNames
from headrace.stores.redis import connection, store
from headrace.stores.redis.address import parse
from headrace.stores.redis.replies import slot_of
from headrace.stores.redis.store import RedisStore
from redis_servers import RedisServer, RedisServers, begin_move, move_slot, redis_servers

pytestmark = pytest.mark.redis


@pytest.fixture
def servers() -> Iterator[RedisServers]:
    with redis_servers() as found:
        yield found


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[RedisServer]]:
    with redis_servers() as found:
        yield found.cluster()


class Use:
    """A store over some servers, and who asks it."""

    def __init__(self, *servers: RedisServer, password: str = "", options: str = "") -> None:
        places = ",".join(server.place for server in servers)
        self.store = RedisStore(parse(f"redis://:{password}@{places}?prefix=p{options}"), RAISED.append)
        self.user = User(Engine(), self.store)

    async def until(self, condition: Callable[[], object], within_s: float = DEADLINE_S) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, self.store.why_not()
            await asyncio.sleep(0.005)

    def stop(self, server: RedisServer) -> None:
        """Have a server stand still, and the store notice it at once."""
        server.signal(signal.SIGSTOP)
        self.store._nodes["127.0.0.1", server.port].reopen()

    async def up(self) -> None:
        await self.until(self.store.room)

    async def put(self, whose: QueueName, first: int, *entries: bytes, begins: bool = False) -> int:
        """The outcome of a put that is tried again as long as it is refused."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            outcome, _ = await self.user.put(whose, first, *entries, begins=begins)
            if outcome != REFUSED:
                return outcome
            assert time.monotonic() < deadline, self.store.why_not()
            await asyncio.sleep(0.02)


def use(
    look: Callable[[Use], Awaitable[None]], *servers: RedisServer, password: str = "", options: str = ""
) -> None:
    async def life() -> None:
        used = Use(*servers, password=password, options=options)
        try:
            await look(used)
        finally:
            used.store.close()

    asyncio.run(life())
    nothing_was_raised()


def test_a_server_that_may_evict_is_refused_with_words_until_it_may_not(servers: RedisServers) -> None:
    server = servers.single("--maxmemory-policy", "allkeys-lru")

    async def look(used: Use) -> None:
        await used.until(lambda: "allkeys-lru" in used.store.why_not())
        assert "set it to noeviction" in used.store.why_not()
        assert used.store.room() == 0
        assert (await used.user.put(name(), 1, b"x", begins=True))[0] == REFUSED
        server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
        await used.up()
        _, primary = await used.user.put(name(), 1, b"x", begins=True)
        assert primary is not None
        server.ask("CONFIG", "SET", "maxmemory-policy", "volatile-ttl")
        assert await used.user.sight(primary) == UNSETTLED
        await used.until(lambda: "volatile-ttl" in used.store.why_not())

    use(look, server)


def test_without_the_password_nothing_is_put_and_it_is_said_why(servers: RedisServers) -> None:
    server = servers.single("--requirepass", "s3cret")
    server.password = "s3cret"

    async def refused(used: Use) -> None:
        await used.until(lambda: "NOAUTH" in used.store.why_not() or "WRONGPASS" in used.store.why_not())
        assert used.store.room() == 0

    async def let_in(used: Use) -> None:
        await used.up()
        assert await used.put(name(), 1, b"x", begins=True) == DONE

    use(refused, server)
    use(refused, server, password="other")
    use(let_in, server, password="s3cret")


def test_a_full_server_refuses_puts_and_gives_back_what_it_has(servers: RedisServers) -> None:
    server = servers.single()

    async def look(used: Use) -> None:
        await used.up()
        assert await used.put(name(), 1, b"1", b"2", begins=True) == DONE
        server.ask("CONFIG", "SET", "maxmemory", 1)
        assert (await used.user.put(name(), 3, b"3"))[0] == REFUSED
        assert (await used.user.put(name(), 3, b"3", b"4"))[0] == REFUSED
        assert used.store.counters.faults["oom"] == 2
        assert await used.user.read(name(), 1, 5) == {1: b"1", 2: b"2"}
        await used.user.trim(name(), 2)
        server.ask("CONFIG", "SET", "maxmemory", 0)
        assert (await used.user.put(name(), 3, b"3", b"4"))[0] == DONE
        assert await used.user.look(name()) == (DONE, (2, 4, 3))

    use(look, server)


def test_a_server_that_cannot_save_refuses_puts(servers: RedisServers) -> None:
    server = servers.single("--save", "3600 1")

    async def look(used: Use) -> None:
        await used.up()
        assert await used.put(name(), 1, b"1", begins=True) == DONE
        shutil.rmtree(server.folder / str(server.port))  # where it saves
        server.ask("BGSAVE")
        await used.until(lambda: b"rdb_last_bgsave_status:err" in server.ask("INFO", "persistence"))
        assert (await used.user.put(name(), 2, b"2"))[0] == REFUSED
        assert used.store.counters.faults["misconf"] == 1
        assert await used.user.read(name(), 1, 5) == {1: b"1"}

    use(look, server)


def test_a_server_that_is_loading_is_waited_for(servers: RedisServers) -> None:
    server = servers.single(
        *("--appendonly", "no", "--save", "3600 1000000", "--loading-process-events-interval-bytes", "1024")
    )
    for number in range(60):
        server.ask("SET", f"k{number}", b"x" * 2000)
    server.ask("SAVE")
    server.kill()
    server.slow_start()

    async def look(used: Use) -> None:
        await used.until(lambda: "loading" in used.store.why_not().lower())
        await used.up()
        assert await used.put(name(), 1, b"x", begins=True) == DONE

    use(look, server)


def test_a_primary_that_becomes_a_replica_and_back_is_another_primary(servers: RedisServers) -> None:
    server, other = servers.single(), servers.single()

    async def look(used: Use) -> None:
        await used.up()
        _, before = await used.user.put(name(), 1, b"x", begins=True)
        server.ask("REPLICAOF", "127.0.0.1", other.port)
        assert (await used.user.put(name(), 2, b"y"))[0] == REFUSED
        assert used.store.counters.faults["readonly"] == 1
        await used.until(lambda: "is a replica" in used.store.why_not())
        assert before in used.user.heard.gone
        server.ask("REPLICAOF", "NO", "ONE")
        await used.up()
        outcome, after = await used.user.put(name("d"), 1, b"y", begins=True)
        assert outcome == DONE
        assert after is not before

    use(look, server)


def test_what_a_replica_has_not_is_not_gone(servers: RedisServers) -> None:
    server, other = servers.single(), servers.single()

    async def look(used: Use) -> None:
        await used.up()
        assert await used.put(name(), 1, b"x", begins=True) == DONE
        server.ask("REPLICAOF", "127.0.0.1", other.port)
        outcome = await used.user.outcome_of_read(name(), 1, 1)
        assert outcome == REFUSED
        await used.until(lambda: "is a replica" in used.store.why_not())

    use(look, server)


def test_a_server_that_comes_back_empty_is_another_one(servers: RedisServers) -> None:
    server = servers.single()

    async def look(used: Use) -> None:
        await used.up()
        _, before = await used.user.put(name(), 1, b"x", begins=True)
        server.kill()
        await used.until(lambda: before in used.user.heard.gone)
        shutil.rmtree(server.folder / str(server.port))
        server.start()
        await used.up()
        assert await used.put(name(), 2, b"y") == ABSENT
        assert isinstance(before, Primary)
        assert await used.user.sight(before) == ANOTHER

    use(look, server)


def test_a_replica_that_takes_over_has_what_was_waited_for(servers: RedisServers) -> None:
    server = servers.single()
    replica = servers.replica_of(server)

    async def look(used: Use) -> None:
        await used.up()
        assert await used.put(name(), 1, b"1", b"2", b"3", begins=True) == DONE
        _, before = await used.user.put(name(), 4, b"4")
        await used.until(lambda: replica.ask("XLEN", RedisNames("p").stream(name())) == 4)
        server.kill()
        replica.ask("REPLICAOF", "NO", "ONE")
        await used.until(lambda: before in used.user.heard.gone)
        await used.up()
        assert await used.user.look(name()) == (DONE, (1, 4, 4))
        assert await used.put(name(), 5, b"5") == DONE

    use(look, server, replica)


@pytest.mark.parametrize("restarted", [False, True])
def test_what_a_primary_that_was_replaced_lacks_is_not_gone_when_it_comes_back(
    servers: RedisServers, restarted: bool
) -> None:
    """It is a primary until somebody tells it otherwise, and its successor is away: nothing that only that one has is
    taken for lost, and nothing that is put there is let go of by the journal."""
    server = servers.single("--appendfsync", "always")
    replica = servers.replica_of(server)

    async def look(used: Use) -> None:
        await used.until(lambda: used.store.up() == 1)
        assert await used.put(name(), 1, b"1", begins=True) == DONE
        await used.until(lambda: replica.ask("XLEN", RedisNames("p").stream(name())) == 1)
        await used.until(lambda: not used.store.doubt())
        server.kill() if restarted else used.stop(server)
        replica.ask("REPLICAOF", "NO", "ONE")
        await used.up()
        assert await used.put(name(), 2, b"2", b"3") == DONE
        server.start() if restarted else server.signal(signal.SIGCONT)
        await used.until(lambda: used.store.up() == 2)
        assert await used.user.read(name(), 1, 3) == {1: b"1", 2: b"2", 3: b"3"}, (
            "of two the successor is asked"
        )
        used.stop(replica)
        await used.until(lambda: used.store.up() == 1)
        assert await used.user.outcome_of_read(name(), 2, 2) == REFUSED
        assert await used.user.read(name(), 1, 1) == {1: b"1"}
        _, primary = await used.user.put(name("d"), 1, b"1", begins=True)
        assert primary is not None
        assert await used.user.sight(primary) == UNSETTLED
        assert "the journal keeps everything" in used.store.doubt()
        replica.signal(signal.SIGCONT)
        await used.until(lambda: used.store.up() == 2)
        assert await used.user.read(name(), 1, 3) == {1: b"1", 2: b"2", 3: b"3"}

    use(look, server, replica)


def test_a_copy_that_stands_still_costs_a_tenth_of_a_second_and_is_counted(servers: RedisServers) -> None:
    server = servers.single()
    replica = servers.replica_of(server)

    async def look(used: Use) -> None:
        await used.until(lambda: used.store.up() == 1)
        assert await used.put(name(), 1, b"1", begins=True) == DONE
        replica.signal(signal.SIGSTOP)
        try:
            assert await used.put(name(), 2, b"2") == DONE
        finally:
            replica.signal(signal.SIGCONT)
        assert used.store.meter.unreplicated >= 1

    use(look, server, replica)


def test_what_no_replica_has_is_not_vouched_for_unless_none_is_wanted(servers: RedisServers) -> None:
    """A primary that is cut off from the others goes on answering until it is replaced, and what it took is lost."""
    server = servers.single()
    replica = servers.replica_of(server)

    async def look(used: Use) -> None:
        await used.until(lambda: used.store.up() == 1)
        _, primary = await used.user.put(name(), 1, b"1", begins=True)
        assert primary is not None
        replica.signal(signal.SIGSTOP)
        try:
            await used.user.put(name(), 2, b"2")
            assert await used.user.sight(primary) == UNSETTLED
            assert used.store.counters.unsettled == {"no replica": 1}
            assert used.store.doubt() == "the journal keeps everything: no replica"
        finally:
            replica.signal(signal.SIGCONT)
        deadline = time.monotonic() + DEADLINE_S
        while await used.user.sight(primary) != SAME:
            assert time.monotonic() < deadline

    async def alone(used: Use) -> None:
        await used.until(lambda: used.store.up() == 1)
        _, primary = await used.user.put(name("d"), 1, b"1", begins=True)
        assert primary is not None
        replica.signal(signal.SIGSTOP)
        try:
            await used.user.put(name("d"), 2, b"2")
            assert await used.user.sight(primary) == SAME
        finally:
            replica.signal(signal.SIGCONT)

    use(look, server, replica)
    use(alone, server, replica, options="&replicas=0")


def test_a_server_that_keeps_nothing_on_disk_is_not_vouched_for(servers: RedisServers) -> None:
    server = servers.single("--appendonly", "no")

    async def look(used: Use) -> None:
        await used.up()
        assert used.store.doubt() == "the journal keeps everything: no append-only file", (
            "before anything is put"
        )
        _, primary = await used.user.put(name(), 1, b"1", begins=True)
        assert primary is not None
        assert await used.user.sight(primary) == UNSETTLED
        assert used.store.counters.unsettled == {"no append-only file": 1}
        server.ask("CONFIG", "SET", "appendonly", "yes")
        assert await used.user.sight(primary) == SAME
        assert used.store.doubt() == ""

    use(look, server)


def test_a_server_that_stands_still_is_given_up(
    servers: RedisServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "SILENCE_S", 0.5)
    monkeypatch.setattr(connection, "LOOK_S", 0.1)
    server = servers.single()

    async def look(used: Use) -> None:
        await used.up()
        assert await used.put(name(), 1, b"1", begins=True) == DONE
        server.signal(signal.SIGSTOP)
        try:
            outcome, _ = await used.user.put(name(), 2, b"2")
            assert outcome == UNSURE
            assert used.store.room() == 0
        finally:
            server.signal(signal.SIGCONT)
        await used.up()
        looked, found = await used.user.look(name())
        assert looked == DONE
        assert found in ((1, 1, 1), (1, 2, 2))  # it may have read the put after all

    use(look, server)


def test_over_tls_certificates_are_checked_and_shown(servers: RedisServers, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("redis")
    port = free_port()
    tls = ("--tls-port", str(port), "--tls-cert-file", str(certificate), "--tls-key-file", str(key))
    server = servers.single(*tls, "--tls-ca-cert-file", str(authority.ca), "--tls-auth-clients", "yes")

    async def life() -> None:
        shown = f"certificate={certificate}&key={key}"
        stores = [
            RedisStore(parse(f"rediss://localhost:{port}?{options}"), RAISED.append)
            for options in (f"ca={authority.ca}&{shown}", shown, f"ca={authority.ca}")
        ]
        try:
            deadline = time.monotonic() + DEADLINE_S
            while not stores[0].room() or not all("certificate" in one.why_not() for one in stores[1:2]):
                assert time.monotonic() < deadline, [one.why_not() for one in stores]
                await asyncio.sleep(0.01)
            assert (await User(Engine(), stores[0]).put(name(), 1, b"x", begins=True))[0] == DONE
            assert [one.room() for one in stores[1:]] == [0, 0]
        finally:
            for one in stores:
                one.close()

    asyncio.run(life())
    assert server.ask("XLEN", RedisNames("headrace").stream(name())) == 1


def test_commands_leave_in_batches(servers: RedisServers) -> None:
    server = servers.single()

    async def look(used: Use) -> None:
        await used.up()
        before = used.store.meter.batches
        outcomes = await asyncio.gather(
            *(used.user.put(name(f"c{number}"), 1, b"x", begins=True) for number in range(450))
        )
        assert {outcome for outcome, _ in outcomes} == {DONE}
        assert used.store.meter.batches - before == 5  # 4 of 100, and one after 3 ms
        assert used.store.meter.bytes == 0

    use(look, server)


def home(key: bytes, nodes: list[RedisServer]) -> int:
    slot = slot_of(key)
    for number, node in enumerate(nodes):
        for first, last, primary, *_ in nodes[0].ask("CLUSTER", "SLOTS"):
            if first <= slot <= last and primary[1] == node.port:
                return number
    raise AssertionError(slot)


def test_a_put_follows_its_slot_and_the_old_owner_does_not_vouch_for_it(
    cluster: list[RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "MAP_S", 3600.0)  # nobody but the redirection tells
    key = RedisNames("p").stream(name("moved"))
    at = home(key, cluster)
    source, target = cluster[at], cluster[(at + 1) % 3]

    async def look(used: Use) -> None:
        await used.until(lambda: used.store.up() == 3)
        _, before = await used.user.put(name("moved"), 1, b"1", b"2", begins=True)
        assert before is not None
        assert await used.user.sight(before) == SAME
        move_slot(slot_of(key), source, target, cluster)
        outcome, after = await used.user.put(name("moved"), 3, b"3", b"4")
        assert outcome == DONE
        assert after is not before
        assert used.store.counters.redirects >= 1
        assert await used.user.look(name("moved")) == (DONE, (1, 4, 4))
        assert await used.user.read(name("moved"), 1, 9) == {serial: b"%d" % serial for serial in range(1, 5)}
        assert await used.user.sight(before) != SAME

    use(look, *cluster)


def test_while_a_slot_moves_its_keys_are_asked_for_where_they_are(cluster: list[RedisServer]) -> None:
    key = RedisNames("p").stream(name("asked"))
    at = home(key, cluster)
    source, target = cluster[at], cluster[(at + 1) % 3]

    async def look(used: Use) -> None:
        await used.until(lambda: used.store.up() == 3)
        begin_move(slot_of(key), source, target)
        assert await used.put(name("asked"), 1, b"1", b"2", begins=True) == DONE
        assert used.store.counters.faults["ask"] >= 1
        assert await used.user.read(name("asked"), 1, 5) == {1: b"1", 2: b"2"}
        assert await used.put(name("asked"), 3, b"3") == DONE
        _, primary = await used.user.put(name("asked"), 4, b"4")
        assert primary is not None
        assert await used.user.sight(primary) == UNSETTLED
        move_slot(slot_of(key), source, target, cluster)
        assert await used.user.look(name("asked")) == (DONE, (1, 4, 4))

    use(look, *cluster)


def test_a_slot_without_an_owner_costs_its_own_queues_alone(servers: RedisServers) -> None:
    nodes = servers.cluster()
    keys = RedisNames("p")
    clients = [name(f"c{number}") for number in range(30)]
    lost = [one for one in clients if home(keys.stream(one), nodes) == 2]
    others = [one for one in clients if one not in lost]
    assert lost
    assert others

    async def look(used: Use) -> None:
        await used.until(lambda: used.store.up() == 3)
        for one in clients:
            assert await used.put(one, 1, b"x", begins=True) == DONE
        nodes[2].kill()
        await used.until(lambda: used.store.up() == 2)
        assert (await used.user.put(lost[0], 2, b"y"))[0] == REFUSED
        for one in others:
            assert await used.put(one, 2, b"y") == DONE

    use(look, *nodes)


class Backlog(Waiting):
    """A session's entries as its journal has them: what LET_GO lets go of is gone."""

    def __init__(self) -> None:
        self.entries_of: dict[int, bytes] = {}
        self.last = 0
        self.got: dict[int, bytes | None] = {}

    def newest(self) -> int:
        return self.last

    def entries(self, first: int, count: int, bytes_max: int) -> list[bytes]:
        return [self.entries_of[serial] for serial in range(first, first + count)]

    def large_between(self, first: int, last: int, bytes_max: int) -> int:
        return 0

    def agrees(self, serial: int, entry: bytes, bytes_max: int) -> bool:
        return self.entries_of.get(serial) == entry

    def context(self) -> Context:
        return Context(self.last, self.last, 1)

    def loaded(self, first: int, entries: list[bytes | None]) -> None:
        self.got.update(enumerate(entries, first))

    def not_now(self) -> None:
        """Be asked again."""


class Shard(StoreNotes):
    """The policy over a real Redis, and sessions whose client is away. What it writes down is durable at once."""

    def __init__(self, used: Use, count: int) -> None:
        self.clock = Clock()
        self.storing = Storing(used.store, self, self.clock, StoringSettings("5f", 500))
        self.backlogs = [Backlog() for _ in range(count)]
        self.queues = [
            StoredQueue("t", f"c{number}", number + 1, one) for number, one in enumerate(self.backlogs)
        ]

    def stored(self, queue: StoredQueue, generation: int, first: int, up_to: int) -> None:
        """Note nothing: the process lives on."""

    def let_go(self, queue: StoredQueue, up_to: int) -> None:
        backlog = self.backlogs[queue.incarnation - 1]
        for serial in [serial for serial in backlog.entries_of if serial <= up_to]:
            del backlog.entries_of[serial]
        self.storing.let_go_is_durable(queue, up_to)

    def publish(self, count: int) -> None:
        for backlog, queue in zip(self.backlogs, self.queues, strict=True):
            for _ in range(count):
                backlog.last += 1
                backlog.entries_of[backlog.last] = b"%d/%d" % (queue.incarnation, backlog.last)
            self.storing.begin(queue)

    async def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline
            self.clock.mono_ms = int(time.monotonic() * 1000)
            self.storing.run()
            await asyncio.sleep(0.002)

    async def read_all(self, queue: StoredQueue, backlog: Backlog) -> dict[int, bytes | None]:
        """What a client gets that comes back, from the store alone."""
        while len(backlog.got) < backlog.last:
            self.storing.reading.read(queue, len(backlog.got) + 1, 100)
            await self.until(lambda: not queue.reading)
        return backlog.got

    def is_let_go(self) -> bool:
        return not any(backlog.entries_of for backlog in self.backlogs)


def test_a_backlog_outlives_kill_9_of_its_server_and_comes_back_in_order(servers: RedisServers) -> None:
    server = servers.single("--appendfsync", "always")

    async def look(used: Use) -> None:
        await used.up()
        shard = Shard(used, 20)
        shard.publish(30)
        await shard.until(lambda: shard.storing.counters.put >= 300)
        server.kill()
        shard.publish(30)
        server.start()
        await shard.until(shard.is_let_go)
        assert shard.storing.counters.compared > 0
        for queue, backlog in zip(shard.queues, shard.backlogs, strict=True):
            expected = {serial: b"%d/%d" % (queue.incarnation, serial) for serial in range(1, 61)}
            assert await shard.read_all(queue, backlog) == expected
            shard.storing.consumed(queue, 61)
            shard.storing.end(queue)
        await shard.until(lambda: not shard.storing.has_work())
        await used.until(lambda: server.ask("DBSIZE") == 1)  # the mark of the server

    use(look, server)


def test_a_foreign_value_under_the_name_of_a_queue_costs_what_it_has_replaced_and_nothing_else(
    servers: RedisServers,
) -> None:
    """It is in the way of a put: the queue goes under another name. It stands where a queue was: that is gone."""
    server = servers.single()

    async def look(used: Use) -> None:
        await used.up()
        shard = Shard(used, 2)
        for queue in shard.queues:
            queue.tenant = "default"
        first = used.store._names.stream(shard.queues[0].name("5f", 1))
        server.ask("SET", first, "x")
        shard.publish(5)
        await shard.until(shard.is_let_go)
        for queue, backlog in zip(shard.queues, shard.backlogs, strict=True):
            expected = {serial: b"%d/%d" % (queue.incarnation, serial) for serial in range(1, 6)}
            assert await shard.read_all(queue, backlog) == expected
        assert used.store.counters.faults["wrongtype"] >= 1
        there = shard.queues[0].rows.extents[-1].generation
        assert there == 2
        server.ask("SET", used.store._names.stream(shard.queues[0].name("5f", there)), "y")
        shard.backlogs[0].got = {}
        assert await shard.read_all(shard.queues[0], shard.backlogs[0]) == dict.fromkeys(range(1, 6))
        assert shard.storing.counters.forgotten == 5
        shard.storing.consumed(shard.queues[0], 6)
        shard.publish(3)
        await shard.until(shard.is_let_go)

    use(look, server)


def test_no_descriptor_is_left(servers: RedisServers) -> None:
    server = servers.single()

    async def look(used: Use) -> None:
        await used.up()

    use(look, server)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        use(look, server)
    assert len(os.listdir("/proc/self/fd")) <= before
