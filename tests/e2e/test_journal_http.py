"""The journal over HTTP: who may read it, what is served and what is not, and refusals that say why."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from broker_process import BrokerProcess
from e2e.raw import RawClient
from headrace.journal.consumers import ConsumerPosition
from headrace.journal.reader import JournalReader

Clients = Callable[..., RawClient]
Brokers = Callable[..., BrokerProcess]


class Answer(NamedTuple):
    status: int
    body: bytes
    headers: Any

    @property
    def problem(self) -> str:
        assert self.headers["content-type"] == "application/problem+json"
        return str(json.loads(self.body)["detail"])


def ask(
    broker: BrokerProcess, path: str = "/", token: str = "secret", span: str = "", body: object = None
) -> Answer:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    if span:
        headers["Range"] = span
    data = None if body is None else json.dumps(body).encode()
    url = f"http://127.0.0.1:{broker.admin_port}/v1/journal{path}"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=30) as answer:
            return Answer(answer.status, answer.read(), answer.headers)
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.read(), error.headers)


@pytest.fixture
def serving(brokers: Brokers, tmp_path: Path) -> BrokerProcess:
    (tmp_path / "token").write_text("secret\n")
    return brokers({"journal.token_file": tmp_path / "token", "journal.segment_bytes_max": 16384}).start()


def test_segments_are_served_up_to_the_high_watermark(serving: BrokerProcess, clients: Clients) -> None:
    client = clients(serving)
    for n in range(60):
        client.deliver("t", b"%d" % n * 500)
    catalog = json.loads(ask(serving).body)
    reader = JournalReader(serving.data_dir)
    assert (catalog["uuid"], catalog["epoch"]) == (reader.uuid, reader.epoch)
    assert len(catalog["segments"]) > 1
    for segment in catalog["segments"]:
        answer = ask(serving, f"/files/{segment['name']}", span="bytes=0-1048575")
        assert answer.status == 206
        data = (serving.data_dir / "journal" / segment["name"]).read_bytes()
        assert answer.body == data[: len(answer.body)]
        assert answer.headers["Content-Range"].endswith(f"/{len(answer.body)}")
    written = catalog["segments"][-1]
    assert len(answer.body) == 64 + written["bytes"]  # nothing of what is preallocated
    part = ask(serving, f"/files/{written['name']}", span="bytes=4-7")
    assert part.body == answer.body[4:8]
    assert ask(serving, "/watermark").body[:4] == b"HRWM"
    index = catalog["segments"][0]["name"].replace(".log", ".index")
    assert ask(serving, f"/files/{index}").status == 200


def test_consumers_are_registered_and_move(serving: BrokerProcess) -> None:
    reader = JournalReader(serving.data_dir)
    position = {"uuid": reader.uuid, "epoch": reader.epoch, "offset": 0}
    assert ask(serving, "/consumers/far/register", body=position).status == 204
    assert ask(serving, "/consumers/far/commit", body=position | {"offset": 1}).status == 204
    assert ConsumerPosition.read(serving.data_dir, "far").offset == 1
    assert json.loads(ask(serving, "/consumers/far").body)["offset"] == 1
    refused = ask(serving, "/consumers/far/commit", body=position | {"epoch": 9})
    assert (refused.status, "epoch 9" in refused.problem) == (409, True)


@pytest.mark.parametrize(
    ("path", "options", "status", "problem"),
    [
        ("/", {"token": ""}, 401, "a bearer token is needed"),
        ("/", {"token": "guess"}, 401, "not the token"),
        ("/files/00000000000000009999.log", {}, 404, "9999"),
        ("/files/lock", {}, 404, "neither a segment nor an index"),
        ("/files/..%2Fwatermark", {}, 404, ""),
        ("/files/00000000000000000000.log", {"span": "bytes=-5"}, 400, "FIRST-LAST"),
        ("/files/00000000000000000000.log", {"span": "bytes=99999999-"}, 416, "bytes"),
        ("/consumers/nobody", {}, 404, "no consumer 'nobody'"),
        ("/consumers/x/commit", {"body": [1]}, 400, "object"),
        ("/consumers/x/commit", {"token": "", "body": "x" * 5000}, 413, "4096"),
        ("/consumers/x/reset", {"body": {"uuid": "", "epoch": 1, "offset": 1}}, 404, "register or commit"),
    ],
)
def test_refusals_say_why(
    serving: BrokerProcess, path: str, options: dict[str, Any], status: int, problem: str
) -> None:
    answer = ask(serving, path, **options)
    assert answer.status == status
    if problem:
        assert problem in answer.problem


def test_without_a_token_file_nobody_reads(own_broker: BrokerProcess) -> None:
    answer = ask(own_broker)
    assert (answer.status, "journal.token_file" in answer.problem) == (403, True)
