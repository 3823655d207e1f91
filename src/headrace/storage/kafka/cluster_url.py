"""Where a cluster keeps its journals: `kafka://HOST:PORT[,HOST:PORT...]/NAME`. Its topics in Kafka begin with NAME."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from headrace.errors import HeadraceError

SCHEME: Final = "kafka://"
NAME_LENGTH_MAX: Final = 200  # Kafka takes 249 characters, and a dot and a word come behind it
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_PLACE = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\[\]:/,@\s]+):(?P<port>\d{1,5})")


class BadClusterUrl(HeadraceError):
    """The address of a cluster cannot be one; the text says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class ClusterUrl:
    """The brokers of Kafka to begin with, as HOST:PORT, and what the names of the cluster's topics begin with."""

    brokers: tuple[str, ...]
    name: str

    @classmethod
    def parse(cls, text: str) -> ClusterUrl:
        """Return the address that `text` is. Raises BadClusterUrl."""
        if not text.startswith(SCHEME):
            raise BadClusterUrl(f"{text!r} does not begin with {SCHEME}")
        places, slash, name = text.removeprefix(SCHEME).partition("/")
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
        return cls(tuple(places.split(",")), name)

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
