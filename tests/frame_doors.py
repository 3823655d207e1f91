"""Connections of frames over shards in memory: what they send, and what each of their devices is told."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Final

from mypy_extensions import i64

from headrace.core.inbound.devices import DeviceLink
from headrace.core.inbound.queue_talk import QueueTalk
from headrace.core.ports.access import Access, SignIn
from headrace.core.ports.identity import Identity
from headrace.core.ports.link import Link
from headrace.core.ports.settings import BrokerSettings
from headrace.core.ports.voice import Draught, Voice
from headrace.core.records.message import FrameMessage
from headrace.errors import ProtocolError
from headrace.frames.bodies import ack_body, cluster_body, hello_body, publish_body, pull_body
from headrace.frames.frame import ACK, HELLO, JOIN, LEAVE, NOTIFY, PING, PUBLISH, PULL, encode_frame
from headrace.frames.server import ServerFrames
from headrace.storage.memory import MemoryLink
from shard_wires import WiredShard, WiredShards

TOPIC: Final = b"meters"


class Everybody(Access):
    """Lets in whoever comes, as the user of the name that is given. `denied` are (client id, topic) that may not be read,
    as of the last reload."""

    def __init__(self) -> None:
        self.denied: set[tuple[str, bytes]] = set()

    def deny(self, sn: bytes, topic: bytes) -> None:
        """Take a right away by a reload."""
        self.denied.add((sn.decode(), topic))
        self.generation += 1

    def authenticate(self, request: SignIn) -> Identity:
        return request.identity_of(request.username)

    def may_publish(self, link: Link, topic: bytes) -> bool:
        return True

    def may_receive(self, link: Link, topic: bytes) -> bool:
        return (link.client_id, topic) not in self.denied

    def may_device_receive(self, link: Link, client_id: str, topic: bytes) -> bool:
        return (client_id, topic) not in self.denied


class Answers(Voice):
    """Writes down what a connection is told, by SN: the operation and its code, or how many messages; `got` are
    those."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[int, bytes, int]] = []
        self.got: list[Draught] = []

    def welcome(self, sn: bytes, code: int) -> None:
        self.told.append((HELLO, sn, code))

    def published(self, sn: bytes, sequence: i64, code: int, message_id: bytes) -> None:
        self.told.append((PUBLISH, sn, code))

    def joined(self, sn: bytes, code: int) -> None:
        self.told.append((JOIN, sn, code))

    def left(self, sn: bytes, code: int) -> None:
        self.told.append((LEAVE, sn, code))

    def notify(self, sn: bytes, topic: bytes, cluster: bytes, available: i64) -> None:
        self.told.append((NOTIFY, sn, int(available)))

    def pulled(self, sn: bytes, messages: list[Draught]) -> None:
        self.told.append((PULL, sn, len(messages)))
        self.got += messages

    def acknowledged(self, sn: bytes, code: int) -> None:
        self.told.append((ACK, sn, code))

    def pong(self, sn: bytes) -> None:
        self.told.append((PING, sn, 0))

    def fail(self, code: int, reason: str) -> None:
        """What ends it is read from the link."""


class DoorLink(MemoryLink):
    """A connection of frames; `ended` is the code of the error that has ended it."""

    def __init__(self, shard: WiredShard) -> None:
        super().__init__(shard.worker)
        self.ended = 0
        self.client: DeviceLink | None = None

    def stored(self, message: FrameMessage) -> None:
        assert self.client is not None
        self.client.durable(message)

    def refuse(self, error: ProtocolError) -> None:
        self.ended = error.reason_code

    def let_in(self) -> None:
        """Nothing is known of strangers here."""


class Door:
    """A connection in one shard, opened by an SN that is at home there, as a user."""

    def __init__(self, node: Node, shard: int, user: str, topic: bytes = TOPIC) -> None:
        self.node = node
        self.topic = topic
        self.cluster = b"c"
        self.wait_ms = 0
        self.link = DoorLink(node.wired[shard])
        self.answers = Answers()
        client = self.link.client = DeviceLink(self.link, self.answers, node.wired[shard].worker.bind_device)
        self.frames = self.link.parser = ServerFrames(client, 1 << 16)
        client.take(self.frames)
        self.own = node.name_in(shard, f"own-{user}-")
        self.user = user
        self.send(HELLO, self.own)

    def send(self, *operations: object) -> None:
        """Send operations of SNs, in pairs, in one piece; all that they lead to happens."""
        pairs = zip(operations[::2], operations[1::2], strict=True)
        data = b"".join(
            self.frame(opcode, sn)
            for opcode, sn in pairs
            if isinstance(opcode, int) and isinstance(sn, bytes)
        )
        self.frames.receive_data(data)
        self.node.carry()

    def frame(self, opcode: int, sn: bytes) -> bytes:
        bodies = {
            HELLO: hello_body(self.user, b"p"),
            PUBLISH: publish_body(next(self.node.sequence), self.topic, b"x"),
            JOIN: cluster_body(self.topic, self.cluster),
            LEAVE: cluster_body(self.topic, self.cluster),
            PULL: pull_body(self.topic, self.cluster, 256, self.wait_ms),
            ACK: ack_body(self.topic, b"c", [bytes(16)]),
            PING: b"",
        }
        return encode_frame(2, opcode, sn, bodies[opcode])

    def ack_all(self) -> None:
        """Acknowledge all that its own device has got."""
        self.ack_ids([one.message_id for one in self.answers.got])
        assert self.told(self.own)[-1] == (ACK, 0)

    def ack_ids(self, ids: list[bytes]) -> None:
        """Acknowledge these messages."""
        self.frames.receive_data(encode_frame(2, ACK, self.own, ack_body(self.topic, b"c", ids)))
        self.node.carry()

    def writable(self) -> None:
        """The client has read what was sent."""
        assert self.link.client is not None
        self.link.client.writable()
        self.node.carry()

    def end(self) -> None:
        """The connection has ended."""
        assert self.link.client is not None
        self.link.closed = True
        self.link.client.lost()
        self.node.carry()

    def told(self, sn: bytes) -> list[tuple[int, int]]:
        """The operations that were answered, and with which code, 0 for those that have none."""
        return [
            (opcode, 0 if opcode == PULL else code)
            for opcode, of, code in self.answers.told
            if of == sn and opcode != NOTIFY
        ]

    def notified(self, sn: bytes) -> list[int]:
        """How many messages a device was told of."""
        return [available for opcode, of, available in self.answers.told if of == sn and opcode == NOTIFY]

    @property
    def refused(self) -> int:
        """The code with which it was ended, by an ERROR or by the answer to HELLO; 0: it goes on."""
        codes = [code for opcode, _, code in self.answers.told if opcode == HELLO]
        return self.link.ended or codes[-1]


class Node:
    """So many shards."""

    def __init__(self, shards: int, settings: BrokerSettings | None = None) -> None:
        self.access = Everybody()
        self.wired = WiredShards(shards, settings)
        self.sequence: Iterator[int] = count(1)
        for shard in self.wired.shards:
            self.begin(shard)

    def begin(self, shard: WiredShard) -> None:
        shard.worker.guard(self.access)
        shard.broker.devices.consuming.start()

    def name_in(self, shard: int, prefix: str) -> bytes:
        homes = self.wired[0].worker.homes
        names = (f"{prefix}{number}" for number in count())
        return next(name for name in names if homes.of_client("default", name) == shard).encode()

    def carry(self) -> None:
        self.wired.carry()
        while any(self._says(shard) for shard in self.wired.shards):
            self.wired.carry()

    def _says(self, shard: WiredShard) -> bool:
        talk = shard.neighbours.queues
        assert isinstance(talk, QueueTalk)
        return len(talk._there.said) + len(talk._back.said) > 0

    def owners(self, sn: bytes) -> list[str | None]:
        """Whose it is, as each shard has it that has it."""
        found = [s.broker.fold.tenant("default").devices.owners.get(sn.decode()) for s in self.wired.shards]
        return [one for one in found if one is not None]
