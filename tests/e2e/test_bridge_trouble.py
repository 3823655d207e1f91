"""Bridges that are refused, that go in circles, or whose remote broker is somebody else."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from broker_process import BrokerProcess, MosquittoProcess, free_port, headrace, wait_until
from certificates import Authority
from e2e.bridging import bridge, configure, listen, receive, toml, topic, wait_metric, wait_up
from e2e.raw import RawClient
from e2e.remote_broker import RemoteBroker
from e2e.wire import USER_PROPERTY

Brokers = Callable[..., BrokerProcess]
FAILURES = 'headrace_bridge_failures_total{bridge="b"}'


def deliver(broker: BrokerProcess, name: str, payload: str, qos: int = 1) -> None:
    with RawClient(broker.address, f"to-{name.replace('/', '-')}", 5) as client:
        client.connect()
        client.deliver(name, payload, qos)


def wait_failed(broker: BrokerProcess, times: int = 1) -> None:
    until = time.monotonic() + 60
    while broker.metrics()[FAILURES] < times:
        assert time.monotonic() < until, broker.stderr
        time.sleep(0.02)


@pytest.mark.parametrize("scheme", ["tls", "wss", pytest.param("ws", marks=pytest.mark.slow)])
def test_over_tls_and_websocket(brokers: Brokers, tmp_path: Path, scheme: str) -> None:
    """A certificate of an authority of our own, and one of ours that the remote broker asks for."""
    authority = Authority(tmp_path / "ca")
    server, ours = authority.issue("localhost"), authority.issue("bridge")
    port = free_port()
    remote = brokers(
        {
            "tls.certificate": server[0],
            "tls.key": server[1],
            "tls.ca": authority.ca,
            "tls.client_certificate": "require",
        }
    )
    remote.extra = ["--listen", f"{scheme}://127.0.0.1:{port}"]
    remote.start()
    tls = {"ca": str(authority.ca), "certificate": str(ours[0]), "key": str(ours[1])}
    own = brokers()
    extra = {} if scheme == "ws" else {"tls": tls}
    configure(own, bridge(remote, topic("t/#", "both"), addresses=[f"{scheme}://localhost:{port}"], **extra))
    own.start()
    wait_up(own)
    with listen(remote, "t/#") as there, listen(own, "t/#") as here:
        deliver(own, "t/out", "x" * 100_000, 2)
        deliver(remote, "t/in", "y" * 100_000, 2)
        assert {len(receive(there).payload) for _ in range(2)} == {100_000}
        assert {receive(here).topic for _ in range(2)} == {"t/out", "t/in"}


@pytest.mark.mosquitto
def test_a_wrong_certificate_is_said_once_and_put_right_without_a_restart(
    brokers: Brokers, tmp_path: Path
) -> None:
    authority, stranger = Authority(tmp_path / "ca"), Authority(tmp_path / "stranger", "stranger")
    certificate, key = authority.issue("localhost")
    port = free_port()
    lines = [f"listener {port} 127.0.0.1", f"certfile {certificate}", f"keyfile {key}"]
    remote = MosquittoProcess(tmp_path / "mosquitto", extra=lines)
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(stranger.ca.read_bytes())
    own = brokers()
    rules = [topic("t/#", "out")]
    configure(own, bridge(remote, *rules, addresses=[f"tls://localhost:{port}"], tls={"ca": str(trusted)}))
    try:
        remote.start()
        own.start()
        wait_failed(own, 5)
        assert len(re.findall("bridge cannot connect.*certificate verify failed", own.stderr)) == 1
        deliver(own, "t/x", "kept")
        with listen(remote, "t/#") as there:
            trusted.write_bytes(authority.ca.read_bytes())
            assert receive(there).payload == b"kept"
    finally:
        remote.end()


def test_insecure_takes_any_certificate(brokers: Brokers, tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path / "ca").issue("elsewhere")
    port = free_port()
    remote = brokers({"tls.certificate": certificate, "tls.key": key})
    remote.extra = ["--listen", f"tls://127.0.0.1:{port}"]
    remote.start()
    own = brokers()
    address = [f"tls://127.0.0.1:{port}"]
    configure(own, bridge(remote, topic("t", "out"), addresses=address, tls={"insecure": True}))
    own.start()
    wait_up(own)


@pytest.mark.parametrize("version", ["5.0", pytest.param("3.1.1", marks=pytest.mark.slow)])
def test_a_wrong_password_hurts_nobody_here(brokers: Brokers, tmp_path: Path, version: str) -> None:
    passwords = tmp_path / "passwords"
    assert headrace("passwd", "-b", "right", str(passwords), "ada").returncode == 0
    remote = brokers({"access.password_file": passwords}).start()
    secret = tmp_path / "secret"
    secret.write_text("wrong\n")
    own = brokers()
    rules = [topic("t/#", "out")]
    configure(own, bridge(remote, *rules, username="ada", password_file=str(secret), version=version))
    own.start()
    with listen(own, "t/#") as here:
        wait_failed(own, 3)
        deliver(own, "t/x", "kept")
        assert receive(here).payload == b"kept"
    assert len(re.findall("bridge cannot connect.*(user name|not authorized)", own.stderr, re.I)) == 1
    with listen(own, "$SYS/broker/connection/b/state") as state:
        assert receive(state).payload == b"0"
        secret.write_text("right\n")
        assert receive(state).payload == b"1"
    wait_metric(own, 'headrace_bridge_backlog_messages{bridge="b"}', 0)


def test_two_brokers_bridged_both_ways_by_both_do_not_circulate(brokers: Brokers) -> None:
    """Two bridges are two ways: a message may come by either, and come home once, but no further."""
    one, other = brokers(), brokers()
    configure(one, bridge(other, topic("#", "both")))
    configure(other, bridge(one, topic("#", "both")))
    one.start()
    other.start()
    wait_up(one)
    wait_up(other)
    with listen(one, "t/#") as first, listen(other, "t/#", client_id="second") as second:
        for number in range(20):
            deliver(one, "t/x", f"{number}", 2)
        deliver(other, "t/end", "", 2)
        for client in (first, second):
            seen: Counter[str] = Counter()
            while seen["t/end "] < 2 or sum(seen.values()) < 42:
                packet = receive(client)
                seen[f"{packet.topic} {packet.payload.decode()}"] += 1
            assert set(seen.values()) == {2}
            client.expect_nothing(1.0)


@pytest.mark.slow
def test_a_ring_of_three_does_not_circulate(brokers: Brokers) -> None:
    ring = [brokers(), brokers(), brokers()]
    for at, broker in enumerate(ring):
        configure(broker, bridge(ring[(at + 1) % 3], topic("t/#", "out")))
    for broker in ring:
        broker.start()
    for broker in ring:
        wait_up(broker)
    listeners = [listen(broker, "t/#") for broker in ring]
    for number in range(10):
        deliver(ring[0], "t/x", f"{number}", 2)
    deliver(ring[0], "t/end", "end", 2)
    for client in listeners:
        with client:
            found = [receive(client).payload for _ in range(11)]
            assert found == [*(b"%d" % number for number in range(10)), b"end"]
    for broker in ring:
        assert broker.metrics()['headrace_bridge_backlog_messages{bridge="b"}'] == 0


def to_remote(remote: RemoteBroker, *topics: dict[str, object]) -> dict[str, object]:
    address = f"tcp://127.0.0.1:{remote.port}"
    return {"name": "b", "addresses": [address], "topics": list(topics), "notifications": "local"}


def test_odd_retained_topics_of_the_remote_broker_cost_themselves_alone(brokers: Brokers) -> None:
    odd = ["in/\x01", "in/\ufffe", "in/\x9f"]
    greets = [("in/a", "1"), *((name, "odd") for name in odd), ("in/b", "2")]
    broker = brokers()
    with RemoteBroker([(name.encode(), payload.encode()) for name, payload in greets]) as remote:
        configure(broker, to_remote(remote, topic("in/#", "in", 1)))
        broker.start()
        wait_up(broker)
        wait_metric(broker, 'headrace_bridge_odd_total{bridge="b"}', 3)
        with listen(broker, "in/#") as client:
            assert sorted(receive(client).payload for _ in range(2)) == [b"1", b"2"]
        assert remote.connections == 1
        for name in odd:
            assert f"{name!a}" in broker.stderr.replace("\\\\", "\\"), broker.stderr


def test_a_topic_that_must_end_the_connection_is_named_in_the_log(brokers: Brokers) -> None:
    broker = brokers()
    with RemoteBroker([(b"in/a", b"1"), (b"in/+/wild", b"2")]) as remote:
        configure(broker, to_remote(remote, topic("in/#", "in", 1)))
        broker.start()
        wait_until(lambda: "'in/+/wild'" in broker.stderr, "the log names the topic", deadline_s=60)


def test_a_message_at_which_the_remote_broker_closes_does_not_stop_the_others(brokers: Brokers) -> None:
    broker = brokers()
    with RemoteBroker([], poison=b"/bad") as remote:
        configure(broker, to_remote(remote, topic("out/#", "out", 1)))
        broker.start()
        for name in ("out/1", "out/bad", "out/2"):
            deliver(broker, name, name)
        wait_until(
            lambda: (b"out/2", b"out/2") in remote.received, "what is behind it arrives", deadline_s=60
        )
        assert b"out/bad" not in [name for name, _ in remote.received]
        dropped = 'headrace_bridge_dropped_messages_total{bridge="b",reason="refused_by_client"}'
        wait_metric(broker, dropped, 1)
        assert "'out/bad'" in broker.stderr


def of_producer(sequence: int) -> dict[int, object]:
    return {USER_PROPERTY: [("producer-id", "p"), ("producer-sequence", str(sequence))]}


@pytest.mark.parametrize("qos", [1, 2])
def test_devices_with_the_same_producer_id_cross_a_chain_of_bridges(brokers: Brokers, qos: int) -> None:
    """Two devices count 1 to 3, one of a third says 2^62, all as producer `p`: all that is acknowledged arrives, at a
    broker whose own clients count there too."""
    chain = [brokers(), brokers(), brokers()]
    for at, broker in enumerate(chain[:2]):
        configure(broker, bridge(chain[at + 1], topic("t/#", "out")))
    for broker in chain:
        broker.start()
    for broker in chain[:2]:
        wait_up(broker)
    deliver(chain[2], "t/x", "before", qos)
    with listen(chain[2], "t/#") as client:
        for device, sequences in (("a", (1, 2, 3, 3)), ("broken", (1 << 62,)), ("b", (1, 2, 2, 3))):
            with RawClient(chain[0].address, device, version=5) as publisher:
                publisher.connect()
                for sequence in sequences:
                    properties = of_producer(sequence)
                    publisher.deliver("t/x", f"{device}{sequence}", qos, properties=properties)
        deliver(chain[0], "t/x", "end", qos)
        found = [receive(client) for _ in range(8)]
    wanted = ["a1", "a2", "a3", f"broken{1 << 62}", "b1", "b2", "b3", "end"]
    assert [packet.payload.decode() for packet in found] == wanted
    for packet in found:
        assert not any(name.startswith("producer-") for name, _ in packet.properties[USER_PROPERTY])


def test_the_next_address_is_tried(brokers: Brokers) -> None:
    remote, own = brokers().start(), brokers()
    nobody = f"tcp://127.0.0.1:{free_port()}"
    configure(own, bridge(remote, topic("t", "out"), addresses=[nobody, f"tcp://127.0.0.1:{remote.port}"]))
    own.start()
    wait_up(own)


def test_the_remote_broker_hears_of_the_state(brokers: Brokers) -> None:
    remote, own = brokers().start(), brokers()
    configure(own, bridge(remote, topic("t", "out"), client_id="us"))
    own.start()
    with listen(remote, "$SYS/broker/connection/us/state") as state:
        assert receive(state).payload == b"1"
        own.stop()
        assert receive(state).payload == b"0"
        own.start()
        assert receive(state).payload == b"1"
        own.kill()
        assert receive(state).payload == b"0"  # the Will


@pytest.mark.parametrize(
    ("entry", "key"),
    [
        ({"name": "b"}, "bridge[0].addresses"),
        (
            {"name": "b", "addresses": ["tcp://h"], "topics": [topic("a/#/b", "out")]},
            "bridge[0].topics[0].pattern",
        ),
    ],
)
def test_a_bad_bridge_ends_with_2_and_names_the_key(
    tmp_path: Path, entry: dict[str, object], key: str
) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(f"bridge = {toml([entry])}\n")
    for command in ("serve", "config"):
        found = headrace(command, *(["check"] if command == "config" else []), "--config", str(file))
        assert (found.returncode, key in found.stderr) == (2, True), found.stderr


def test_a_bridge_that_is_gone_from_the_configuration_says_what_it_leaves(brokers: Brokers) -> None:
    remote, own = brokers(), brokers()
    configure(own, bridge(remote, topic("t", "out")))
    own.start()
    deliver(own, "t", "kept")
    own.stop()
    kept, own.extra = own.extra, []
    own.start()
    own.wait_for_line("not configured any more")
    own.stop()
    own.extra = kept
    remote.start()
    with listen(remote, "t") as there:
        own.start()
        assert receive(there).payload == b"kept"


def test_an_address_that_nothing_can_resolve_is_said_and_the_broker_serves(brokers: Brokers) -> None:
    """A label of more than 63 characters is no OSError but a UnicodeError of the IDNA codec."""
    own = brokers()
    configure(
        own, {"name": "b", "addresses": [f"tcp://{'x' * 64}.example:1883"], "topics": [topic("t/#", "out")]}
    )
    own.start()
    wait_failed(own, 3)
    assert re.search(r"bridge cannot connect.*label", own.stderr)
    assert own.metrics()['headrace_bridge_up{bridge="b"}'] == 0
    deliver(own, "t/x", "kept")
    wait_metric(own, 'headrace_bridge_backlog_messages{bridge="b"}', 1)
    own.stop()
