"""The journal over HTTP: who may read it, what is served and what is not, and refusals that say why."""

from __future__ import annotations

import gzip
import json
import signal
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from broker_process import BrokerProcess, headrace, wait_until
from certificates import Authority
from e2e.raw import RawClient
from headrace.api.journal import EACH_MAX
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
    broker: BrokerProcess,
    path: str = "/",
    token: str = "secret",
    span: str = "",
    body: object = None,
    encoding: str = "identity",
    method: str | None = None,
) -> Answer:
    headers = {"Accept-Encoding": encoding} | ({"Authorization": f"Bearer {token}"} if token else {})
    if span:
        headers["Range"] = span
    data = None if body is None else json.dumps(body).encode()
    url = f"http://127.0.0.1:{broker.admin_port}/v1/journal{path}"
    request = urllib.request.Request(url, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return Answer(answer.status, answer.read(), answer.headers)
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.read(), error.headers)


@pytest.fixture(scope="module")
def broker_settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Of the one broker that all refusals come from."""
    token = tmp_path_factory.mktemp("token") / "token"
    token.write_text("secret\n")
    return {"journal.token_file": token}


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
    owned = position | {"offset": 1, "owner": "archive:1 in /lake"}
    assert ask(serving, "/consumers/far/commit", body=owned).status == 204
    assert json.loads(ask(serving, "/consumers/far").body)["owner"] == "archive:1 in /lake"
    taken = ask(serving, "/consumers/far/register", body=position)
    assert (taken.status, "belongs to archive:1" in str(taken.body)) == (409, True)
    position["owner"] = "archive:1"
    refused = ask(serving, "/consumers/far/commit", body=position | {"epoch": 9})
    assert (refused.status, "epoch 9" in refused.problem) == (409, True)


def test_a_consumer_is_removed_by_who_may_operate(brokers: Brokers, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\nread looker\noperate consumer=own mine\n")
    (tmp_path / "secret").write_text("secret\n")
    broker = brokers({"journal.token_file": tmp_path / "token", "shards": 2}).start()
    for shard in (0, 1):
        summary = json.loads(ask(broker, "/shards").body)["shards"][shard]
        position = {"uuid": summary["uuid"], "epoch": summary["epoch"], "offset": 0}
        for name in ("far", "other"):
            at = f"/shards/{shard}/consumers/{name}/register"
            assert ask(broker, at, body=position).status == 204
    assert ask(broker, "/shards/0/consumers/far", "looker", method="DELETE").status == 403
    assert ask(broker, "/shards/0/consumers/far", "mine", method="DELETE").status == 403
    assert "neither true" in ask(broker, "/shards/0/consumers/far?force=1", method="DELETE").problem
    removed = ask(broker, "/shards/0/consumers/far", method="DELETE")
    assert (removed.status, json.loads(removed.body)["name"]) == (200, "far")
    assert "no consumer 'far'" in ask(broker, "/shards/0/consumers/far", method="DELETE").problem
    admin = ["--admin", f"http://127.0.0.1:{broker.admin_port}", "--token-file", str(tmp_path / "secret")]
    said = headrace("consumer", "remove", "far", *admin)
    assert (said.returncode, said.stdout) == (
        0,
        "shard 1: far was at offset 0; nobody waits for it any more\n",
    )
    unknown = headrace("consumer", "remove", "far", *admin)
    assert unknown.returncode != 0
    assert "no consumer 'far'" in unknown.stderr
    assert headrace("consumer", "list", "--data-dir", str(broker.data_dir)).stdout.count("other") == 2


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
        ("/consumers/x/commit", {"body": "x" * 5000}, 413, "4096"),
        ("/consumers/x/commit", {"token": "", "body": "x" * 5000}, 401, "a bearer token"),  # before the body
        ("/consumers/x/reset", {"body": {"uuid": "", "epoch": 1, "offset": 1}}, 404, "register or commit"),
    ],
)
def test_refusals_say_why(
    broker: BrokerProcess, path: str, options: dict[str, Any], status: int, problem: str
) -> None:
    answer = ask(broker, path, **options)
    assert answer.status == status
    if problem:
        assert problem in answer.problem


def test_without_a_token_file_nobody_reads(own_broker: BrokerProcess) -> None:
    answer = ask(own_broker)
    assert (answer.status, "journal.token_file" in answer.problem) == (403, True)


@pytest.mark.parametrize(
    ("span", "status"),
    [
        ("bytes=999999999999999999-", 416),
        ("bytes=0-999999999999999999", 206),
        (f"bytes={10**19}-{10**19 + 1}", 400),
        (f"bytes={'9' * 5000}-", 400),
        ("bytes=-1", 400),
        ("bytes=1-0", 416),
    ],
)
def test_ranges_of_any_size_are_answered_and_never_an_error_of_ours(
    broker: BrokerProcess, clients: Clients, span: str, status: int
) -> None:
    clients(broker).deliver("t", b"x")
    name = json.loads(ask(broker).body)["segments"][0]["name"]
    answer = ask(broker, f"/files/{name}", span=span)
    assert answer.status == status
    assert status == 206 or answer.problem


@pytest.mark.parametrize(
    "name", [f"{2**63:020d}.log", f"{10**19:020d}.log", "-1.log", "..", "%2e%2e%2fwatermark", "x" * 300]
)
def test_names_that_are_none_are_not_found(broker: BrokerProcess, name: str) -> None:
    assert ask(broker, f"/files/{name}").status == 404


@pytest.mark.parametrize("offset", [-1, 2**63, 2**70, 1.5, "1"])
def test_positions_that_are_none_are_refused(broker: BrokerProcess, offset: object) -> None:
    uuid = json.loads(ask(broker).body)["uuid"]
    body = {"uuid": uuid, "epoch": 1, "offset": offset}
    answer = ask(broker, "/consumers/c/register", body=body)
    assert answer.status == 400
    assert "offset" in answer.problem


def test_a_token_that_may_only_read_moves_nothing(brokers: Brokers, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("read looker\noperate mover\n")
    serving = brokers({"journal.token_file": tmp_path / "token"}).start()
    catalog = json.loads(ask(serving, token="looker").body)
    body = {"uuid": catalog["uuid"], "epoch": catalog["epoch"], "offset": 0}
    refused = ask(serving, "/consumers/c/register", "looker", body=body)
    assert (refused.status, "operate" in refused.problem) == (403, True)
    assert ask(serving, "/consumers/c/register", "mover", body=body).status == 204
    assert ask(serving, "/consumers/c", "looker").status == 200


def test_the_journal_over_tls(brokers: Brokers, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    certificate, key = authority.issue("localhost")
    (tmp_path / "token").write_text("secret")
    settings = {"journal.token_file": tmp_path / "token", "tls.certificate": certificate, "tls.key": key}
    serving = brokers(settings)
    serving.extra = ["--admin", f"https://127.0.0.1:{serving.admin_port}"]
    serving.start()
    trusting = ssl.create_default_context(cafile=str(authority.ca))
    url = f"https://localhost:{serving.admin_port}/v1/journal/"
    request = urllib.request.Request(url, headers={"Authorization": "Bearer secret"})
    with urllib.request.urlopen(request, timeout=30, context=trusting) as answer:
        assert json.loads(answer.read())["epoch"] == 1
    assert serving.process is not None
    serving.process.send_signal(signal.SIGHUP)
    serving.wait_for_line("reloaded")
    certificate.write_text("no certificate")
    serving.process.send_signal(signal.SIGHUP)
    serving.wait_for_line("certificate not reloaded")
    with urllib.request.urlopen(request, timeout=30, context=trusting) as answer:
        assert answer.status == 200
    serving.stop()


LIMITED = """secret
read tenant=default ours
read tenant=nobody theirs
operate consumer=alarms,other mover
"""


@pytest.fixture
def limiting(brokers: Brokers, clients: Clients, tmp_path: Path) -> BrokerProcess:
    """A broker with tokens of tenants and consumers, and 4 MiB in its journal."""
    (tmp_path / "token").write_text(LIMITED)
    broker = brokers({"journal.token_file": tmp_path / "token"}).start()
    client = clients(broker)
    for n in range(40):
        client.deliver("t", b"%d confidential " % n * 7000)
    return broker


def test_tokens_of_tenants_and_consumers_let_nothing_else_be_seen_or_moved(
    limiting: BrokerProcess, tmp_path: Path
) -> None:
    path = "/files/00000000000000000000.log"
    whole, ours, theirs = (
        ask(limiting, path, token, "bytes=0-1048575") for token in ("secret", "ours", "theirs")
    )
    assert whole.body.startswith(ours.body[:4])
    assert (b"0 confidential" in ours.body, b"confidential" in theirs.body) == (True, False)
    assert 0 < len(theirs.body) == len(ours.body) < len(whole.body)
    assert (
        theirs.headers["Content-Range"].partition("/")[2] == whole.headers["Content-Range"].partition("/")[2]
    )
    assert ours.headers["ETag"] != whole.headers["ETag"]
    catalogs = [json.loads(ask(limiting, "/", token).body) for token in ("secret", "theirs", "mover")]
    assert [catalog.get("tenant") for catalog in catalogs] == [None, "nobody", None]

    position = {"uuid": catalogs[0]["uuid"], "epoch": catalogs[0]["epoch"], "offset": 1}
    moves = {
        ("mover", "alarms"): 204,
        ("mover", "other"): 204,
        ("mover", "archive"): 403,
        ("ours", "alarms"): 403,
        ("secret", "archive"): 204,
    }
    found = {
        (token, name): ask(limiting, f"/consumers/{name}/register", token, body=position)
        for token, name in moves
    }
    assert {asked: answer.status for asked, answer in found.items()} == moves
    assert "not for the consumer archive" in found["mover", "archive"].problem
    assert [ask(limiting, f"/consumers/{name}", "mover").status for name in ("alarms", "archive")] == [
        200,
        403,
    ]

    (tmp_path / "token").write_text(LIMITED.replace("ours", "theirs2"))  # it is taken away
    assert ask(limiting, path, "ours", "bytes=0-9").status == 401


def test_who_sends_half_a_body_holds_up_no_other_tenant(limiting: BrokerProcess) -> None:
    head = b"GET /v1/journal/ HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ours\r\nContent-Length: 100\r\n"
    with socket.create_connection(("127.0.0.1", limiting.admin_port), timeout=60) as connection:
        connection.sendall(head + b"Expect: 100-continue\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 100 ")  # the body is waited for
        assert ask(limiting, "/", "theirs").status == 200


def test_a_range_comes_compressed_to_who_takes_that(limiting: BrokerProcess) -> None:
    path, span = "/files/00000000000000000000.log", "bytes=1000-900999"
    plain, packed = ask(limiting, path, span=span), ask(limiting, path, span=span, encoding="gzip")
    assert (plain.headers["Content-Encoding"], packed.headers["Content-Encoding"]) == (None, "gzip")
    assert gzip.decompress(packed.body) == plain.body
    assert len(packed.body) < len(plain.body) / 10
    assert packed.headers["Content-Range"] == plain.headers["Content-Range"]
    assert packed.headers["Vary"] == "Accept-Encoding"


def test_who_reads_slowly_and_asks_for_everything_at_once_holds_up_nobody(limiting: BrokerProcess) -> None:
    """The system takes half a megabyte for each connection; what is behind that waits in the broker."""
    request = (
        b"GET /v1/journal/files/00000000000000000000.log HTTP/1.1\r\nHost: localhost\r\n"
        b"Authorization: Bearer mover\r\nRange: bytes=0-1048575\r\n\r\n"
    )
    held = []
    try:
        for _ in range(2 * EACH_MAX):
            slow = socket.socket()
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.connect(("127.0.0.1", limiting.admin_port))
            slow.sendall(request * 3)
            held.append(slow)
        wait_until(lambda: ask(limiting, "/", "mover").status == 429, "no turn is left", 60)
        refused = ask(limiting, "/", "mover")
        assert (refused.status, refused.headers["Retry-After"]) == (429, "1")
        assert "on their way" in refused.problem
        assert ask(limiting, "/files/00000000000000000000.log", span="bytes=0-1048575").status == 206
        assert "headrace_sessions" in " ".join(limiting.metrics())
    finally:
        for slow in held:
            slow.close()
    wait_until(lambda: ask(limiting, "/", "mover").status == 200, "turns are given back", 60)


def test_a_reader_learns_how_much_there_is_by_now_while_the_segment_is_written(
    limiting: BrokerProcess, clients: Clients
) -> None:
    """Whatever was answered before to whom."""
    path, client = "/files/00000000000000000000.log", clients(limiting)
    sizes = []
    for _ in range(3):
        client.deliver("t", b"more")
        answer = ask(limiting, path, span="bytes=0-65535")
        sizes.append(int(answer.headers["Content-Range"].partition("/")[2]))
        (written,) = json.loads(ask(limiting, "/").body)["segments"]
        assert sizes[-1] == 64 + written["bytes"]
    assert sizes == sorted(set(sizes))
