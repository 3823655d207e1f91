"""Messages that are posted over the admin HTTP reach who is subscribed at whatever worker, and are not lost by a kill
right after the answer; the commands delete what is retained."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker_process import BrokerProcess, headrace
from e2e.conftest import finish
from e2e.raw import RawClient

Clients = Callable[..., RawClient]
pytestmark = [pytest.mark.slow, pytest.mark.skipif("__import__('broker_process').UNDER_AUDIT != 'headrace'")]

FOREVER = {17: 0xFFFFFFFF}  # Session Expiry Interval
TOPICS = ["a/t0", "a/bc", "a/t1", "a/größe"]  # of several shards


class Operated:
    """A broker of so many workers, and who operates it."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.token = folder / "token"
        self.token.write_text("secret\n")
        extra = ["--workers", str(workers), "--set", "shards=4"] if workers > 1 else []
        self.broker = BrokerProcess(folder, {"journal.token_file": self.token}, extra)

    @property
    def admin(self) -> str:
        return f"http://127.0.0.1:{self.broker.admin_port}"

    def post(self, **body: object) -> tuple[int, dict[str, Any]]:
        """Status and content of the answer."""
        headers = {"Authorization": "Bearer secret"}
        data = json.dumps(body).encode()
        request = urllib.request.Request(f"{self.admin}/v1/publish", data, headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def retained(self, *arguments: str) -> Any:
        at = ["--admin", self.admin, "--token-file", str(self.token)]
        return headrace("retained", *arguments, *at, deadline_s=120)


@pytest.fixture(params=[1, 2])
def operated(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Operated]:
    found = Operated(tmp_path, request.param)
    found.broker.start()
    yield found
    finish(found.broker)


def test_who_is_here_and_who_is_away_gets_what_is_posted_also_after_a_kill(
    operated: Operated, clients: Clients
) -> None:
    away = clients(operated.broker, "away", 5, clean=False, properties=FOREVER)
    away.subscribe("a/#", qos=1)
    away.disconnect()
    here = [clients(operated.broker, f"here{number}", 5) for number in range(2)]
    for client in here:
        client.subscribe("a/#", qos=1)
    for topic in TOPICS:
        status, answer = operated.post(topic=topic, text=topic, retain=True)
        assert (status, answer["is_stored"], answer["reason_code"]) == (200, True, 0)
        assert answer["matching"] == 3 or answer["elsewhere"]
        assert [client.receive().payload.decode() for client in here] == [topic, topic]
    operated.broker.kill()
    operated.broker.start()
    again = clients(operated.broker, "away", 5, clean=False, properties=FOREVER)
    assert {again.receive().payload.decode() for _ in TOPICS} == set(TOPICS)
    rows = [json.loads(line) for line in operated.retained("list", "--json").stdout.splitlines()]
    assert {row["topic"] for row in rows} == set(TOPICS)


def test_the_command_deletes_one_and_says_that_it_was_there(operated: Operated, clients: Clients) -> None:
    for topic in TOPICS:
        assert operated.post(topic=topic, text="x", qos=0, retain=True)[1]["is_stored"]
    here = clients(operated.broker, "here", 5)
    here.subscribe("b/#", TOPICS[0], qos=1)
    assert here.receive().payload == b"x"
    done = operated.retained("delete", TOPICS[0])
    assert (done.returncode, json.loads(done.stdout)["topic"]) == (0, TOPICS[0])
    assert here.receive().payload == b""
    gone = operated.retained("delete", TOPICS[0])
    assert (gone.returncode, "no retained message" in gone.stderr) == (1, True)
    rows = [json.loads(line) for line in operated.retained("list", "--json").stdout.splitlines()]
    assert {row["topic"] for row in rows} == set(TOPICS[1:])
