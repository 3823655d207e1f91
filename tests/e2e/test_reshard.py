"""`headrace reshard`: all that a directory of one shard holds is in the shards of the new one, or it is refused."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker_process import BrokerProcess, free_port, headrace, make_broker
from e2e.device import Device
from e2e.raw import RawClient
from e2e.wire import (
    NEVER,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    RECEIVE_MAXIMUM,
    SESSION_EXPIRY,
    USER_PROPERTY,
)
from headrace.core.homes import MEMBER_PREFIX, Homes
from headrace.data.building import built
from headrace.data.layout import Layout
from headrace.journal.consumers import ConsumerPosition
from headrace.journal.copying import Likeness
from headrace.journal.disk import DISK
from headrace.journal.errors import ShardedDirectory
from headrace.journal.lock import lock_data_dir
from headrace.journal.log import LogSettings, SegmentedLog
from headrace.journal.reader import JournalReader
from headrace.offline import resharding
from headrace.offline.resharding import MAKING
from headrace.services.sessions import details
from headrace.storage.embedded.recovery import folded

pytestmark = pytest.mark.slow

Brokers = Callable[..., BrokerProcess]
CLIENTS = [f"device-{n}" for n in range(24)]
SHARDS = 3
MEMBERS = [f"member-{n}" for n in range(5)]
GROUPS = ["red", "green", "blue", "white", "black"]
WORK = 40
RECEIVED = 7
ROUNDS = 20  # to the broker and back, in which something more would come
SETTINGS: dict[str, object] = {"journal.segment_bytes_max": 65536, "session.page_messages": 16}
PERSISTENT: dict[str, Any] = {"clean": False, "properties": {SESSION_EXPIRY: NEVER}}


def lines(data_dir: Path) -> list[str]:
    done = headrace("session", "dump", "--data-dir", str(data_dir))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def sessions(data_dir: Path) -> dict[str, dict[str, object]]:
    """Everything about each session, with what is in flight and how much waits, by client id."""
    return {found.client_id: dict(details(found)) for found in folded(data_dir).by_incarnation.values()}


def reshard(data_dir: Path, target: Path, shards: int = SHARDS) -> subprocess.CompletedProcess[str]:
    return headrace("reshard", "--data-dir", str(data_dir), "--to", str(target), "--shards", str(shards))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with backlogs of several pages, retained messages, wills, and QoS 2 in the middle."""
    broker = make_broker(tmp_path_factory.mktemp("filled"), SETTINGS).start()
    try:
        fill(broker)
        broker.stop()
    finally:
        broker.end()
    return broker.data_dir


@pytest.fixture
def old(brokers: Brokers, filled: Path) -> BrokerProcess:
    """A broker that has stopped, over a copy of that directory."""
    broker = brokers(SETTINGS)
    shutil.copytree(filled, broker.data_dir)
    return broker


def fill(broker: BrokerProcess) -> None:
    with RawClient(broker.address, "publisher", version=5) as publisher:
        publisher.connect(**PERSISTENT)
        for client_id in CLIENTS:
            with RawClient(broker.address, client_id, version=5) as client:
                client.connect(**PERSISTENT, will=(f"gone/{client_id}", b"bye"))
                client.subscribe(f"to/{client_id}", ("all", 2), qos=1)
                client.deliver(f"kept/{client_id}", b"state", 1, retain=True)
                client.disconnect()
        for client_id in MEMBERS:
            with RawClient(broker.address, client_id, version=5) as client:
                client.connect(**PERSISTENT)
                client.subscribe(*(f"$share/{group}/work" for group in GROUPS), qos=2)
                client.disconnect()
        for n in range(100):
            publisher.deliver(f"to/{CLIENTS[n % 5]}", b"%d " % n * 300, 1)
            publisher.deliver("all", b"all %d" % n, 2)
        with RawClient(broker.address, CLIENTS[0], version=5) as client:
            client.connect(**PERSISTENT)
            first = client.receive()
            client.ack(PUBREC if first.qos == 2 else PUBACK, first.packet_id)
            client.abort()
        with RawClient(broker.address, MEMBERS[0], version=5) as client:
            client.connect(clean=False, properties={SESSION_EXPIRY: NEVER, RECEIVE_MAXIMUM: 50})
            for n in range(WORK):
                publisher.deliver("work", b"work %d" % n, 2)
            for _ in range(RECEIVED):  # so they are this client's, and PUBREL is to come
                client.ack(PUBREC, client.expect(PUBLISH).packet_id)
            client.ping()
            client.abort()
        publisher.publish("half", b"QoS 2 without PUBREL", 2, packet_id=77)
        publisher.expect_ack(PUBREC, 77)


def test_everything_is_in_the_new_shards(old: BrokerProcess, tmp_path: Path) -> None:
    before = lines(old.data_dir)
    done = reshard(old.data_dir, tmp_path / "new")
    assert done.returncode == 0, done.stderr
    shards = [tmp_path / "new" / f"shard-{n}" for n in range(SHARDS)]
    own = (line for shard in shards for line in lines(shard))
    assert sorted(line for line in own if MEMBER_PREFIX not in line) == before
    found = [sessions(shard) for shard in shards]
    homes = Homes(SHARDS)
    for client_id, session in sessions(old.data_dir).items():
        assert found[homes.of_client("default", client_id)].pop(client_id) == session
    assert all(client_id.startswith(MEMBER_PREFIX) for shard in found for client_id in shard)
    assert lines(old.data_dir) == before
    was = JournalReader(old.data_dir)
    for shard in shards:
        reader = JournalReader(shard)
        assert reader.uuid != was.uuid
        assert reader.complete_offset() >= was.high_watermark()
    assert not (tmp_path / "new" / MAKING).exists()


def drained(broker: BrokerProcess, client_id: str) -> list[tuple[str, bytes, int, bool, int, str]]:
    """What a session gets up to the last message of `fill`: topic, payload, QoS, DUP, packet id, message id."""
    found = []
    with RawClient(broker.address, client_id, version=5) as client:
        asks = {SESSION_EXPIRY: NEVER, USER_PROPERTY: [("headrace-message-id", "")]}
        assert client.connect(clean=False, properties=asks).session_present
        done = False
        while not done:
            packet = client.read(60)
            if packet.kind == PUBREL:
                client.ack(PUBCOMP, packet.packet_id)
                continue
            properties = dict(packet.properties[USER_PROPERTY])
            row = (packet.topic, packet.payload, packet.qos, packet.dup, packet.packet_id)
            found.append((*row, properties["headrace-message-id"]))
            client.ack(PUBREC if packet.qos == 2 else PUBACK, packet.packet_id)
            done = packet.payload == b"all 99"
        rest = [packet for _ in range(ROUNDS) for packet in client.ping()]
        assert not [packet for packet in rest if packet.kind == PUBLISH]
        client.disconnect()
    return found


def test_sessions_go_on_where_they_were(old: BrokerProcess, brokers: Brokers, tmp_path: Path) -> None:
    new = brokers(SETTINGS)
    assert reshard(old.data_dir, new.data_dir).returncode == 0
    old.start()
    new.start()
    for client_id in CLIENTS[:6]:
        was = drained(old, client_id)
        assert len(was) >= 100
        assert drained(new, client_id) == was
    with RawClient(new.address, "publisher", version=5) as publisher:
        publisher.connect(**PERSISTENT)
        publisher.ack(PUBREL, 77)
        publisher.expect_ack(PUBCOMP, 77)
    new.restart()
    own = [client_id for client_id in sessions_of(new) if not client_id.startswith(MEMBER_PREFIX)]
    assert len(own) == len(CLIENTS) + len(MEMBERS) + 1


def sessions_of(broker: BrokerProcess) -> list[str]:
    shards = [broker.data_dir / f"shard-{n}" for n in range(SHARDS)]
    return [client_id for shard in shards for client_id in sessions(shard)]


def shared(broker: BrokerProcess, wanted: int) -> Counter[bytes]:
    """What the members of all groups get together at QoS 2, `wanted` messages of it."""
    found: Counter[bytes] = Counter()
    members = [RawClient(broker.address, client_id, version=5) for client_id in MEMBERS]
    begun: set[tuple[int, int]] = set()
    try:
        for client in members:
            assert client.connect(**PERSISTENT).session_present
        while found.total() < wanted:
            for at, client in enumerate(members):
                for packet in client.ping():
                    if packet.kind == PUBREL:
                        client.ack(PUBCOMP, packet.packet_id)
                        begun.discard((at, packet.packet_id))
                        continue
                    if (at, packet.packet_id) not in begun:
                        begun.add((at, packet.packet_id))
                        found[packet.payload] += 1
                    client.ack(PUBREC, packet.packet_id)
    finally:
        for client in members:
            client.leave()
    return found


def test_shared_subscriptions_are_divided_with_what_is_in_flight(
    old: BrokerProcess, brokers: Brokers
) -> None:
    new = brokers(SETTINGS)
    assert reshard(old.data_dir, new.data_dir).returncode == 0
    new.start()
    found = shared(new, len(GROUPS) * WORK - RECEIVED)
    every = Counter({b"work %d" % n: len(GROUPS) for n in range(WORK)})
    assert not found - every
    assert (every - found).total() == RECEIVED


def test_who_has_not_read_all_is_named(old: BrokerProcess, tmp_path: Path) -> None:
    reader = JournalReader(old.data_dir)
    ConsumerPosition.register(old.data_dir, "archive", reader.uuid, reader.epoch, 5)
    done = reshard(old.data_dir, tmp_path / "new")
    assert done.returncode == 1
    assert f"archive ({reader.high_watermark() - 5} records)" in done.stderr
    assert not (tmp_path / "new").exists()
    ConsumerPosition.commit(old.data_dir, "archive", reader.uuid, reader.epoch, reader.high_watermark())
    assert reshard(old.data_dir, tmp_path / "new").returncode == 0


def test_what_cannot_be_divided_is_refused(old: BrokerProcess, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine").write_text("a file of somebody")
    assert "is not empty (mine)" in reshard(old.data_dir, full).stderr
    assert "there is no directory" in reshard(tmp_path / "nothing", tmp_path / "new").stderr
    assert reshard(old.data_dir, tmp_path / "new", shards=1).returncode == 2
    old.start()
    assert "another process" in reshard(old.data_dir, tmp_path / "new").stderr
    old.stop()
    assert reshard(old.data_dir, tmp_path / "new").returncode == 0
    assert "several shards already" in reshard(tmp_path / "new", tmp_path / "newer").stderr
    assert (full / "mine").read_text() == "a file of somebody"


def test_clusters_of_consumers_go_on_at_the_homes_of_their_topics(brokers: Brokers, tmp_path: Path) -> None:
    port, homes = free_port(), Homes(SHARDS)
    names = [f"locks/{n}" for n in range(50)]
    topics = [next(t for t in names if homes.of_topic("default", t) == shard) for shard in range(SHARDS)]
    ids: dict[str, list[bytes]] = {}
    settings, listen = {"frames.visibility_s": 600}, ["--listen", f"frame://127.0.0.1:{port}"]
    old = brokers(settings, extra=listen).start()
    with Device(port) as device:
        for topic in topics:
            ids[topic] = [device.publish(seq, topic, b"%d" % seq) for seq in range(9)]
            assert device.join(topic, "service") == device.join(topic, "late") == 0
            assert [one.message_id for one in device.pull(topic, "service", 6)] == ids[topic][:6]
            assert device.ack(topic, "service", *ids[topic][1:4]) == 0
    old.stop()
    assert reshard(old.data_dir, tmp_path / "new").returncode == 0
    again = brokers(settings, extra=listen)
    again.data_dir = tmp_path / "new"
    again.start()
    with Device(port) as device:
        for topic in topics:
            new = device.publish(99, topic, b"new")
            assert device.join(topic, "service") == device.join(topic, "late") == 0
            left = [ids[topic][number] for number in (0, 4, 5, 6, 7, 8)]
            assert pulled(device, topic, "service", 7) == [*left, new]
            assert pulled(device, topic, "late", 10) == [*ids[topic], new]
    again.stop()


def pulled(device: Device, topic: str, cluster: str, count: int) -> list[bytes]:
    """The ids of so many messages, which are acknowledged."""
    found: list[bytes] = []
    while len(found) < count:
        got = [one.message_id for one in device.pull(topic, cluster, count - len(found), 60_000)]
        assert device.ack(topic, cluster, *got) == 0
        found += got
    return found


def test_a_device_that_repeats_a_message_is_answered_with_the_id_that_it_had(
    brokers: Brokers, tmp_path: Path
) -> None:
    """Nothing refers to these messages, so that no shard has a record of them; half of them were published before the
    journal was restored from a backup, which began another epoch."""
    port = free_port()
    ids: dict[int, bytes] = {}
    listen = ["--listen", f"frame://127.0.0.1:{port}"]

    def served(data_dir: Path, numbers: range) -> None:
        broker = brokers(SETTINGS, extra=listen)
        broker.data_dir = data_dir
        broker.start()
        with Device(port) as device:
            for number in numbers:
                found = device.publish(number, f"locks/{number}", b"%d" % number)
                assert ids.setdefault(number, found) == found
        broker.stop()

    served(tmp_path / "old", range(6))
    backup, restored, new = tmp_path / "backup", tmp_path / "restored", tmp_path / "new"
    assert headrace("backup", str(backup), "--data-dir", str(tmp_path / "old")).returncode == 0
    assert headrace("restore", str(backup), "--data-dir", str(restored)).returncode == 0
    served(restored, range(12))
    done = reshard(restored, new)
    assert done.returncode == 0, done.stderr
    served(new, range(12))
    assert len(set(ids.values())) == 12


def test_an_interrupted_one_is_begun_anew(old: BrokerProcess, tmp_path: Path) -> None:
    assert reshard(old.data_dir, tmp_path / "whole").returncode == 0
    cut = tmp_path / "cut"
    (cut / MAKING).mkdir(parents=True)
    shutil.copytree(tmp_path / "whole" / "shard-0", cut / "shard-0")
    shutil.copytree(tmp_path / "whole" / "shard-1", cut / MAKING / "shard-1")
    assert reshard(old.data_dir, cut).returncode == 0
    names = sorted(path.name for path in cut.iterdir())
    assert names == sorted(path.name for path in (tmp_path / "whole").iterdir())


def test_what_is_somebody_elses_stays_beside_an_interrupted_one(old: BrokerProcess, tmp_path: Path) -> None:
    for name in (MAKING, "shard-notes"):
        (tmp_path / "cut" / name).mkdir(parents=True)
    done = reshard(old.data_dir, tmp_path / "cut")
    assert (done.returncode, "is not empty (shard-notes)" in done.stderr) == (1, True)
    assert (tmp_path / "cut" / "shard-notes").is_dir()


def test_who_comes_second_leaves_the_first_alone(old: BrokerProcess, tmp_path: Path) -> None:
    target = tmp_path / "new"
    (target / MAKING).mkdir(parents=True)
    fd = lock_data_dir(DISK, target)  # as a first one does, which works
    try:
        done = reshard(old.data_dir, target)
    finally:
        DISK.close(fd)
    assert (done.returncode, "another process" in done.stderr) == (1, True)
    assert (target / MAKING).is_dir()


def test_nothing_opens_what_a_killed_run_has_left(old: BrokerProcess, tmp_path: Path) -> None:
    with built(tmp_path / "new", MAKING, Likeness.of(old.data_dir), old.data_dir) as making:
        Layout.make(making, SHARDS)
        shutil.copytree(tmp_path / "new", tmp_path / "killed")
    with pytest.raises(ShardedDirectory):
        SegmentedLog.open(tmp_path / "killed", LogSettings(), print)
    assert Layout.open(tmp_path / "new").shards == SHARDS


@pytest.mark.parametrize("at_once", [7, 100])
def test_references_are_looked_for_in_stretches(
    old: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    said: list[list[str]] = []
    for name in ("whole", "stretches"):
        lines: list[str] = []
        resharding.reshard(old.data_dir, tmp_path / name, SHARDS, lines.append)
        said.append([line for line in lines if line.startswith("shard ")])
        monkeypatch.setattr(resharding, "_AT_ONCE", at_once)
    assert len(said[0]) == SHARDS
    assert said[1] == said[0]
