"""Where a cluster keeps its journals: `kafka://HOST:PORT[,HOST:PORT...]/NAME`. Its topics in Kafka begin with NAME.

Behind a `?` may stand `properties_file=FILE`: how to speak to Kafka, for encryption and sign-in (`kafka_properties`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, quote

from headrace.errors import HeadraceError
from headrace.kafka_properties import Properties, read_properties

SCHEME: Final = "kafka://"
NAME_LENGTH_MAX: Final = 200  # Kafka takes 249 characters, and a dot and a word come behind it
PROPERTIES_FILE: Final = "properties_file"
# What a promise rests on, and who is to be who, is not for a file to say.
OURS: Final = frozenset(
    (
        *(
            "acks",
            "request.required.acks",
            "enable.idempotence",
            "enable.gapless.guarantee",
            "transactional.id",
        ),
        *(
            "max.in.flight",
            "max.in.flight.requests.per.connection",
            "message.timeout.ms",
            "delivery.timeout.ms",
        ),
        *("bootstrap.servers", "metadata.broker.list", "client.id", "message.max.bytes", "linger.ms"),
        *("group.id", "group.instance.id", "group.protocol", "session.timeout.ms", "heartbeat.interval.ms"),
        *("max.poll.interval.ms", "partition.assignment.strategy", "enable.auto.commit", "auto.offset.reset"),
        *("isolation.level", "enable.partition.eof", "delivery.report.only.error"),
    )
)
Client = Mapping[str, Any]  # the settings that all clients of a Kafka have
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_PLACE = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\[\]:/,@\s]+):(?P<port>\d{1,5})")


class BadClusterUrl(HeadraceError):
    """The address of a cluster cannot be one; the text says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class ClusterUrl:
    """The brokers of Kafka to begin with, as HOST:PORT, what the names of the cluster's topics begin with, and more
    settings of Kafka's clients, with the file that they are from."""

    brokers: tuple[str, ...]
    name: str
    properties_file: str = ""
    properties: Properties = field(default=(), repr=False)

    @classmethod
    def parse(cls, text: str) -> ClusterUrl:
        """Return the address that `text` is; reads the file that it names, if any. Raises BadClusterUrl, which repeats
        nothing of that file."""
        if not text.startswith(SCHEME):
            raise BadClusterUrl(f"{text!r} does not begin with {SCHEME}")
        where, mark, query = text.removeprefix(SCHEME).partition("?")
        if "@" in where:  # nothing of it is repeated: it may be a password
            raise BadClusterUrl(f"who signs in stands in a file: ?{PROPERTIES_FILE}=FILE")
        places, slash, name = where.partition("/")
        if not slash or not name:
            raise BadClusterUrl(f"{text!r} has no name: {SCHEME}HOST:PORT/NAME")
        for place in places.split(","):
            found = _PLACE.fullmatch(place)
            if found is None or not 0 < int(found["port"]) < 65536:
                raise BadClusterUrl(f"{place!r} is not HOST:PORT")
        if not _NAME.fullmatch(name) or len(name) > NAME_LENGTH_MAX or set(name) == {"."}:
            raise BadClusterUrl(
                f"the name {name!r} is not 1 to {NAME_LENGTH_MAX} letters, digits, dots, hyphens and underscores"
            )
        path = _file_in(query) if mark else ""
        try:
            return cls(tuple(places.split(",")), name, path, read_properties(path, OURS))
        except ValueError as error:
            raise BadClusterUrl(str(error)) from None

    @property
    def query(self) -> str:
        """Return what stands behind the name in the address, with its mark; "" for nothing."""
        return f"?{PROPERTIES_FILE}={quote(self.properties_file)}" if self.properties_file else ""

    @property
    def client(self) -> dict[str, Any]:
        """Return the settings of every client of this Kafka."""
        return {**dict(self.properties), **client_at(self.bootstrap)}

    @property
    def bootstrap(self) -> str:
        """Return the brokers in the form that Kafka's clients take."""
        return ",".join(self.brokers)

    @property
    def journal(self) -> str:
        """Return the topic with a partition for the journal of each shard."""
        return f"{self.name}.journal"

    @property
    def snapshots(self) -> str:
        """Return the topic with a partition for the snapshots of each shard."""
        return f"{self.name}.snapshots"

    @property
    def shards(self) -> str:
        """Return the topic without records whose partitions the workers share among themselves: one a shard."""
        return f"{self.name}.shards"

    @property
    def owners(self) -> str:
        """Return the topic that tells where the owner of each shard is."""
        return f"{self.name}.owners"


def client_at(bootstrap: str) -> dict[str, Any]:
    """Return the settings of a client that reaches these brokers as anybody may."""
    return {"bootstrap.servers": bootstrap, "log_level": 0}


def _file_in(query: str) -> str:
    """Return the file that stands behind the mark. Raises BadClusterUrl."""
    options = parse_qsl(query, keep_blank_values=True)
    if len(options) != 1 or options[0][0] != PROPERTIES_FILE or not options[0][1]:
        raise BadClusterUrl(f"behind the name may stand ?{PROPERTIES_FILE}=FILE, and nothing else")
    return options[0][1]
