"""Long backlogs in a real Redis: nothing acknowledged is lost, whatever is killed, and all of it comes back in order."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker_process import BrokerExitedError, BrokerProcess, headrace, wait_until
from e2e.consumer import Consumer, Ledger
from e2e.producer import Producer
from e2e.raw import RawClient
from redis_servers import RedisServer, RedisServers, redis_servers

pytestmark = [
    pytest.mark.redis,
    pytest.mark.skipif("__import__('broker_process').UNDER_AUDIT != 'headrace'"),
]
Brokers = Callable[..., BrokerProcess]
# A journal that keeps nothing that nobody needs.
TIGHT: dict[str, object] = {
    "journal.segment_bytes_max": 65_536,
    "journal.snapshot_interval_bytes": 16_384,
    "journal.snapshot_interval_s": 1,
    "journal.retention_bytes": 65_536,
    "session.backlog_messages_max": 65_535,
    "queues.window_s": 0,
}


@pytest.fixture
def servers() -> Iterator[RedisServers]:
    with redis_servers() as found:
        yield found


def stored_in(server: RedisServer, **more: object) -> dict[str, object]:
    return TIGHT | {"queues.device": f"redis://{server.place}"} | more


def figure(broker: BrokerProcess, name: str) -> float:
    """The sum of a metric over its labels."""
    found = broker.metrics()
    return sum(value for key, value in found.items() if key.partition("{")[0] == f"headrace_{name}")


def subscribe_and_leave(broker: BrokerProcess, client_id: str, topic_filter: str, qos: int = 1) -> None:
    with RawClient(broker.address, client_id) as client:
        client.connect(clean=False)
        client.subscribe(topic_filter, qos=qos)
        client.disconnect()


def deliver(broker: BrokerProcess, topic: str, first: int, count: int) -> None:
    """Publish numbers with QoS 1, padded, and wait for every PUBACK."""
    producer = Producer(broker, topic, topic, count=first + count, padding=400)
    producer.sent = first
    producer.start()
    producer.join(60.0)
    assert producer.error is None
    assert len(producer.acked) == count


def shrink(broker: BrokerProcess) -> None:
    """Go on until the journal has none of what was published before: others publish, so segments come to their ends,
    and snapshots are due."""
    begin = figure(broker, "journal_high_watermark")

    def is_gone() -> bool:
        deliver(broker, "none", 0, 50)
        return figure(broker, "journal_start_offset") >= begin

    wait_until(is_gone, "the journal begins behind it", 30.0)


def numbers_of(broker: BrokerProcess, client_id: str, count: int) -> list[int]:
    """The numbers that wait for a client, in the order in which they come."""
    found = []
    with RawClient(broker.address, client_id) as client:
        client.connect(clean=False)
        for _ in range(count):
            payload = client.receive(20.0).payload
            found.append(int(payload.partition(b":")[2]))
        client.disconnect()
    return found


def read_all(broker: BrokerProcess, client_id: str, producers: list[Producer]) -> Ledger:
    consumer = Consumer(broker, client_id, "load/#", 1, resume=True)
    consumer.start()
    consumer.finish(producers)
    assert consumer.sessions_lost == 0
    return consumer.ledger


def shown(broker: BrokerProcess, client_id: str) -> dict[str, object]:
    """What `session show` says of a client."""
    ran = headrace("session", "show", client_id, "--data-dir", str(broker.data_dir))
    assert ran.returncode == 0, ran.stderr
    found: dict[str, object] = json.loads(ran.stdout)
    return found


def test_a_client_that_was_away_gets_a_thousand_messages_in_order(
    brokers: Brokers, servers: RedisServers
) -> None:
    """The journal is let go of them, so they come from the store; then nothing of them stays there."""
    server = servers.single()
    broker = brokers(stored_in(server)).start()
    subscribe_and_leave(broker, "away", "t/#")
    deliver(broker, "t/a", 0, 1_000)
    wait_until(lambda: figure(broker, "store_let_go_total") >= 1_000, "let go of by the journal", 30.0)
    shrink(broker)
    broker.restart()  # else the newest messages are in memory
    assert numbers_of(broker, "away", 1_000) == list(range(1_000))
    assert figure(broker, "store_read_total") >= 1_000
    assert figure(broker, "store_forgotten_total") == 0
    wait_until(lambda: not server.ask("KEYS", "headrace:*:*:*:*"), "nothing of it is left in the store", 20.0)


def test_a_broker_that_is_killed_goes_on_with_what_only_the_store_has(
    brokers: Brokers, servers: RedisServers
) -> None:
    server = servers.single()
    broker = brokers(stored_in(server)).start()
    subscribe_and_leave(broker, "away", "t/#")
    deliver(broker, "t/a", 0, 500)
    wait_until(lambda: figure(broker, "store_let_go_total") >= 500, "let go of by the journal", 30.0)
    shrink(broker)
    broker.crash()
    deliver(broker, "t/a", 500, 100)
    broker.kill()
    about = shown(broker, "away")
    assert (about["backlog_in"], about["in_store_alone"]) == ("store", 500)
    broker.start()
    assert numbers_of(broker, "away", 600) == list(range(600))
    assert figure(broker, "store_read_total") >= 500
    assert figure(broker, "store_forgotten_total") == 0


@pytest.mark.parametrize("disk", ["yes", "no"])
def test_a_redis_that_is_killed_under_load_loses_nothing_acknowledged(
    brokers: Brokers, servers: RedisServers, disk: str
) -> None:
    """One without an append-only file comes back empty: it is never believed, so the journal kept everything."""
    server = servers.single("--appendonly", disk)
    broker = brokers(stored_in(server)).start()
    subscribe_and_leave(broker, "away", "load/#")
    producers = [Producer(broker, f"p{n}", f"load/{n}", rate=600, padding=64) for n in range(2)]
    for producer in producers:
        producer.start()
    for kills in range(1, 4):
        for producer in producers:
            producer.wait_acked(len(producer.acked) + 1_000)
        server.kill()
        for producer in producers:
            producer.wait_acked(len(producer.acked) + 200)
        assert figure(broker, "store_usable") == 0, kills
        server.start()
        wait_until(lambda: figure(broker, "store_usable") == 1, "the store is used again", 20.0)
    if disk == "yes":
        wait_until(lambda: figure(broker, "store_let_go_total") > 0, "let go of by the journal", 30.0)
    for producer in producers:
        producer.finish()
    for producer in producers:
        producer.join(30.0)
        assert producer.error is None
    ledger = read_all(broker, "away", producers)
    assert ledger.missing(producers) == {}
    assert ledger.faults(producers) == []
    assert figure(broker, "store_forgotten_total") == 0
    if disk == "no":
        assert figure(broker, "store_let_go_total") == 0
        assert "degraded: " in broker.get("/readyz").body
        assert "the journal keeps everything: no append-only file" in broker.get("/readyz").body


def test_broker_and_redis_are_killed_in_turns_while_a_client_comes_and_goes(
    brokers: Brokers, servers: RedisServers
) -> None:
    """What was acknowledged comes, in order, from wherever it lies by then; repeats carry DUP."""
    server = servers.single()
    broker = brokers(stored_in(server)).start()
    subscribe_and_leave(broker, "away", "load/#")
    producers = [Producer(broker, f"p{n}", f"load/{n}", rate=500, padding=200) for n in range(2)]
    for producer in producers:
        producer.start()
    seen: list[bytes] = []
    for turn in range(6):
        wait_until(lambda: figure(broker, "store_let_go_total") > 0, "let go of by the journal", 30.0)
        for producer in producers:
            producer.wait_acked(len(producer.acked) + 300)
        if turn % 2:
            broker.crash()
        else:
            server.kill()
            server.start()
        with RawClient(broker.address, "away") as client:
            client.connect(clean=False)
            seen += [client.receive(20.0).payload for _ in range(200)]
    for producer in producers:
        producer.finish()
    for producer in producers:
        producer.join(30.0)
        assert producer.error is None
    ledger = read_all(broker, "away", producers)
    told = {(one.source, one.number) for one in ledger.arrivals}
    told |= {
        (source.decode(), int(number)) for source, _, number in (p.strip().partition(b":") for p in seen)
    }
    missing = {(one.name, number) for one in producers for number in one.acked} - told
    assert missing == set()
    assert ledger.faults(producers) == []
    assert figure(broker, "store_forgotten_total") == 0


def test_a_redis_that_is_not_there_costs_nothing_but_is_said(brokers: Brokers, servers: RedisServers) -> None:
    """Away at the start and in the middle: the journal is the queue, and the store gets what waits when it is there."""
    server = servers.single()
    server.kill()
    broker = brokers(stored_in(server)).start()
    ready = broker.get("/readyz")
    assert ready.status == 200
    assert ready.body.startswith(f"ready, degraded: redis://{server.place}: ")
    subscribe_and_leave(broker, "away", "t/#")
    deliver(broker, "t/a", 0, 300)
    server.start()
    wait_until(lambda: figure(broker, "store_let_go_total") >= 300, "let go of by the journal", 30.0)
    assert broker.get("/readyz").body == "ready\n"
    server.kill()
    deliver(broker, "t/a", 300, 300)
    wait_until(lambda: "degraded" in broker.get("/readyz").body, "degraded again", 20.0)
    server.start()
    wait_until(lambda: figure(broker, "store_let_go_total") >= 600, "let go of by the journal", 30.0)
    assert numbers_of(broker, "away", 600) == list(range(600))
    assert figure(broker, "store_forgotten_total") == 0


def test_what_a_store_was_wiped_of_is_counted_and_the_rest_comes(
    brokers: Brokers, servers: RedisServers
) -> None:
    server = servers.single()
    broker = brokers(stored_in(server)).start()
    subscribe_and_leave(broker, "away", "t/#")
    deliver(broker, "t/a", 0, 300)
    wait_until(lambda: figure(broker, "store_let_go_total") >= 300, "let go of by the journal", 30.0)
    shrink(broker)
    server.ask("FLUSHALL")
    broker.restart()  # else the newest messages are in memory
    deliver(broker, "t/a", 300, 50)
    assert numbers_of(broker, "away", 50) == list(range(300, 350))
    assert figure(broker, "store_forgotten_total") == 300
    dropped = {key: value for key, value in broker.metrics().items() if 'reason="store_forgot"' in key}
    assert sum(dropped.values()) == 300


def test_each_worker_has_its_own_connection_and_its_own_queues(
    brokers: Brokers, servers: RedisServers
) -> None:
    server = servers.single()
    broker = brokers(stored_in(server, workers=2, shards=4)).start()
    names = [f"away{number}" for number in range(8)]  # at home in several shards
    for name in names:
        subscribe_and_leave(broker, name, "t/#")
    deliver(broker, "t/a", 0, 200)
    wait_until(lambda: figure(broker, "store_let_go_total") >= 8 * 200, "let go of by the journals", 30.0)
    broker.crash()
    for name in names:
        assert numbers_of(broker, name, 200) == list(range(200))
    server.kill()
    wait_until(lambda: "degraded: redis://" in broker.get("/readyz").body, "degraded", 20.0)


def test_a_store_that_has_something_cannot_be_left_out_of_the_configuration(
    brokers: Brokers, servers: RedisServers, tmp_path: Path
) -> None:
    server = servers.single()
    broker = brokers(stored_in(server)).start()
    subscribe_and_leave(broker, "away", "t/#")
    deliver(broker, "t/a", 0, 100)
    wait_until(lambda: figure(broker, "store_let_go_total") >= 100, "let go of by the journal", 30.0)
    broker.stop()
    address = broker.settings.pop("queues.device")
    with pytest.raises(BrokerExitedError) as refused:
        broker.start()
    assert refused.value.code == 2
    assert "queues.device: " in refused.value.stderr
    divided = headrace(
        "reshard", "--data-dir", str(broker.data_dir), "--to", str(tmp_path / "new"), "--shards", "2"
    )
    assert divided.returncode == 1
    assert "in a store alone" in divided.stderr
    broker.settings["queues.device"] = address
    broker.start()
    assert numbers_of(broker, "away", 100) == list(range(100))
    broker.stop()
    del broker.settings["queues.device"]
    broker.start()  # nothing lies there any more


@pytest.mark.parametrize("more", [{}, {"workers": 2, "shards": 4}])
def test_a_redis_that_has_moved_keeps_its_name(
    brokers: Brokers, servers: RedisServers, more: dict[str, object]
) -> None:
    """At another address it is another store, and a start that would lose what the first one has is refused."""
    server = servers.single()
    broker = brokers(stored_in(server) | more).start()
    subscribe_and_leave(broker, "away", "t/#")
    deliver(broker, "t/a", 0, 100)
    wait_until(lambda: figure(broker, "store_let_go_total") >= 100, "let go of by the journal", 30.0)
    broker.stop()
    moved = f"redis://localhost:{server.port}"
    broker.settings["queues.device"] = moved
    with pytest.raises(BrokerExitedError) as refused:
        broker.start()
    assert refused.value.code == 2
    assert "queues.device: " in refused.value.stderr
    broker.settings["queues.device"] = f"{moved}?name={server.place}/0%3Fprefix%3Dheadrace"
    broker.start()
    assert numbers_of(broker, "away", 100) == list(range(100))
    assert figure(broker, "store_forgotten_total") == 0


def test_a_running_broker_says_which_store_a_backlog_lies_in(
    brokers: Brokers, servers: RedisServers, tmp_path: Path
) -> None:
    server = servers.single()
    token = tmp_path / "token"
    token.write_text("secret\n", encoding="utf-8")
    broker = brokers(stored_in(server) | {"journal.token_file": token}).start()

    def found() -> tuple[object, object, object]:
        where = ("--admin", f"http://127.0.0.1:{broker.admin_port}", "--token-file", str(token))
        ran = headrace("session", "show", "away", *where)
        assert ran.returncode == 0, ran.stderr
        about = json.loads(ran.stdout)
        return about["backlog_in"], about["in_store"], about["in_store_alone"]

    subscribe_and_leave(broker, "away", "t/#")
    assert found() == ("journal", 0, 0)
    deliver(broker, "t/a", 0, 50)
    wait_until(lambda: figure(broker, "store_let_go_total") >= 50, "let go of by the journal", 30.0)
    assert found() == (f"redis://{server.place}", 50, 50)
    assert numbers_of(broker, "away", 50) == list(range(50))
    wait_until(lambda: found() == ("journal", 0, 0), "nothing lies there any more", 30.0)


def test_rules_place_queues_by_client_and_a_password_comes_from_a_file(
    brokers: Brokers, servers: RedisServers, tmp_path: Path
) -> None:
    one, other = servers.single(), servers.single("--requirepass", "s3cret")
    other.password = "s3cret"
    (tmp_path / "password").write_text("s3cret\n", encoding="utf-8")
    address = f"redis://{other.place}?password_file={tmp_path / 'password'}"
    rules = f'[{{store = "{address}", clients = "meter-*"}}, {{store = "journal", clients = "quiet"}}]'
    broker = brokers(stored_in(one) | {"queues.rules": rules}).start()
    for name in ("away", "meter-1", "quiet"):
        subscribe_and_leave(broker, name, "t/#")
    deliver(broker, "t/a", 0, 100)
    wait_until(lambda: figure(broker, "store_let_go_total") >= 200, "let go of by the journal", 30.0)
    assert len(one.ask("KEYS", "headrace:{default/away}:*:*:*")) == 1
    assert len(other.ask("KEYS", "headrace:{default/meter-1}:*:*:*")) == 1
    assert one.ask("KEYS", "*quiet*") == other.ask("KEYS", "*quiet*") == []
    broker.crash()
    for name in ("away", "meter-1", "quiet"):
        assert numbers_of(broker, name, 100) == list(range(100))


def test_whoever_keeps_up_costs_the_store_nothing(brokers: Brokers, servers: RedisServers) -> None:
    server = servers.single()
    broker = brokers(stored_in(server)).start()
    wait_until(lambda: figure(broker, "store_usable") == 1, "the store is used", 20.0)
    with RawClient(broker.address, "there") as client:
        client.connect(clean=False)
        client.subscribe("t/#", qos=1)
        producer = Producer(broker, "t/a", "t/a", count=2_000, padding=64)
        producer.start()
        for _ in range(2_000):
            client.receive()
        producer.join(30.0)
        assert figure(broker, "store_put_total") == 0
    about = server.ask("INFO", "commandstats").decode()
    for command in ("xadd", "xrange", "xinfo", "hset", "unlink"):
        assert f"cmdstat_{command}:" not in about


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("queues.device", "kafka://127.0.0.1:9092"),
        ("queues.device", "memory"),
        ("queues.application", "hbase://127.0.0.1"),
        ("queues.application", "redis://h:port"),
        ("queues.window_s", "-1"),
        ("queues.rules", '[{store = "kafka://127.0.0.1:9092", tenant = "t"}]'),
        ("queues.rules", '[{store = "journal"}]'),
        ("queues.rules", '[{store = "journal", type = "gadget"}]'),
        ("queues.rules", '[{tenant = "t"}]'),
    ],
)
def test_what_is_no_store_is_refused_with_its_key(key: str, value: str) -> None:
    ran = headrace("config", "show", "--set", f"{key}={value}")
    assert ran.returncode == 2
    assert key in ran.stderr


def test_many_clients_that_wait_for_a_store_go_on_together_when_it_is_back(
    brokers: Brokers, servers: RedisServers
) -> None:
    """What they wait for is in the store alone, and they came while it was away."""
    server = servers.single()
    broker = brokers(stored_in(server)).start()
    names = [f"away{number}" for number in range(100)]
    for name in names:
        subscribe_and_leave(broker, name, "t/#")
    deliver(broker, "t/a", 0, 20)
    wait_until(lambda: figure(broker, "store_let_go_total") >= 20 * len(names), "let go of", 60.0)
    shrink(broker)
    server.kill()
    broker.restart()  # else the newest messages are in memory
    clients = [RawClient(broker.address, name) for name in names]
    try:
        for client in clients:
            client.connect(clean=False)
        server.start()
        wait_until(lambda: figure(broker, "store_usable") == 1, "the store is used again", 20.0)
        began_s = time.monotonic()
        for client in clients:
            assert [int(client.receive(20.0).payload.partition(b":")[2]) for _ in range(20)] == list(
                range(20)
            )
        assert time.monotonic() - began_s < 20.0, "eight in five seconds would be a minute"
    finally:
        for client in clients:
            client.close()
    assert figure(broker, "store_forgotten_total") == 0
