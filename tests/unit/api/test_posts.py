"""Publishing over the admin HTTP: bodies of every odd form, what is answered, what the log says, who may."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.types import Message

from harness import Harness
from headrace.api.posts import BODY_BYTES_MAX, of_posts
from headrace.api.problem import PROBLEM_JSON
from headrace.api.resource import served
from headrace.api.tokens import Tokens
from headrace.mqtt.properties import Properties
from headrace.services.posts import Posts


class Site:
    """The admin HTTP of a broker without a network."""

    def __init__(self, folder: Path) -> None:
        self.harness = Harness()
        (folder / "tokens").write_text("read looks\noperate does\noperate tenant=default tenants\n")
        routes = served(Tokens(folder / "tokens"), of_posts(Posts([self.harness.broker])))
        self._app = Starlette(routes=routes)

    def ask(self, method: str, target: str, body: Any = None, token: str = "does") -> tuple[int, Any]:
        """Status and content of the answer; the journal syncs meanwhile. `body`: bytes, or what becomes JSON."""
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        return asyncio.run(self._life(method, target, data, token))

    async def _life(self, method: str, target: str, data: bytes, token: str) -> tuple[int, Any]:
        raw, _, query = target.partition("?")
        scope = {"type": "http", "method": method, "path": raw, "raw_path": raw.encode()}
        scope |= {"query_string": query.encode(), "client": ("192.0.2.7", 4711), "root_path": ""}
        scope |= {"headers": [(b"authorization", f"Bearer {token}".encode())], "scheme": "http"}
        sent: list[Message] = []
        parts = [data[at : at + 65_536] for at in range(0, len(data), 65_536)] or [b""]

        async def receive() -> Message:
            if not parts:
                return {"type": "http.disconnect"}  # as a server has it when all of the body has come
            part = parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(parts)}

        async def send(message: Message) -> None:
            sent.append(message)

        task = asyncio.create_task(self._app(scope, receive, send))
        while not task.done():
            await asyncio.sleep(0.001)
            self.harness.sync()
        await task
        answer = b"".join(message.get("body", b"") for message in sent)
        kind = dict(sent[0]["headers"])[b"content-type"].decode()
        assert kind == (PROBLEM_JSON if sent[0]["status"] >= 400 else "application/json")
        return sent[0]["status"], json.loads(answer)

    def publish(self, body: Any, **more: str) -> tuple[int, Any]:
        return self.ask("POST", "/v1/publish", body, **more)

    def retained(self, topic: bytes) -> Any:
        return self.harness.broker.fold.tenant("default").retained.get(topic)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_everything_of_a_message_arrives(site: Site) -> None:
    properties = {
        "payload_format_indicator": 1,
        "message_expiry_interval": 99,
        "content_type": "text/plain",
        "response_topic": "answers/here",
        "correlation_data": base64.b64encode(b"\x00\xff").decode(),
        "user_properties": [["a", "1"], ["a", "2"]],
    }
    body = {"topic": "a/größe", "text": "größe", "qos": 2, "retain": True, "properties": properties}
    status, answer = site.publish(body)
    assert (status, answer["topic"], answer["qos"], answer["is_stored"]) == (200, "a/größe", 2, True)
    assert (answer["reason_code"], answer["matching"]) == (16, 0)
    found = site.retained("a/größe".encode())
    assert (found.payload.decode(), found.qos, found.message_expiry_s) == ("größe", 2, 99)
    wanted = Properties()
    wanted.payload_format_indicator, wanted.content_type = 1, "text/plain"
    wanted.response_topic, wanted.correlation_data = "answers/here", b"\x00\xff"
    wanted.user_properties = [("a", "1"), ("a", "2")]
    decoded = Properties.decode(found.properties, 0, len(found.properties), 3)
    assert decoded == wanted


def test_a_payload_may_be_bytes_or_nothing(site: Site) -> None:
    reader = site.harness.client("reader")
    reader.subscribe("a")
    assert site.publish({"topic": "a", "payload": "AP8="})[1]["matching"] == 1
    assert site.publish({"topic": "a"})[0] == 200
    assert [payload for _, payload, _, _ in reader.publishes()] == [b"\x00\xff", b""]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "truncated"),
        (b"{", "truncated"),
        (b"\xff", "malformed"),
        (b"[]", "object"),
        (b"null", "object"),
        ({}, "topic"),
        ({"topic": 1}, "topic"),
        ({"topic": ""}, "topic"),
        ({"topic": "a/#"}, "wildcard"),
        ({"topic": "a\x00"}, "0x"),
        (b'{"topic": "\\ud800"}', ""),
        ({"topic": "a", "text": "x", "payload": "eA=="}, "payload and text"),
        ({"topic": "a", "payload": "not base64"}, "payload"),
        ({"topic": "a", "qos": 3}, "qos"),
        ({"topic": "a", "qos": "1"}, "qos"),
        ({"topic": "a", "qos": True}, "qos"),
        ({"topic": "a", "retain": 1}, "retain"),
        ({"topic": "a", "qoss": 1}, "qoss"),
        ({"topic": "a", "properties": {"topic_alias": 1}}, "topic_alias"),
        ({"topic": "a", "properties": {"message_expiry_interval": -1}}, "message_expiry_interval"),
        ({"topic": "a", "properties": {"message_expiry_interval": 1 << 32}}, "message_expiry_interval"),
        ({"topic": "a", "properties": {"user_properties": [["a"]]}}, "user_properties"),
        ({"topic": "a", "properties": {"response_topic": "a/+"}}, ""),
        ({"topic": "a", "properties": {"content_type": "x" * 65_536}}, "bytes"),
    ],
)
def test_a_body_of_another_form_is_refused_and_leaves_nothing(site: Site, body: Any, said: str) -> None:
    before = site.harness.broker.commit.next_offset
    status, answer = site.publish(body)
    assert (status, answer["status"]) == (400, 400)
    assert said in answer["detail"]
    assert site.harness.broker.commit.next_offset == before


def test_a_long_body_is_taken_up_to_a_limit(site: Site) -> None:
    text = "x" * (BODY_BYTES_MAX - 100)
    assert site.publish({"topic": "a", "text": text})[0] == 200
    status, answer = site.publish({"topic": "a", "text": text + 100 * "x"})
    assert (status, answer["detail"]) == (413, f"the body is longer than {BODY_BYTES_MAX} bytes")


def test_what_the_broker_does_not_take_has_its_reason_code(site: Site) -> None:
    status, answer = site.publish({"topic": "$SYS/broker/x"})
    assert (status, answer["reason_code"]) == (403, 0x87)
    site.harness.broker.set_storage_full(True)
    status, answer = site.publish({"topic": "a"})
    assert (status, answer["reason_code"]) == (507, 0x97)
    site.harness.broker.set_storage_full(False)


@pytest.mark.parametrize(("token", "status"), [("looks", 403), ("tenants", 403), ("nobody", 401)])
def test_who_may_not_publish_or_delete(site: Site, token: str, status: int) -> None:
    site.publish({"topic": "a", "retain": True, "text": "x"})
    assert site.publish({"topic": "a"}, token=token)[0] == status
    assert site.ask("DELETE", "/v1/retained/a", token=token)[0] == status
    assert site.retained(b"a") is not None


def test_an_unknown_tenant_is_not_there(site: Site) -> None:
    status, answer = site.ask("POST", "/v1/publish?tenant=nobody", {"topic": "a"})
    assert (status, "nobody" in answer["detail"]) == (404, True)
    assert site.ask("POST", "/v1/publish?tennant=x", {"topic": "a"})[0] == 400


@pytest.mark.parametrize("at", ["/v1/retained/a%2F%2Fb", "/v1/retained?topic=a%2F%2Fb"])
def test_what_is_retained_is_deleted_and_its_reader_is_told(site: Site, at: str) -> None:
    reader = site.harness.client("reader")
    reader.subscribe("a/#")
    site.publish({"topic": "a//b", "retain": True, "text": "x"})
    reader.take()
    status, answer = site.ask("DELETE", at)
    assert (status, answer) == (200, {"tenant": "default", "topic": "a//b", "size": 5, "client_id": ""})
    assert [payload for _, payload, _, _ in reader.publishes()] == [b""]
    assert site.retained(b"a//b") is None
    assert site.ask("DELETE", at)[0] == 404


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, Any]]:
    return [(record.getMessage(), record.__dict__["fields"]) for record in caplog.records]


def test_the_log_says_who_published_and_deleted_what_and_from_where_without_its_content(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        site.publish({"topic": "a", "retain": True, "text": "secret content"})
        site.ask("DELETE", "/v1/retained/a")
    (published, about), (deleted, of) = lines(caplog)
    assert (published, deleted) == ("message published", "retained message deleted")
    by = {"role": "operate", "token_line": 2, "by": "192.0.2.7:4711"}
    assert about.items() >= {"topic": "a", "size": 15, **by}.items()
    assert of.items() >= {"topic": "a", "size": 15, **by}.items()
    assert "secret content" not in repr(about)
