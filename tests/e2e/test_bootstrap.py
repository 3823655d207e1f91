"""`headrace serve --bootstrap`: a fresh broker goes on where another one stood; what cannot be is refused."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from broker_process import PYTHON, BrokerProcess, build_environment, headrace
from e2e.raw import RawClient
from e2e.wire import NEVER, SESSION_EXPIRY

Brokers = Callable[..., BrokerProcess]

# What the job does, without leaving anything out: every event, and every retained message.
_WRITE = """
import sys
from pathlib import Path
from librt.strings import BytesWriter
from headrace.core.records.message import Message, decode_batch
from headrace.core.records.event import Event
from headrace.journal.bootstrap_file import write_bootstrap
from headrace.journal.reader import JournalReader
reader = JournalReader(Path(sys.argv[1]))
end = reader.high_watermark()
found = []
for batch in reader.scan(reader.start_offset(), end):
    for record in decode_batch(bytes(batch.body), batch.base_offset):
        if isinstance(record, Event) or (isinstance(record, Message) and record.retain):
            body = BytesWriter()
            record.encode_into(body)
            found.append((record.offset, body.getvalue()))
print(write_bootstrap(Path(sys.argv[2]), reader.uuid, reader.epoch, end, found))
"""


def snapshot_of(broker: BrokerProcess, folder: Path) -> str:
    command = [PYTHON, "-c", _WRITE, str(broker.data_dir), str(folder)]
    done = subprocess.run(command, env=build_environment(), capture_output=True, text=True, check=True)
    return done.stdout.strip()


def dump(broker: BrokerProcess) -> str:
    done = headrace("session", "dump", "--data-dir", str(broker.data_dir))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_sessions_wills_and_retained_messages_move(brokers: Brokers, tmp_path: Path) -> None:
    old, fresh = brokers(), brokers()
    old.start()
    with (
        RawClient(old.address, "meter", version=5) as meter,
        RawClient(old.address, "panel", version=5) as panel,
    ):
        will = ("gone/meter", b"bye")
        meter.connect(clean=False, properties={SESSION_EXPIRY: NEVER}, will=will)
        panel.connect(clean=False, properties={SESSION_EXPIRY: NEVER})
        panel.subscribe("gone/#", ("kept", 2), qos=1)
        panel.unsubscribe("nothing")
        meter.deliver("kept", b"old", 1, retain=True)
        meter.deliver("kept", b"new", 1, retain=True)
        meter.deliver("cleared", b"x", 1, retain=True)
        meter.deliver("cleared", b"", 1, retain=True)
        snapshot = snapshot_of(old, tmp_path)
        old.kill()
    fresh.extra = ["--bootstrap", snapshot]
    fresh.start()
    with RawClient(fresh.address, "panel", version=5) as panel:
        connack = panel.connect(clean=False, properties={SESSION_EXPIRY: NEVER})
        assert connack.session_present
        assert panel.receive(30).payload == b"bye"  # the meter never came back
        panel.deliver("kept", b"live", 1)
        assert (found := panel.receive()).payload == b"live"
        assert found.qos == 1
        panel.subscribe("#", qos=1)
        assert [(p.topic, p.payload) for p in (panel.receive(),)] == [("kept", b"new")]
    fresh.extra = []
    fresh.restart()


def test_both_states_are_the_same_record_by_record(brokers: Brokers, tmp_path: Path) -> None:
    old, fresh = brokers(), brokers()
    old.start()
    for number in range(50):
        with RawClient(old.address, f"c{number}", version=5) as client:
            client.connect(clean=False, properties={SESSION_EXPIRY: 1000 + number})
            client.subscribe(f"t/{number}", f"$share/g{number % 3}/t/#", qos=number % 3)
            client.deliver(f"r/{number % 7}", b"%d" % number, 1, retain=True)
            if number % 5 == 0:
                client.unsubscribe(f"t/{number}")
            client.disconnect()
    old.stop()
    fresh.extra = ["--bootstrap", snapshot_of(old, tmp_path)]
    fresh.start()
    fresh.stop()
    assert dump(fresh) == dump(old)
    assert dump(old).count("\n") == 57


def refused(broker: BrokerProcess, snapshot: Path | str) -> str:
    arguments = [
        "--data-dir",
        str(broker.data_dir),
        "--listen",
        "tcp://127.0.0.1:0",
        "--bootstrap",
        str(snapshot),
    ]
    done = headrace("serve", *arguments)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr


def test_what_is_refused(brokers: Brokers, tmp_path: Path) -> None:
    old, fresh = brokers(), brokers()
    old.start()
    snapshot = Path(snapshot_of(old, tmp_path))
    old.stop()
    before = dump(old)
    assert "is not empty" in refused(old, snapshot)
    assert dump(old) == before
    assert "No such file" in refused(fresh, tmp_path / "nothing")
    own = next((old.data_dir / "journal").glob("*.snapshot"))
    assert "a broker's own snapshot" in refused(fresh, own)
    data = bytearray(snapshot.read_bytes())
    snapshot.write_bytes(data[:-1])
    assert "trailer" in refused(fresh, snapshot)
    data[8] = 9
    snapshot.write_bytes(data)
    assert "header is damaged" in refused(fresh, snapshot)
    assert not fresh.data_dir.exists() or not list(fresh.data_dir.iterdir())
