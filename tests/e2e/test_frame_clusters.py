"""`headrace frame clusters` and the endpoint behind it, on a running broker that devices and a service use."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker_process import BrokerProcess, free_port, headrace
from e2e.conftest import finish
from e2e.device import Device

pytestmark = pytest.mark.skipif("__import__('broker_process').UNDER_AUDIT != 'headrace'")


class Served:
    """A broker that devices use, and who may look at it."""

    def __init__(self, folder: Path) -> None:
        (folder / "tokens").write_text("read public\n")
        self.port = free_port()
        settings = {"journal.token_file": folder / "tokens", "frames.visibility_s": 600}
        self.broker = BrokerProcess(folder, settings, ["--listen", f"frame://127.0.0.1:{self.port}"])
        self.token = folder / "tokens"

    def shown(self, *options: str) -> list[dict[str, Any]]:
        found = self.run("--json", *options)
        assert (found.returncode, found.stderr) == (0, "")
        return [json.loads(line) for line in found.stdout.splitlines()]

    def run(self, *options: str) -> Any:
        admin = f"http://127.0.0.1:{self.broker.admin_port}"
        return headrace("frame", "clusters", *options, "--admin", admin, "--token-file", str(self.token))

    def ask(self, query: str) -> tuple[int, str, dict[str, Any]]:
        """(status, content type, answer)"""
        address = f"http://127.0.0.1:{self.broker.admin_port}/v1/clusters{query}"
        request = urllib.request.Request(address, headers={"Authorization": "Bearer public"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.headers["content-type"], json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers["content-type"], json.load(error)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    found = Served(tmp_path_factory.mktemp("frame-clusters"))
    found.broker.start()
    with Device(found.port) as device:
        for seq in range(5):
            device.publish(seq, "doors/1", b"open")
        device.publish(9, "doors/2", b"open")
        assert device.join("doors/1", "store") == 0
        assert device.join("doors/1", "bill") == 0
        got = device.pull("doors/1", "store", 3)
        assert device.ack("doors/1", "store", got[0].message_id) == 0
        yield found
    finish(found.broker)


def test_queues_and_clusters_are_told_with_what_they_have_left(served: Served) -> None:
    store, bill, quiet = served.shown()
    assert (store["topic"], store["cluster"], store["messages"]) == ("doors/1", "store", 5)
    assert (store["lag"], store["in_flight"], store["consumers"], store["waiting"]) == (4, 2, 1, 0)
    assert (bill["cluster"], bill["lag"], bill["in_flight"]) == ("bill", 5, 0)
    assert (quiet["topic"], quiet["cluster"], quiet["messages"]) == ("doors/2", None, 1)
    assert 0 <= store["acked_per_s"] <= 0.1
    assert all(0 <= row["oldest_s"] < 600 for row in (store, bill, quiet))


def test_rows_are_chosen(served: Served) -> None:
    assert [row["cluster"] for row in served.shown("--cluster", "bill")] == ["bill"]
    assert [row["topic"] for row in served.shown("--topic", "+/2")] == ["doors/2"]
    assert served.shown("--tenant", "nobody") == []


def test_lines_for_people(served: Served) -> None:
    lines = served.run("--topic", "doors/1").stdout.splitlines()
    assert lines[0].split()[:3] == ["lag", "in", "flight"]
    assert [line.split()[-3:] for line in lines[1:]] == [
        ["default", "doors/1", "store"],
        ["default", "doors/1", "bill"],
    ]


@pytest.mark.parametrize(
    ("options", "key"),
    [
        (["--topic", "a/#/b"], "--topic"),
        (["--topic", ""], "--topic"),
        (["--cluster", ""], "--cluster"),
        (["--tenant", ""], "--tenant"),
        (["--admin", "nowhere"], "--admin"),
        (["--limit", "3"], "--limit"),
    ],
)
def test_wrong_use_is_2_and_names_the_key(options: list[str], key: str) -> None:
    found = headrace("frame", "clusters", *options)
    assert (found.returncode, found.stdout) == (2, "")
    assert key in found.stderr
    assert len(found.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "query",
    [
        *("limit=0", "limit=1001", "limit=x", "limit=%C2%B2", "topic=%23/a", "topic=", "cluster=", "tenant="),
        *("from=x", "from=1", "from=1.-2", "from=" + "9" * 30 + ".1", "topics=a"),
    ],
)
def test_what_is_wrong_with_a_request_is_a_problem_that_names_it(served: Served, query: str) -> None:
    status, kind, answer = served.ask(f"?{query}")
    assert (status, kind, answer["status"]) == (400, "application/problem+json", 400)
    assert answer["detail"].startswith(query.partition("=")[0] + ": ")


def test_pages_go_on_where_the_one_before_ended(served: Served) -> None:
    found, following = [], ""
    for _ in range(3):
        _, _, page = served.ask(f"?limit=1{following}")
        found += page["rows"]
        following = f"&from={page['next']}"
    assert [(row["topic"], row["cluster"]) for row in found] == [
        ("doors/1", "store"),
        ("doors/1", "bill"),
        ("doors/2", None),
    ]
    assert served.ask(f"?limit=1{following}")[2] == {"rows": [], "next": None}


def test_nobody_looks_without_a_token(served: Served) -> None:
    assert served.broker.get("/v1/clusters").status == 401
    refused = headrace(
        "frame", "clusters", "--admin", f"http://127.0.0.1:{served.broker.admin_port}", "--json"
    )
    assert (refused.returncode, refused.stdout) == (1, "")
