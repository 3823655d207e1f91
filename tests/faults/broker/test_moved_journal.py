"""The journal goes from under the running broker: removed, moved, replaced. Within moments nothing is acknowledged any
more, the broker says which file it misses, and no journal is begun in the place of the one that is gone."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from broker_process import BrokerProcess, wait_until
from e2e.raw import ClosedError, RawClient
from headrace.core.homes import Homes
from headrace.core.ports.identity import DEFAULT_TENANT
from headrace.journal.errors import JournalMoved
from headrace.journal.presence import INTERVAL_S, LOOK_AGAIN_S, LOOKS

pytestmark = pytest.mark.slow

WITHIN_S = 10 * (INTERVAL_S + LOOKS * LOOK_AGAIN_S)  # on a machine with other work
PATIENCE_S = 60.0
REMEDIES = ("Put it back", "mount it")
Brokers = Callable[..., BrokerProcess]
Clients = Callable[..., RawClient]


def moved(path: Path) -> None:
    path.rename(elsewhere(path))


def elsewhere(path: Path) -> Path:
    return path.with_name(f"{path.name}.elsewhere")


def put_back(path: Path) -> None:
    elsewhere(path).rename(path)


def removed(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def replaced(path: Path) -> None:
    """Do what somebody does who puts an old copy back under a running broker."""
    moved(path)
    shutil.copytree(elsewhere(path), path)


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def publish_until_closed(publisher: RawClient, first: int) -> int:
    """Publish one message after the other until the broker ends; returns how many it has acknowledged."""
    until = time.monotonic() + WITHIN_S
    number = first
    with suppress(ClosedError):
        while time.monotonic() < until:
            publisher.deliver("t", str(number), 1)
            number += 1
        pytest.fail(f"acknowledged for {WITHIN_S} s")
    return number - first


SEGMENT, LOCK = "segment", "lock"


@pytest.mark.parametrize(
    ("what", "done"),
    [
        ("", moved),
        ("", removed),
        ("", replaced),
        ("journal", moved),
        ("journal", replaced),
        (SEGMENT, moved),
        (LOCK, removed),
    ],
)
def test_one_worker_stops_and_names_what_it_misses(
    what: str, done: Callable[[Path], None], brokers: Brokers, clients: Clients
) -> None:
    broker = brokers({}).start()
    publisher = clients(broker, "p")
    publisher.deliver_many("t", range(10))
    data = broker.data_dir
    path = next((data / "journal").glob("*.log")) if what == SEGMENT else data / what
    done(path)
    copy = everything(path) if done is replaced else {}
    publish_until_closed(publisher, 10)
    assert broker.wait() == JournalMoved.exit_status
    broker.end()
    assert "nothing is acknowledged any more" in broker.stderr
    assert "while the broker runs" in broker.stderr
    assert str(data) in broker.stderr
    if done is not replaced:
        assert not path.exists(), "it was made anew"
    else:
        assert everything(path) == copy, "the copy was written to"


def test_what_was_acknowledged_is_there_when_it_is_put_back(brokers: Brokers, clients: Clients) -> None:
    broker = brokers({}).start()
    away = clients(broker, "away", clean=False)
    away.subscribe("t", qos=1)
    away.close()
    publisher = clients(broker, "p")
    moved(broker.data_dir)
    count = publish_until_closed(publisher, 0)
    assert broker.wait() == JournalMoved.exit_status
    broker.end()
    put_back(broker.data_dir)
    broker.start()
    away = clients(broker, "away", clean=False)
    assert [int(away.receive().payload) for _ in range(count)] == list(range(count))
    broker.stop()


def test_away_for_a_moment_is_no_reason_to_stop(brokers: Brokers, clients: Clients) -> None:
    broker = brokers({}).start()
    publisher = clients(broker, "p")
    for number in range(5):
        moved(broker.data_dir)
        publisher.deliver("t", str(number), 1)
        put_back(broker.data_dir)
        time.sleep(INTERVAL_S / 3)  # at another moment between two looks each time
    publisher.expect_nothing(LOOKS * LOOK_AGAIN_S + INTERVAL_S)
    publisher.deliver("t", "5", 1)
    broker.stop()
    assert "journal failed" not in broker.stderr


def test_a_stop_before_it_is_noticed_writes_nowhere_and_says_so(brokers: Brokers, clients: Clients) -> None:
    broker = brokers({}).start()
    clients(broker, "p").deliver_many("t", range(10))
    replaced(broker.data_dir)
    copy = everything(broker.data_dir)
    assert broker.process is not None
    broker.process.terminate()
    assert broker.wait() == JournalMoved.exit_status
    broker.end()
    assert "while the broker runs" in broker.stderr
    assert everything(broker.data_dir) == copy


# Several shards


def name_in(shard: int) -> str:
    homes = Homes(2)
    return next(
        name for name in (f"c{n}" for n in range(100)) if homes.of_client(DEFAULT_TENANT, name) == shard
    )


def trouble(broker: BrokerProcess) -> str:
    found = broker.get("/readyz")
    return found.body if found.status == 503 else ""


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("what", "done"), [("shard-1", moved), ("shard-1/journal", moved), ("shard-1", replaced)]
)
def test_one_shard_of_two_is_served_while_the_other_is_away(
    workers: int, what: str, done: Callable[[Path], None], brokers: Brokers, clients: Clients
) -> None:
    broker = brokers({"workers": workers, "shards": 2}).start()
    away = clients(broker, name_in(1), clean=False)
    away.subscribe("t", qos=1)
    away.close()
    publisher = clients(broker, name_in(0))
    publisher.deliver("t", "0", 1)
    path = broker.data_dir / what
    done(path)
    wait_until(lambda: bool(trouble(broker)), "it is noticed", WITHIN_S)
    publisher.deliver("u", "others are served", 1)
    if (
        done is replaced
    ):  # the copy is the same journal at an older moment: nothing else keeps it from being taken
        return
    wait_until(lambda: any(said in broker.stderr for said in REMEDIES), "what to do is said", PATIENCE_S)
    assert not path.exists(), "it was made anew"
    put_back(path)
    wait_until(lambda: not trouble(broker), "it is taken again", PATIENCE_S)
    away = clients(broker, name_in(1), clean=False)
    assert away.receive().payload == b"0"
    broker.stop()


def test_workers_that_are_stopped_without_their_directory_say_so(brokers: Brokers, clients: Clients) -> None:
    """So a service manager does not start them again, and have them begin with an empty one."""
    broker = brokers({"workers": 2}).start()
    publisher = clients(broker, name_in(0))
    moved(broker.data_dir)
    publish_until_closed(publisher, 0)
    wait_until(
        lambda: "any more, with which this node was started" in broker.stderr, "it is looked for", PATIENCE_S
    )
    assert broker.process is not None
    broker.process.terminate()
    assert broker.wait() == JournalMoved.exit_status
    broker.end()
    assert not broker.data_dir.exists(), "it was made anew"


def test_workers_wait_for_the_whole_directory(brokers: Brokers, clients: Clients) -> None:
    broker = brokers({"workers": 2}).start()
    publisher = clients(broker, name_in(0))
    publisher.deliver("t", "0", 1)
    moved(broker.data_dir)
    publish_until_closed(publisher, 1)
    wait_until(
        lambda: broker.stderr.count("any more, with which this node was started") >= 2, "said", PATIENCE_S
    )
    assert not broker.data_dir.exists(), "it was made anew"
    assert trouble(broker)
    put_back(broker.data_dir)
    wait_until(lambda: not trouble(broker), "it is served again", PATIENCE_S)
    clients(broker, name_in(0)).deliver("t", "again", 1)
    broker.stop()
