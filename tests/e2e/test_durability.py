"""P1, watched from below: a shim under the broker's libc makes fdatasync slow, or makes it fail.

kill -9 leaves the page cache alone, so it cannot tell an acknowledgement that waited for the disk from one that only
waited for write().  This can.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from broker_process import BrokerProcess
from e2e.raw import ClosedError, RawClient
from e2e.wire import (
    CONNACK,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SESSION_EXPIRY,
    connect_packet,
)

Clients = Callable[..., RawClient]
Brokers = Callable[..., BrokerProcess]
DELAY_S = 0.3

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* A file named by SHIM_FAIL: while it exists, syncs fail.  A file named by SHIM_SLOW: while it exists, they take long. */
static int sync_with(const char *name, int fd) {
    const char *fail = getenv("SHIM_FAIL"), *slow = getenv("SHIM_SLOW");
    if (fail && access(fail, F_OK) == 0) { errno = EIO; return -1; }
    if (slow && access(slow, F_OK) == 0) {
        struct timespec delay = {0, 300 * 1000 * 1000};
        nanosleep(&delay, NULL);
    }
    int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    return next(fd);
}
int fdatasync(int fd) { return sync_with("fdatasync", fd); }
int fsync(int fd) { return sync_with("fsync", fd); }
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("shim")
    (folder / "shim.c").write_text(SHIM)
    command = [
        compiler,
        "-shared",
        "-fPIC",
        "-O1",
        "-o",
        str(folder / "shim.so"),
        str(folder / "shim.c"),
        "-ldl",
    ]
    subprocess.run(command, check=True)
    return folder / "shim.so"


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    return tmp_path / "slow"


@pytest.fixture
def fail(tmp_path: Path) -> Path:
    return tmp_path / "fail"


@pytest.fixture
def make(brokers: Brokers, shim: Path, slow: Path, fail: Path) -> Brokers:
    def make_broker(settings: dict[str, object] | None = None) -> BrokerProcess:
        environment = {"LD_PRELOAD": str(shim), "SHIM_FAIL": str(fail), "SHIM_SLOW": str(slow)}
        return brokers(settings, environment=environment).start()

    return make_broker


def took(action: Callable[[], object]) -> float:
    began = time.monotonic()
    action()
    return time.monotonic() - began


@pytest.mark.parametrize("durability", ["fsync", "os", "none"])
def test_what_waits_for_the_disk(make: Brokers, clients: Clients, slow: Path, durability: str) -> None:
    """Decision 10, one by one: with `fsync` each of these waits for a sync, with the others none does."""
    broker = make({"durability": durability})
    persistent = clients(broker, "persistent", clean=False)
    persistent.subscribe("q2", qos=2)
    transient = clients(broker, "transient")
    slow.touch()

    def connect(clean: bool) -> None:
        client = clients(broker, f"connect-{clean}", connect=False)
        client.connect(clean=clean)
        assert client.connack.kind == CONNACK

    def publish(kind: int, qos: int) -> None:
        persistent.publish("t", b"x", qos, packet_id=40 + qos)
        persistent.expect_ack(kind, 40 + qos)

    def release() -> None:
        persistent.ack(PUBREL, 42)
        persistent.expect_ack(PUBCOMP, 42)

    waited = {
        "CONNACK": took(lambda: connect(clean=False)),
        "PUBACK": took(lambda: publish(PUBACK, 1)),
        "PUBREC": took(lambda: publish(PUBREC, 2)),
        "PUBCOMP": took(release),
        "SUBACK": took(lambda: persistent.subscribe("other", qos=1)),
        "UNSUBACK": took(lambda: persistent.unsubscribe("other")),
    }
    transient.deliver("q2", b"x", 2)
    found = persistent.expect(PUBLISH)
    persistent.ping()
    persistent.ack(PUBREC, found.packet_id)
    waited["PUBREL"] = took(lambda: persistent.expect_ack(PUBREL, found.packet_id))
    if durability == "fsync":
        assert {name: seconds for name, seconds in waited.items() if seconds < DELAY_S} == {}
    else:
        assert {name: seconds for name, seconds in waited.items() if seconds > DELAY_S} == {}
    slow.unlink()


def test_what_does_not_wait(make: Brokers, clients: Clients, slow: Path) -> None:
    """QoS 0, PINGRESP and CONNACK of a transient session owe nothing to the disk."""
    broker = make()
    one, two = clients(broker, "one"), clients(broker, "two")
    two.subscribe("t", qos=0)
    two.ping()
    slow.touch()
    one.publish("t", b"x", 0)
    assert took(two.receive) < DELAY_S
    assert took(two.ping) < DELAY_S
    assert took(lambda: clients(broker, "three")) < DELAY_S
    slow.unlink()


def test_no_delivery_before_durable(make: Brokers, clients: Clients, slow: Path) -> None:
    """A subscriber must never see a QoS 1 message that a crash could still take back."""
    broker = make()
    publisher, subscriber = clients(broker), clients(broker, "s", clean=False)
    subscriber.subscribe("t", qos=1)
    publisher.deliver("t", b"first")  # raises the session's limit
    subscriber.receive()
    slow.touch()
    publisher.publish("t", b"x", 1)
    assert took(subscriber.receive) > DELAY_S * 0.9
    slow.unlink()


def test_a_group_of_publishers_shares_a_sync(make: Brokers, clients: Clients, slow: Path) -> None:
    """Group commit: thirty publishers, each with one message, are done in a few syncs, not in thirty."""
    broker = make()
    publishers = [clients(broker) for _ in range(30)]
    slow.touch()
    began = time.monotonic()
    for publisher in publishers:
        publisher.publish("t", b"x", 1)
    for publisher in publishers:
        publisher.expect(PUBACK)
    assert time.monotonic() - began < 5 * DELAY_S
    slow.unlink()


def test_a_failed_sync_acknowledges_nothing_more(make: Brokers, clients: Clients, fail: Path) -> None:
    """Decision 21: no PUBACK, the process ends with a failure, and the next start has all that was acknowledged."""
    broker = make()
    away = clients(broker, "away", clean=False)
    away.subscribe("t", qos=1)
    away.disconnect()
    publisher = clients(broker)
    publisher.deliver_many("t", range(50))
    fail.touch()
    publisher.publish("t", b"50", 1)
    assert publisher.read_to_end() == [], "an answer after a failed sync"
    assert broker.wait(20) != 0
    assert any("error" in line.lower() for line in broker.lines)
    broker.end()
    fail.unlink()
    broker.start()
    away = clients(broker, "away", clean=False)
    away.subscribe("end", qos=1)
    away.deliver("end", b"")
    found: list[int] = []
    while (packet := away.receive()).topic != "end":
        found.append(int(packet.payload))
    assert found in (list(range(50)), list(range(51)))  # what was not acknowledged may be there


def test_nobody_is_let_in_while_syncs_fail(make: Brokers, clients: Clients, fail: Path) -> None:
    broker = make()
    client = clients(broker, "s", connect=False)
    fail.touch()
    with pytest.raises(ClosedError):
        client.connect(clean=False)
    assert broker.wait(20) != 0
    broker.end()
    fail.unlink()


def test_the_banner_says_what_an_acknowledgement_means(brokers: Brokers) -> None:
    for durability in ("fsync", "os", "none"):
        broker = brokers({"durability": durability}).start()
        assert durability in broker.stderr
        broker.stop()


def test_a_subscription_counts_from_its_suback(make: Brokers, clients: Clients, slow: Path) -> None:
    """SUBACK sent means: kept over kill -9."""
    broker = make()
    client = clients(broker, "s", clean=False)
    slow.touch()
    client.subscribe("t", qos=1)
    assert client.connack.kind == CONNACK
    broker.kill()
    slow.unlink()
    broker.start()
    clients(broker).deliver("t", b"x")
    assert clients(broker, "s", clean=False).receive().payload == b"x"


def test_sigterm_before_connack(make: Brokers, clients: Clients, slow: Path) -> None:
    """A stop while CONNACK still waits for the disk: no DISCONNECT to who is not connected [MQTT-3.14.0-1]."""
    broker = make()
    client = clients(broker, "s", 5, connect=False)
    slow.touch()
    properties = {SESSION_EXPIRY: 600}
    client.send(connect_packet("s", version=5, clean=False, properties=properties))
    probe = clients(broker)  # a transient session waits for nothing: so CONNECT was read as well
    assert broker.process is not None
    broker.process.send_signal(signal.SIGTERM)
    answers = client.read_to_end()
    assert not answers or answers[0].kind == CONNACK, str(answers[0])
    assert broker.wait() == 0
    probe.close()
