"""The records of a compacted state lead to that state again: nothing is added, nothing queued."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from librt.strings import BytesWriter

from harness import START_US, Harness
from headrace.core.records.message import decode_batch
from headrace.core.records.queue_record import CLUSTER_MADE, DEVICE_OWNED, QUEUE_OPENED, queue_record
from headrace.core.state.compacted import records
from headrace.core.state.replay import Replay
from headrace.core.state.state import Fold
from headrace.mqtt.packets import Will
from headrace.services.state import lines
from unit.core.state.test_state import History, steps


def again(harness: Harness) -> Fold:
    """The fold over the compacted records, encoded and decoded on the way."""
    body = BytesWriter()
    for record in records(harness.broker.fold, START_US):
        record.encode_into(body)
    fold = Fold(harness.journal)
    replay = Replay(fold)
    for record in decode_batch(body.getvalue(), 0):
        replay.record(record)
    return fold


def test_sessions_wills_groups_and_retained_messages() -> None:
    harness = Harness()
    will = Will("last", b"words", 1, True, b"\x03\x00\x01t", 7, 60)
    client = harness.client("there", version=5, will=will)
    client.subscribe("a/+", 2, no_local=True, identifier=9)
    client.subscribe("$share/g/a/#")
    away = harness.client("away", version=5, will=will)
    away.subscribe("a/1")
    away.lose()
    client.publish("a/1", b"kept", 1, retain=True, expiry_s=60)
    client.publish("a/2", b"gone", 1, retain=True)
    client.publish("a/2", b"", 1, retain=True)
    found = again(harness)
    assert lines(found) == lines(harness.broker.fold)
    assert len(lines(found)) == 3
    assert [s.queue for s in found.by_incarnation.values()] == [None, None]


def test_owners_of_devices_queues_and_clusters() -> None:
    harness = Harness()
    broker = harness.broker
    now_us = START_US
    about: dict[str, object] = {"t": "default", "topic": b"locks"}
    for record in (
        queue_record(DEVICE_OWNED, now_us, {"t": "default", "c": "door", "u": "hub"}),
        queue_record(QUEUE_OPENED, now_us, about),
        queue_record(CLUSTER_MADE, now_us, about | {"name": b"store", "at": 7}),
    ):
        broker.commit.append(record)
    broker.fold.tenant("default").devices.own("door", "hub")
    harness.sync()
    found = again(harness)
    assert lines(found) == lines(broker.fold)
    assert lines(found) == [
        '{"clusters": ["store"], "queue": "default/locks"}',
        '{"device": "default/door", "owner": "hub"}',
    ]
    [cluster] = found.queues.clusters.values()
    assert (cluster.next, cluster.lag()) == (1, 0)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(steps, min_size=1, max_size=40))
def test_any_history(history: list[tuple[object, ...]]) -> None:
    run = History()
    for step in history:
        run.run(step)
    run.harness.sync()
    assert lines(again(run.harness)) == lines(run.harness.broker.fold)
