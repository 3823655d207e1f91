"""Where the topics of clients are: `kafka://HOST:PORT[,HOST:PORT ...]/PREFIX[?option=value&...]`.

A client's topic is PREFIX.CLIENT, with tenants PREFIX.TENANT.CLIENT (`names.KafkaNames`). Options: `replication` (of a
topic that is made, else what Kafka has by default), `topics` (that there may be of one tenant), `properties_file` (lines
`name=value` for Kafka's client, as security.protocol, sasl.username and sasl.password), and `name` (what the journal
calls the store, else its prefix and places: with the name of before, it may be somewhere else).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from headrace.kafka_properties import Properties, read_properties
from headrace.stores.options import options_of

SCHEME: Final = "kafka"
OPTIONS: Final = ("replication", "topics", "properties_file", "name")
TOPICS_MAX: Final = 1000
PREFIX_LENGTH_MAX: Final = 64
OURS: Final = frozenset(
    (
        *("bootstrap.servers", "acks", "enable.idempotence", "group.id", "auto.offset.reset"),
        # With the first a put is never reported, with the second no reading to the end of a topic comes to its end.
        *("transactional.id", "delivery.report.only.error", "enable.partition.eof"),
    )
)
_PLACE: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\[\]:/,@\s]+):(?P<port>\d{1,5})")
_PREFIX: Final = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class KafkaAddress:
    """The brokers to begin with, and how to speak to them. `replication` is -1 where Kafka decides."""

    places: tuple[str, ...]
    prefix: str
    replication: int
    topics_max: int
    properties: Properties
    name: str

    @property
    def bootstrap(self) -> str:
        """Return the brokers in the form that Kafka's clients take."""
        return ",".join(self.places)

    @property
    def url(self) -> str:
        """Return the address without its options."""
        return f"{SCHEME}://{self.bootstrap}/{self.prefix}"


def parse(url: str) -> KafkaAddress:
    """Return the parts of an address. ValueError says what is wrong with it."""
    scheme, _, rest = url.partition("://")
    if scheme != SCHEME:
        raise ValueError("a Kafka is at kafka://HOST:PORT/PREFIX")
    rest, _, query = rest.partition("?")
    options = options_of(query, OPTIONS)
    hosts, _, prefix = rest.partition("/")
    if "@" in hosts:
        raise ValueError("who signs in stands in a file: option properties_file")
    places = tuple(hosts.split(","))
    for place in places:
        found = _PLACE.fullmatch(place)
        if found is None or not 0 < int(found["port"]) < 65536:
            raise ValueError(f"{place!r} is not HOST:PORT")
    if not _PREFIX.fullmatch(prefix) or len(prefix) > PREFIX_LENGTH_MAX or set(prefix) == {"."}:
        raise ValueError(
            f"the prefix {prefix!r} is not 1 to {PREFIX_LENGTH_MAX} letters, digits, dots, hyphens and underscores: "
            "kafka://HOST:PORT/PREFIX"
        )
    return KafkaAddress(
        places=places,
        prefix=prefix,
        replication=_number(options, "replication", -1),
        topics_max=_number(options, "topics", TOPICS_MAX),
        properties=read_properties(options.get("properties_file", ""), OURS),
        name=options.get("name", "") or f"kafka {prefix} {','.join(sorted(places))}",
    )


def _number(options: dict[str, str], name: str, otherwise: int) -> int:
    """Return the number of an option. Raises ValueError."""
    text = options.get(name)
    if text is None:
        return otherwise
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 1_000_000):
        raise ValueError(f"option {name} is a number from 1 on")
    return int(text)
