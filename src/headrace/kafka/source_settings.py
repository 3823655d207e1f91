"""What one source is told, and what is wrong with it. No client of Kafka is imported here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from headrace.address import locate_remote
from headrace.kafka.settings import mistake_of_topic, mistakes_of_servers
from headrace.mqtt.topics import valid_topic

KEY: Final = "{key}"
PORTS: Final = {"tcp": 1883, "tls": 8883}
OURS: Final = (
    "auto.offset.reset",
    "bootstrap.servers",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.partition.eof",  # what came with the word that there is no more would be read again for ever
    "group.id",
    "isolation.level",
    "metadata.broker.list",
)


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """A rule: what is in `kafka_topic` of the Kafka at `servers` is published to `topic`, in which `{key}` stands for the
    record's key, at the broker at `url`. `start`: where a new one begins, `earliest` or `latest`. `client`: more settings
    of librdkafka, by its names."""

    name: str
    servers: tuple[str, ...]
    kafka_topic: str
    topic: str
    retain: bool = False
    start: str = "earliest"
    url: str = "tcp://127.0.0.1:1883"
    username: str = ""
    password_file: str = ""
    ca_file: str = ""
    client: Mapping[str, str] = field(default_factory=dict)

    @property
    def group(self) -> str:
        """Return the group of consumers under which Kafka keeps how far the source is."""
        return f"headrace.source.{self.name}"

    def pack(self) -> dict[str, Any]:
        """Return what `unpack` reads back, for another process."""
        return asdict(self) | {"client": dict(self.client)}

    @classmethod
    def unpack(cls, fields: dict[str, Any]) -> SourceSettings:
        return cls(**fields | {"servers": tuple(fields["servers"])})

    def topic_of(self, key: bytes | None) -> bytes:
        """Return the topic of a record; b"" where it would be none."""
        found = self.topic.encode().replace(KEY.encode(), key or b"")
        return found if valid_topic(found) else b""

    def mistakes(self) -> Iterator[tuple[str, str]]:
        """Yield (key, what is wrong with it)."""
        yield from mistakes_of_servers(self.servers)
        yield from mistake_of_topic("kafka_topic", self.kafka_topic)
        if not self.topic_of(b"key") or "$" in self.topic[:1]:
            yield "topic", f"{self.topic!r} is no topic name that clients may publish to"
        try:
            where = locate_remote(self.url, PORTS)
            if self.ca_file and not where.encrypted:
                yield "ca_file", f"{self.url} is not encrypted"
        except ValueError as error:
            yield "url", str(error)
        if self.password_file and not self.username:
            yield "username", "a password needs it"
        for name in self.client:
            if name in OURS or name.endswith("_cb"):
                yield f"client.{name}", "is headrace's own to set: leave it out"
