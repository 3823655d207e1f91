"""`headrace session drop` over processes: nothing of the session is left, whichever worker has its client, and whatever
kills the broker right after the answer."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from broker_process import BrokerProcess, headrace, wait_until
from e2e.conftest import finish
from e2e.raw import RawClient
from e2e.wire import DISCONNECT, PUBLISH

Clients = Callable[..., RawClient]
pytestmark = [pytest.mark.slow, pytest.mark.skipif("__import__('broker_process').UNDER_AUDIT != 'headrace'")]

FOREVER = {17: 0xFFFFFFFF}  # Session Expiry Interval
SHARE = "$share/g/work/#"


class Operated:
    """A broker of so many workers, and who operates it."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.token = folder / "token"
        self.token.write_text("secret\n")
        extra = ["--workers", str(workers), "--set", "shards=4"] if workers > 1 else []
        self.broker = BrokerProcess(folder, {"journal.token_file": self.token}, extra)

    def delete(self, path: str, token: str = "secret") -> tuple[int, dict[str, Any]]:
        """Status and content of the answer."""
        address = f"http://127.0.0.1:{self.broker.admin_port}/v1/sessions{path}"
        headers = {"Authorization": f"Bearer {token}"}
        request = urllib.request.Request(address, headers=headers, method="DELETE")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                answer, kind = json.load(error), error.headers["content-type"]
                return error.code, answer if kind == "application/problem+json" else {"detail": kind}

    def run(self, *arguments: str) -> Any:
        return headrace("session", *arguments, deadline_s=120)

    def drop_there(self, client_id: str) -> Any:
        admin = f"http://127.0.0.1:{self.broker.admin_port}"
        return self.run("drop", client_id, "--yes", "--admin", admin, "--token-file", str(self.token))

    def drop_here(self, client_id: str) -> Any:
        return self.run("drop", client_id, "--yes", "--data-dir", str(self.broker.data_dir))

    def sessions(self) -> dict[str, dict[str, Any]]:
        """The rows of `session list`, by client id."""
        listed = self.run("list", "--json", "--data-dir", str(self.broker.data_dir))
        assert listed.returncode == 0, listed.stderr
        rows = map(json.loads, listed.stdout.splitlines())
        return {row["client_id"]: row for row in rows}

    def gauge(self, name: str) -> float:
        """The sum of a metric over all labels."""
        found = self.broker.metrics().items()
        return sum(value for key, value in found if key.partition("{")[0] == name)


@pytest.fixture(params=[1, 2])
def operated(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Operated]:
    found = Operated(tmp_path, request.param)
    found.broker.start()
    yield found
    finish(found.broker)


def leave_backlog(operated: Operated, clients: Clients, client_id: str, writer: RawClient) -> None:
    """Let a client be away with ten messages that wait for it, half of them of a shared subscription."""
    keeper = clients(operated.broker, client_id, 5, clean=False, properties=FOREVER)
    keeper.subscribe("a/#", SHARE, qos=1)
    keeper.disconnect()
    for number in range(5):
        writer.deliver("a/b", b"%d" % number)
        writer.deliver("work/b", b"%d" % number)


def check_gone(operated: Operated, clients: Clients, client_id: str, writer: RawClient) -> None:
    """Nothing of it is left, publishers go on, and its client comes back as a new one."""
    assert client_id not in operated.sessions()
    writer.deliver("a/b", b"later")
    writer.deliver("work/b", b"later")
    again = clients(operated.broker, client_id, 5, clean=False, properties=FOREVER)
    assert not again.connack.session_present
    assert again.ping() == []
    again.subscribe("a/#", SHARE, qos=1)
    writer.deliver("a/b", b"new")
    assert again.receive().payload == b"new"
    again.disconnect(properties={17: 0})


@pytest.mark.parametrize("client_id", [pytest.param("keeper", marks=pytest.mark.deep), "a//b%2F größe/"])
def test_one_that_is_away_is_dropped_for_good_also_by_a_kill_after_the_answer(
    operated: Operated, clients: Clients, client_id: str
) -> None:
    writer = clients(operated.broker, "writer", keep_alive_s=0)
    leave_backlog(operated, clients, client_id, writer)
    assert operated.sessions()[client_id]["backlog"] == 5
    status, answer = operated.delete(f"/{quote(client_id, safe='')}")
    assert (status, answer["client_id"], answer["messages"], answer["connected"]) == (
        200,
        client_id,
        5,
        False,
    )
    operated.broker.kill()
    writer.close()
    assert client_id not in operated.sessions()
    operated.broker.start()
    writer = clients(operated.broker, "writer", keep_alive_s=0)
    wait_until(lambda: operated.gauge("headrace_subscriptions") == 0, "nobody is subscribed", 60)
    check_gone(operated, clients, client_id, writer)


def test_clients_that_are_connected_are_told_and_cut_off_and_their_wills_published(
    operated: Operated, clients: Clients
) -> None:
    """Of several workers one has taken the connection, and another one may be its home: some of these are of each
    kind."""
    watcher = clients(operated.broker, "watcher", keep_alive_s=0)
    watcher.subscribe("wills/#", qos=1)
    found = {}
    for number in range(6):
        version = 5 if number % 2 else 4
        fields = {"properties": FOREVER} if version == 5 else {}
        name = f"client-{number}"
        will = (f"wills/{name}", b"gone")
        client = clients(operated.broker, name, version, clean=False, keep_alive_s=0, will=will, **fields)
        found[name] = client
    for name, client in found.items():
        status, answer = operated.delete(f"?client={name}")
        assert (status, answer["connected"]) == (200, True)
        said = client.read_to_end()
        assert [(one.kind, one.reason) for one in said] == [(DISCONNECT, 0x98)] * (client.version == 5)
        assert watcher.expect(PUBLISH).topic == f"wills/{name}"
        assert operated.delete(f"/{name}")[0] == 404
    assert set(operated.sessions()) == {"watcher"}


def test_the_command_asks_a_running_broker(operated: Operated, clients: Clients) -> None:
    client = clients(operated.broker, "c/1", 5, clean=False, keep_alive_s=0, properties=FOREVER)
    done = operated.drop_there("c/1")
    assert (done.returncode, done.stderr) == (0, "")
    assert [(one.kind, one.reason) for one in client.read_to_end()] == [(DISCONNECT, 0x98)]
    again = operated.drop_there("c/1")
    assert (again.returncode, again.stdout) == (1, "")
    assert "c/1" in again.stderr


def test_in_the_directory_of_a_stopped_broker(operated: Operated, clients: Clients) -> None:
    writer = clients(operated.broker, "writer", keep_alive_s=0)
    leave_backlog(operated, clients, "keeper", writer)
    leave_backlog(operated, clients, "other", writer)
    refused = operated.drop_here("keeper")
    assert (refused.returncode, refused.stdout, len(refused.stderr.splitlines())) == (1, "", 1)
    assert "keeper" in operated.sessions()
    operated.broker.kill()
    done = operated.drop_here("keeper")
    assert (done.returncode, done.stderr) == (0, "")
    assert "keeper" in done.stdout
    assert operated.drop_here("keeper").returncode == 1
    assert "other" in operated.sessions()
    operated.broker.start()
    writer = clients(operated.broker, "writer", keep_alive_s=0)
    other = clients(operated.broker, "other", 5, clean=False, properties=FOREVER)
    assert other.connack.session_present
    got = [other.receive() for _ in range(5 + 5 + 5)]  # and what the dropped one had of the group
    assert {packet.topic for packet in got} == {"a/b", "work/b"}
    other.disconnect(properties={17: 0})
    check_gone(operated, clients, "keeper", writer)


def test_who_may_not_and_what_is_not_there(operated: Operated) -> None:
    assert operated.delete("/c", token="wrong")[0] == 401
    status, answer = operated.delete("/c")
    assert (status, "'c'" in answer["detail"]) == (404, True)
    status, answer = operated.delete("/%24bridge%2Fnorth")
    assert (status, "bridge" in answer["detail"]) == (409, True)
    assert operated.delete("?client=")[0] == 400
