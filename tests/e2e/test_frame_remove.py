"""`headrace frame queue` and `frame cluster` over processes that devices use, with one worker and with two."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from broker_process import BrokerProcess, free_port, headrace
from e2e.conftest import finish
from e2e.device import Device

pytestmark = [pytest.mark.slow, pytest.mark.skipif("__import__('broker_process').UNDER_AUDIT != 'headrace'")]

NAMES = ["doors/1", "a//b", "/", "a%2Fb", "a b&c=d;e?f", "größe/日本", "../x", "%", "%23x"]
CLUSTER = "+ #%2B/ü&"


class Served:
    """A broker of so many workers that devices use, and who operates it."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.token = folder / "operate"
        self.looks = folder / "read"
        self.token.write_text("operate secret\n")
        self.looks.write_text("read public\n")
        (folder / "tokens").write_text("operate secret\nread public\n")
        self.port = free_port()
        extra = ["--listen", f"frame://127.0.0.1:{self.port}"]
        if workers > 1:
            extra += ["--workers", str(workers), "--set", "shards=4"]
        settings = {"journal.token_file": folder / "tokens", "frames.visibility_s": 600}
        self.broker = BrokerProcess(folder, settings, extra)

    def run(self, *options: str, token: Path | None = None) -> Any:
        admin = f"http://127.0.0.1:{self.broker.admin_port}"
        return headrace("frame", *options, "--admin", admin, "--token-file", str(token or self.token))

    def done(self, *options: str) -> str:
        found = self.run(*options)
        assert (found.returncode, found.stderr) == (0, "")
        return str(found.stdout)

    def rows(self, what: str) -> list[dict[str, Any]]:
        """All rows of what the broker lists, page by page."""
        found: list[dict[str, Any]] = []
        following: str | None = ""
        while following is not None:
            place = f"?from={following}" if following else ""
            status, page = self.ask("GET", f"/v1/{what}{place}")
            assert status == 200
            found, following = found + page["rows"], page["next"]
        return found

    def delete(self, path: str, token: str = "secret") -> tuple[int, dict[str, Any]]:
        return self.ask("DELETE", path, token)

    def ask(self, method: str, path: str, token: str = "secret") -> tuple[int, dict[str, Any]]:
        address = f"http://127.0.0.1:{self.broker.admin_port}{path}"
        headers = {"Authorization": f"Bearer {token}"}
        request = urllib.request.Request(address, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                answer = json.load(error)
                kind = error.headers["content-type"]
                return error.code, answer if kind == "application/problem+json" else {"detail": kind}


@pytest.fixture(scope="module", params=[1, 2])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    found = Served(tmp_path_factory.mktemp("frame-remove"), request.param)
    found.broker.start()
    yield found
    finish(found.broker)


def test_queues_and_clusters_of_any_name_are_listed_shown_removed_and_stay_away(served: Served) -> None:
    with Device(served.port, b"maker") as device:
        for number, name in enumerate(NAMES):
            device.publish(number, name, b"x")
            assert device.join(name, CLUSTER) == 0
            assert device.leave(name, CLUSTER) == 0
    assert sorted(row["topic"] for row in served.rows("queues")) == sorted(NAMES)
    assert [row["cluster"] for row in served.rows("clusters")] == [CLUSTER] * len(NAMES)
    for name in NAMES[::2]:
        topic = f"topic={quote(name, safe='')}"
        status, answer = served.delete(f"/v1/queues?{topic}")
        assert (status, "1 messages to finish" in answer["detail"]) == (409, True)
        status, answer = served.delete(f"/v1/queues?{topic}&force=true")
        assert (status, answer["topic"], answer["messages"], answer["unfinished"]) == (200, name, 1, 1)
    for name in NAMES[1::2]:
        named = f"topic={quote(name, safe='')}&cluster={quote(CLUSTER, safe='')}"
        status, answer = served.delete(f"/v1/clusters?{named}")
        assert (status, answer["cluster"], answer["unfinished"]) == (200, CLUSTER, 1)
    left = [(row["topic"], row["messages"], row["clusters"]) for row in served.rows("queues")]
    assert sorted(left) == sorted((name, 1, 0) for name in NAMES[1::2])
    assert 'reason="removed"' in served.broker.get("/metrics").body
    served.broker.kill()
    served.broker.start()
    again = [(row["topic"], row["messages"], row["clusters"]) for row in served.rows("queues")]
    assert sorted(again) == sorted(left)
    for name in NAMES[1::2]:  # without a cluster nothing is lost by it
        assert served.delete(f"/v1/queues?topic={quote(name, safe='')}")[0] == 200
    assert served.rows("queues") == []


def test_the_commands_name_what_they_remove_exactly(served: Served) -> None:
    name = NAMES[3]
    with Device(served.port, b"maker") as device:
        device.publish(50, name, b"x")
        assert device.join(name, CLUSTER) == 0
        assert device.leave(name, CLUSTER) == 0
    [listed] = served.done("queue", "list", "--json").splitlines()
    [shown] = served.done("queue", "show", name, "--json").splitlines()
    assert json.loads(listed)["topic"] == json.loads(shown)["topic"] == name
    assert json.loads(shown)["device"] == "maker"
    assert json.loads(served.done("cluster", "show", name, CLUSTER, "--json"))["lag"] == 1
    refused = served.run("queue", "remove", name)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "1 messages to finish" in refused.stderr
    assert "had not finished 1 messages" in served.done("cluster", "remove", name, CLUSTER)
    assert "is removed, with 1 messages" in served.done("queue", "remove", name)
    assert served.rows("queues") == []


def test_what_is_not_there_is_2_and_404_with_the_name(served: Served) -> None:
    for options in (("queue", "remove", "no/such"), ("cluster", "show", "no/such", "c")):
        found = served.run(*options)
        assert (found.returncode, found.stdout) == (2, ""), options
        assert "no/such" in found.stderr
    for path in ("/v1/queues?topic=no%2Fsuch", "/v1/clusters?topic=no%2Fsuch&cluster=c"):
        status, answer = served.delete(path)
        assert (status, "no/such" in answer["detail"]) == (404, True)


def test_who_reads_it_is_named_and_keeps_it_also_by_force(served: Served) -> None:
    with Device(served.port, b"reader") as device:
        assert device.join("kept", "store") == 0
        found = served.run("queue", "remove", "kept", "--force")
        assert (found.returncode, found.stdout) == (1, "")
        assert "reader" in found.stderr
        assert served.delete("/v1/clusters?topic=kept&cluster=store")[0] == 409
        assert served.delete("/v1/queues?topic=kept&force=true")[0] == 409
        device.publish(1, "kept", b"x")
        assert [one.payload for one in device.pull("kept", "store", 5, wait_ms=10_000)] == [b"x"]
        assert device.leave("kept", "store") == 0
        assert served.delete("/v1/queues?topic=kept&force=true")[0] == 200


def test_who_may_only_look_removes_nothing(served: Served) -> None:
    with Device(served.port, b"maker") as device:
        device.publish(100, "mine", b"x")
    refused = served.run("queue", "remove", "mine", token=served.looks)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "operate" in refused.stderr
    assert served.delete("/v1/queues?topic=mine", "public")[0] == 403
    assert served.delete("/v1/queues?topic=mine", "wrong")[0] == 401
    assert served.delete("/v1/queues?topic=mine")[0] == 200


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("/v1/queues", "topic"),
        ("/v1/queues?topic=", "topic"),
        ("/v1/queues?topic=a%2F%23", "topic"),
        ("/v1/queues?topic=a&topic=b", "topic"),
        ("/v1/queues?topic=a&force=1", "force"),
        ("/v1/queues?topic=a&cluster=b", "cluster"),
        ("/v1/queues?topic=a&tenant=", "tenant"),
        ("/v1/queues?topic=%FF", "UTF-8"),
        ("/v1/clusters?topic=a", "cluster"),
        ("/v1/clusters?topic=a&cluster=" + "c" * 256, "cluster"),
    ],
)
def test_what_is_not_said_exactly_is_a_problem_that_names_it(served: Served, path: str, key: str) -> None:
    status, answer = served.delete(path)
    assert status == 400
    assert key in answer["detail"]


@pytest.mark.parametrize(
    "options",
    [("queue", "remove", "a/#"), ("queue", "show", "+"), ("cluster", "remove", "a", ""), ("queue", "remove")],
)
def test_wrong_use_is_2(options: tuple[str, ...]) -> None:
    found = headrace("frame", *options)
    assert (found.returncode, found.stdout) == (2, "")
    assert len(found.stderr.splitlines()) == 1
