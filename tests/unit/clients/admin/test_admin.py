"""Every method of the client is asked of a broker that runs, over its socket; the types are those of the description."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import msgspec
import pytest

from broker_process import free_port, wait_until
from headrace.api.openapi import document
from headrace.api.operations import RESOURCES
from headrace.clients.admin import (
    Admin,
    Conflict,
    Forbidden,
    NotFound,
    Problem,
    PublishProperties,
    Unauthorized,
    Unreachable,
    rows,
)
from headrace.config import Config, JournalConfig, LimitsConfig
from headrace.mqtt import codec
from headrace.mqtt.packets import Connect, SubscriptionRequest
from headrace.mqtt.properties import Properties
from headrace.node.node import Node

ODD = "a/b//c?x=1&y=#% ö"


class Mqtt:
    """A client of MQTT 5 on a socket, whose session stays."""

    def __init__(self, port: int, client_id: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        properties = Properties()
        properties.session_expiry_interval = 1000
        self.send(codec.encode_connect(Connect(5, client_id, False, 0, properties=properties)))
        assert self.receive() == 0x20

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self) -> int:
        """The first byte of the next packet."""
        first, length = self._socket.recv(1)[0], self._socket.recv(1)[0]
        while length:
            length -= len(self._socket.recv(length))
        return first

    def subscribe(self, topic_filter: str) -> Self:
        request = SubscriptionRequest(topic_filter, 1)
        self.send(codec.encode_subscribe(5, 1, [request], Properties()))
        assert self.receive() == 0x90
        return self

    def close(self) -> None:
        self._socket.close()


class Operated:
    """A broker that runs, and what it was configured by."""

    def __init__(self, folder: Path) -> None:
        (folder / "tokens").write_text("read looks\noperate does\n")
        self.port, self.url = free_port(), ""
        self.config = Config(
            data_dir=str(folder / "data"),
            shards=2,
            listeners=(f"tcp://127.0.0.1:{self.port}",),
            admin="http://127.0.0.1:0",
            journal=JournalConfig(token_file=str(folder / "tokens")),
        )

    def run(self, work: Callable[[Admin], None]) -> None:
        """Do the work on a thread while the broker runs."""

        def asked() -> None:
            with Admin(self.url, "does", timeout_s=60) as admin:
                work(admin)

        async def life() -> None:
            node = Node(self.config, reread=lambda: self.config, owns_process=False)
            running = asyncio.create_task(node.run())
            await node.ready.wait()
            self.url = node._admin.url
            try:
                await asyncio.to_thread(asked)
            finally:
                node.stop()
                await running

        asyncio.run(life())


@pytest.fixture
def operated(tmp_path: Path) -> Operated:
    return Operated(tmp_path)


def test_clients_and_sessions(operated: Operated) -> None:
    def work(admin: Admin) -> None:
        assert list(admin.clients()) == []
        clients = [
            Mqtt(operated.port, name).subscribe(f"a/{name}") for name in ("c1", "c2", ODD.replace("#", "h"))
        ]
        odd = ODD.replace("#", "h")
        listed = admin.clients()
        assert {client.client_id for client in listed} == {"c1", "c2", odd}
        assert listed.unanswered == []
        assert {client.client_id for client in admin.clients(pattern="c*")} == {"c1", "c2"}
        shown = admin.client(odd)
        assert (shown.client_id, shown.version, shown.transport) == (odd, "5.0", "tcp")
        assert admin.session("c1").subscriptions["a/c1"] == rows.Subscribed(1, False, False)
        assert admin.kick("c1") == rows.Kicked("default", "c1", True)
        with pytest.raises(NotFound, match=r"404: .*'c1'") as gone:
            admin.kick("c1")
        assert (gone.value.status, gone.value.members["title"]) == (404, "Not Found")
        assert {session.state for session in admin.sessions(pattern="c1")} == {"away"}
        assert admin.drop("c1") == rows.Dropped("default", "c1", False, 0)
        with pytest.raises(Conflict):
            admin.drop("$bridge/x")
        assert {session.client_id for session in admin.sessions(state="connected")} == {"c2", odd}
        assert admin.behind() == []
        Mqtt(operated.port, "$member/x").close()  # it is answered, by a refusal
        wait_until(lambda: bool(admin.refused()), "the refusal", 60)
        [refused] = admin.refused("$member/*")
        assert (refused.event, refused.client_id, refused.count) == ("refused", "$member/x", 1)
        assert refused.source == "127.0.0.1"
        for client in clients:
            client.close()

    operated.run(work)


def test_messages(operated: Operated) -> None:
    topic = ODD.replace("#", "h")

    def work(admin: Admin) -> None:
        away = Mqtt(operated.port, "away").subscribe("#")
        assert [one.client_id for one in admin.subscriptions(topic=topic)] == ["away"]
        assert [one.filter for one in admin.subscriptions(topic_filter="#", state="connected")] == ["#"]
        admin.kick("away")
        away.close()
        properties: PublishProperties = {
            "content_type": "t",
            "correlation_data": "AP8=",
            "user_properties": [("a", "b")],
        }
        posted = admin.publish(topic, b"\x00\xff", 2, True, properties)
        assert (posted.topic, posted.qos, posted.is_stored, posted.matching) == (topic, 2, True, 1)
        assert admin.publish("a", "größe").reason_code == 0
        waiting = {row.topic: (row.payload, row.text, row.state) for row in admin.backlog("away")}
        assert waiting == {
            topic: (b"\x00\xff", None, "waiting"),
            "a": ("größe".encode(), "größe", "waiting"),
        }
        found = admin.retained_message(topic)
        assert (found.payload, found.text, found.properties["content_type"]) == (b"\x00\xff", None, "t")
        assert [tuple(pair) for pair in found.properties["user_properties"]] == [("a", "b")]
        assert [row.topic for row in admin.retained()] == [topic]
        assert list(admin.retained("nobody/#")) == []
        assert admin.delete_retained(topic).size == found.size
        with pytest.raises(NotFound):
            admin.retained_message(topic)
        with pytest.raises(Forbidden) as refused:
            admin.publish("$SYS/x")
        assert refused.value.reason_code == 0x87
        with pytest.raises(Problem, match=r"400: .*wildcard"):
            admin.publish("a/#")

    operated.run(work)


def test_lists_of_more_than_a_page(operated: Operated) -> None:
    def work(admin: Admin) -> None:
        for number in range(120):
            admin.publish(f"t/{number}", retain=True, payload="x", qos=0)
        topics = [row.topic for row in admin.retained("t/+")]
        assert sorted(topics) == sorted(f"t/{number}" for number in range(120))

    operated.run(work)


def test_the_broker_itself(operated: Operated) -> None:
    def work(admin: Admin) -> None:
        assert admin.not_ready() == ""
        assert "headrace_connections " in admin.metrics()
        assert admin.configuration()["shards"] == 2
        assert (list(admin.queues()), list(admin.clusters())) == ([], [])
        with pytest.raises(NotFound):
            admin.remove_queue("t")
        with pytest.raises(NotFound):
            admin.remove_cluster("t", "c")
        limits = LimitsConfig(subscriptions_max=7)
        operated.config = msgspec.structs.replace(operated.config, limits=limits)
        assert admin.pending_reload().changed == ["limits.subscriptions_max"]
        assert admin.reload() == rows.Reloaded(["limits.subscriptions_max"], [], [], "", [])
        assert admin.pending_reload().changed == []
        with admin.trace("client", "traced*") as trace:
            Mqtt(operated.port, "traced").close()
            found: list[Any] = []

            def has_come() -> bool:
                found.extend(trace.take())
                return bool(found)

            wait_until(has_come, "a packet of the client", 60)
            assert found[0]["packet"] == "CONNECT"
        assert trace.is_over
        with pytest.raises(NotFound):
            trace.take()

    operated.run(work)


def test_who_may_not_and_who_is_not_there(operated: Operated) -> None:
    def work(admin: Admin) -> None:
        with Admin(operated.url, "looks") as looks:
            assert list(looks.sessions()) == []
            with pytest.raises(Forbidden, match="403: "):
                looks.publish("a")
        with Admin(operated.url) as nobody, pytest.raises(Unauthorized):
            nobody.client("c")

    operated.run(work)
    with Admin(operated.url, "does") as admin, pytest.raises(Unreachable, match=operated.url):
        admin.session("c")


PAIRS: dict[str, Any] = {
    "Client": rows.Client,
    "Event": rows.Event,
    "Kicked": rows.Kicked,
    "Laggard": rows.Laggard,
    "Refusal": rows.Refusal,
    "SessionRow": rows.SessionRow,
    "SessionDetails": rows.Session,
    "Dropped": rows.Dropped,
    "BacklogRow": rows.BacklogRow,
    "SubscriptionRow": rows.Subscription,
    "RetainedRow": rows.RetainedRow,
    "RetainedMessage": rows.RetainedMessage,
    "Deleted": rows.Deleted,
    "Posted": rows.Posted,
    "ClusterRow": rows.Cluster,
    "QueueRow": rows.Queue,
    "Removed": rows.Removed,
    "Reloaded": rows.Reloaded,
    "Progress": rows.Drain,
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_type_has_the_members_that_the_broker_describes(name: str) -> None:
    described = document(RESOURCES)["components"]["schemas"][name]["properties"]
    ours = {each.name for each in msgspec.structs.fields(PAIRS[name])}
    assert set(described) == ours


def test_every_type_that_is_described_is_one_of_the_client_or_named() -> None:
    named = {name.partition("_")[0] for name in document(RESOURCES)["components"]["schemas"]}
    others = {
        "Page",
        "Listing",
        "Behind",
        "TraceRequest",
        "TraceBegun",
        "Taken",
        "Subscribed",
        "DrainRequest",
    }
    others |= {"Refused", "Publication", "PostedProperties", "PublishProperties"}
    assert named - set(PAIRS) <= others
