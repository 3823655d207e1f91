"""Nodes that find each other by the roster over real sockets: who dials, who is let in, and what strangers may hold."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

import pytest

from harness import Harness
from headrace.peers.cluster_peers import UNKNOWN_MAX, Address, ClusterPeers
from headrace.peers.peer_frames import BrokenLink, Greeting
from headrace.peers.peer_link import PeerLink
from headrace.peers.peer_tls import PeerTls
from headrace.workers.owners import Owners
from machine import run, until

CLUSTER = bytes(range(16))
SHARDS = 2


class OneNode:
    """The links of a node without shards."""

    def __init__(self, node: int, cluster: bytes = CLUSTER, tls: PeerTls | None = None) -> None:
        self.listening = listening = socket.create_server(("127.0.0.1", 0))
        listening.setblocking(False)
        self.lines: list[str] = []
        self.address: Address = listening.getsockname()[:2]
        self.peers = ClusterPeers(
            node,
            cluster,
            listening,
            Owners.unowned(SHARDS),
            Harness().worker,
            asyncio.get_running_loop(),
            self.lines.append,
            tls,
        )

    def close(self) -> None:
        self.peers.abandon()
        self.listening.close()

    def link(self, dialled: int = -1) -> PeerLink:
        return self.peers._begin(dialled)

    def meet(self, **nodes: OneNode) -> None:
        self.peers.meet({one.peers.run: (name, one.address) for name, one in nodes.items()})


def greeting(node: int, cluster: bytes = CLUSTER, shards: int = SHARDS) -> Greeting:
    return Greeting(0, 0, shards, node, cluster)


def reason(check: Callable[[], object]) -> str:
    with pytest.raises(BrokenLink) as error:
        check()
    return error.value.reason


def test_of_two_nodes_the_later_dials_and_one_that_has_left_is_let_go() -> None:
    async def body() -> None:
        first, second = OneNode(3), OneNode(7)
        for node in (first, second):
            await node.peers.start()
        first.meet(n1=second)
        assert first.peers._dialling == {}
        second.meet(n0=first)
        await until(lambda: first.peers.is_heard(7) and second.peers.is_heard(3))
        assert (first.lines, second.lines) == (["linked to node n1"], ["linked to node n0"])
        first.meet()
        assert first.peers.links_up == 1, "it may have been read of late"
        second.meet()
        await until(lambda: (first.peers.links_up, second.peers.links_up) == (0, 0))
        assert second.peers._dialling == {}
        for node in (first, second):
            await node.peers.stop()

    run(body)


def test_who_does_not_belong_to_the_cluster_or_to_the_place_is_refused() -> None:
    async def body() -> None:
        node = OneNode(5)
        check = node.peers.check
        assert check(node.link(), greeting(6)) == 6
        assert check(node.link(3), greeting(3)) == 3
        for dialled, theirs, why in (
            (-1, greeting(6, bytes(16)), "cluster"),
            (-1, greeting(6, shards=3), "cluster"),
            (-1, greeting(4), "worker"),  # the later dials
            (-1, greeting(5), "worker"),
            (3, greeting(4), "worker"),  # started again since
        ):
            assert reason(lambda dialled=dialled, theirs=theirs: check(node.link(dialled), theirs)) == why  # type: ignore[misc]
        node.close()

    run(body)


def test_a_certificate_is_of_the_name_that_the_roster_has() -> None:
    async def body() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        node, other = OneNode(5, tls=PeerTls(context, context)), OneNode(6)
        link = node.link()
        node.peers._certified[link] = ["N1"]
        assert reason(lambda: node.peers.check(link, greeting(6))) == "replaced", (
            "it comes again once it is known"
        )
        node.meet(n2=other)
        assert reason(lambda: node.peers.check(link, greeting(6))) == "user"
        node.meet(n1=other)
        assert node.peers.check(link, greeting(6)) == 6
        for one in (node, other):
            one.close()

    run(body)


def test_strangers_whose_handshake_does_not_end_are_given_up_the_oldest_first() -> None:
    async def body() -> None:
        node = OneNode(5)
        dialled = node.link(3)
        strangers = [node.peers._accepted() for _ in range(UNKNOWN_MAX + 10)]
        assert [one.ended for one in strangers] == [True] * 10 + [False] * UNKNOWN_MAX  # type: ignore[attr-defined]
        assert len(node.peers._strangers) == UNKNOWN_MAX + 1
        assert not dialled.ended
        assert node.peers.counts["greeting"] == 10
        node.close()
        assert node.peers._unknown == {}

    run(body)
