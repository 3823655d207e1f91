"""What one sink is told, and what is wrong with it. No client of Kafka is imported here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from headrace.mqtt.topics import SHARE_PREFIX, filter_error

CONSUMER_PREFIX: Final = "sink."  # of the name under which a sink holds the journal
_SERVER: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
# What the promise rests on is not for a configuration to say, and callbacks are no text.
OURS: Final = (
    "acks",
    "bootstrap.servers",
    "enable.gapless.guarantee",
    "enable.idempotence",
    "max.in.flight",
    "max.in.flight.requests.per.connection",
    "message.max.bytes",
    "metadata.broker.list",
    "partitioner",
    "request.required.acks",
    "transaction.timeout.ms",
    "transactional.id",
)


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """A rule: what is published to topics that `topic_filter` matches goes to `kafka_topic` of the Kafka at `servers`.
    `tenant`: of that one alone, "": of all. `start`: where a new one begins, `end` or `beginning`. `client`: more
    settings of librdkafka, by its names."""

    name: str
    servers: tuple[str, ...]
    topic_filter: str
    kafka_topic: str
    tenant: str = ""
    start: str = "end"
    positions_topic: str = "headrace.sinks"
    record_bytes_max: int = 1_000_000
    client: Mapping[str, str] = field(default_factory=dict)

    @property
    def consumer(self) -> str:
        """Return the name of the registered consumer that holds the journal for the sink."""
        return CONSUMER_PREFIX + self.name

    def pack(self) -> dict[str, Any]:
        """Return what `unpack` reads back, for another process."""
        return asdict(self) | {"client": dict(self.client)}

    @classmethod
    def unpack(cls, fields: dict[str, Any]) -> SinkSettings:
        return cls(**fields | {"servers": tuple(fields["servers"])})

    def mistakes(self) -> Iterator[tuple[str, str]]:
        """Yield (key, what is wrong with it)."""
        yield from mistakes_of_servers(self.servers)
        wrong = filter_error(self.topic_filter)
        if not wrong and self.topic_filter.startswith(SHARE_PREFIX):
            wrong = "a sink shares with nobody"
        if wrong:
            yield "topic_filter", f"{self.topic_filter!r}: {wrong}"
        yield from self._of_topics()
        for name in self.client:
            if name in OURS or name.endswith("_cb"):
                yield f"client.{name}", "is headrace's own to set: leave it out"

    def _of_topics(self) -> Iterator[tuple[str, str]]:
        yield from mistake_of_topic("kafka_topic", self.kafka_topic)
        yield from mistake_of_topic("positions_topic", self.positions_topic)
        if self.kafka_topic == self.positions_topic:
            yield "positions_topic", f"{self.positions_topic!r} is where the messages go"


def mistakes_of_servers(servers: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with addresses of brokers of Kafka."""
    for server in servers:
        found = _SERVER.fullmatch(server)
        if found is None or not 0 < int(found[2]) <= 0xFFFF:
            yield "servers", f"{server!r} is no HOST:PORT"


def mistake_of_topic(key: str, topic: str) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the name of a topic in Kafka."""
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        yield key, f"{topic!r} is no topic of Kafka: letters, digits, '.', '_', '-', at most 249 of them"
