"""Where an HBase is: `hbase://HOST:PORT[,HOST:PORT ...]/PREFIX[?option=value&...]`, the places of its Thrift2 gateways.

All queues lie in the table `PREFIX.queues`. Options: `regions` (of a table that is made, 16), `ttl_s` (of a table that is
made: what is older is gone, whoever still waits for it), `durability` ("fsync": HBase answers when the disks of its write
ahead log have it; "sync": when their machines have it), and `name` (what the journal calls the store, else its table and
places: with the name of before, it may be somewhere else).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from headrace.stores.options import options_of

SCHEME: Final = "hbase"
OPTIONS: Final = ("regions", "ttl_s", "durability", "name")
DURABILITIES: Final = ("fsync", "sync")
REGIONS: Final = 16
REGIONS_MAX: Final = 256  # a salt each
TTL_MAX_S: Final = 2**31 - 1  # HBase's "for ever"
PREFIX_LENGTH_MAX: Final = 64
_PLACE: Final = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^\[\]:/,@\s]+)):(?P<port>\d{1,5})")
_PREFIX: Final = re.compile(r"(?:[A-Za-z0-9_]+:)?[A-Za-z0-9_][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class HBaseAddress:
    """The gateways, and how the table is made. `ttl_s` is 0 where nothing goes by its age alone."""

    places: tuple[tuple[str, int], ...]
    prefix: str
    regions: int
    ttl_s: int
    syncs: bool
    name: str

    @property
    def table(self) -> str:
        """Return the name of the table, with its namespace where it has one."""
        return f"{self.prefix}.queues"

    @property
    def url(self) -> str:
        """Return the address without its options."""
        hosts = ",".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.places
        )
        return f"{SCHEME}://{hosts}/{self.prefix}"


def parse(url: str) -> HBaseAddress:
    """Return the parts of an address. ValueError says what is wrong with it."""
    scheme, _, rest = url.partition("://")
    if scheme != SCHEME:
        raise ValueError("an HBase is at hbase://HOST:PORT/PREFIX")
    rest, _, query = rest.partition("?")
    options = options_of(query, OPTIONS)
    hosts, _, prefix = rest.partition("/")
    places = tuple(_place(host) for host in hosts.split(","))
    if not _PREFIX.fullmatch(prefix) or len(prefix) > PREFIX_LENGTH_MAX:
        raise ValueError(
            f"the prefix {prefix!r} is not 1 to {PREFIX_LENGTH_MAX} letters, digits, dots, hyphens and underscores, "
            "with a namespace and a colon before them or not: hbase://HOST:PORT/PREFIX"
        )
    durability = options.get("durability", "fsync")
    if durability not in DURABILITIES:
        raise ValueError(f"option durability is one of {', '.join(DURABILITIES)}")
    named = ",".join(sorted(f"{host}:{port}" for host, port in places))
    return HBaseAddress(
        places=places,
        prefix=prefix,
        regions=_number(options, "regions", REGIONS, REGIONS_MAX),
        ttl_s=_number(options, "ttl_s", 0, TTL_MAX_S - 1),
        syncs=durability == "fsync",
        name=options.get("name", "") or f"hbase {prefix} {named}",
    )


def _place(text: str) -> tuple[str, int]:
    """Return host and port. Raises ValueError."""
    if "@" in text:
        raise ValueError("a Thrift2 gateway lets everybody in: no user and no password")
    found = _PLACE.fullmatch(text)
    if found is None or not 0 < int(found["port"]) < 65536:
        raise ValueError(f"{text!r} is not HOST:PORT")
    return found["v6"] or found["host"], int(found["port"])


def _number(options: dict[str, str], name: str, otherwise: int, most: int) -> int:
    """Return the number of an option. Raises ValueError."""
    text = options.get(name)
    if text is None:
        return otherwise
    if not (text.isascii() and text.isdigit() and len(text) < 12 and 0 < int(text) <= most):
        raise ValueError(f"option {name} is a number from 1 to {most}")
    return int(text)
