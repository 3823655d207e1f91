"""Topic queues, clusters and devices as the broker that first had them left them (tests/vectors/journal/queues)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headrace.core.records.message import FrameMessage
from headrace.core.state.devices import NEVER, seen_of
from headrace.core.state.state import Fold
from headrace.journal.inspect import verify
from headrace.storage.embedded.recovery import folded

QUEUES = Path(__file__).parents[1] / "vectors" / "journal" / "queues"
SENT_US = 1_795_421_201_810_000
SERVED = {*range(1, 51), 52, 55, 58}


@pytest.fixture(params=[True, False], ids=["with its snapshot", "from the first record"])
def fold(request: pytest.FixtureRequest, tmp_path: Path) -> Fold:
    copied = Path(shutil.copytree(QUEUES, tmp_path / "data"))
    if not request.param:
        for path in (copied / "journal").glob("*.snapshot"):
            path.unlink()
    return folded(copied)


def test_every_cluster_is_where_it_was(fold: Fold) -> None:
    queues = fold.tenant("default").queues
    assert {topic: queue.count for topic, queue in queues.items()} == {b"lock/open": 200, b"lock/log": 20}
    clusters = queues[b"lock/open"].clusters
    finished = {
        name: {serial for serial in range(1, 201) if cluster.has_finished(serial)}
        for name, cluster in clusters.items()
    }
    assert finished == {b"service": SERVED, b"late": set()}
    assert {name: cluster.lag() for name, cluster in clusters.items()} == {b"service": 147, b"late": 200}
    assert queues[b"lock/log"].clusters == {}


def test_what_a_device_sends_again_is_known(fold: Fold) -> None:
    devices = fold.tenant("default").devices
    sent = {message.payload: message for message in map(of_door, range(200))}
    first = devices.find(seen_of(sent[b"0"]))
    assert first != NEVER
    assert devices.find(seen_of(sent[b"199"])) > first
    assert devices.find(seen_of(of_door(200))) == NEVER


def of_door(number: int) -> FrameMessage:
    """A message of `door-1`, as it was sent then."""
    return FrameMessage(SENT_US, number, "default", b"defaultdoor-1", 7, b"lock/open", -1, b"%d" % number)


def test_nothing_of_it_is_damaged() -> None:
    assert verify(QUEUES).ok
