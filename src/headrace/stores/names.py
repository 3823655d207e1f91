"""What streams are called in the stores, and back.

Each byte of the UTF-8 of a tenant or a client id outside `[A-Za-z0-9-]` stands as an underline and two hexadecimal
digits: a `}` would end Redis's hash tag, and `/` and `.` are free to separate tenant and client wherever a store takes
them. Where there would be more than `TAG_MAX` characters, which no honest client has, a digest stands for the rest. A
scan cannot give such an id back: it gives U+0000, which no client id holds (MQTT-1.5.4-2), with what stands in the key::

    Redis    <prefix>:{<tenant>/<client>}:<journal>:<generation>:<incarnation>     the queue, a stream
             <prefix>:{<tenant>/<client>}:<journal>                                the context, a hash
    Kafka    <prefix>.<client>, with tenants <prefix>.<tenant>.<client>            the queues of a client, a topic
    HBase    <salt>/<tenant>/<client>/<journal>/<generation>/<incarnation>/<block>  64 messages of the queue, a row

The salt is two hexadecimal digits of a digest of tenant and client, so that all regions have some; the block is the
serial number of its messages divided by 64, in 14 hexadecimal digits. Generation and incarnation are decimal numbers, the
journal the hexadecimal digits of its uuid.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final

from headrace.core.ports.queue_store import QueueName

TAG_MAX: Final = 160
KAFKA_PART_MAX: Final = 180  # of tenant and client: a topic has 249 characters at most, a prefix 64
_PLAIN: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-")
_ESCAPED: Final = tuple(chr(byte) if byte in _PLAIN else f"_{byte:02X}" for byte in range(256))
_ESCAPE: Final = re.compile("_([0-9A-F]{2})")
_DIGEST: Final = "__"  # no escaped text has two underlines in a row
_SHORTENED: Final = "\0"
_WORD: Final = re.compile("[A-Za-z0-9_-]+")
_SALTED: Final = re.compile(
    r"([0-9a-f]{2}/([A-Za-z0-9_-]*)/([A-Za-z0-9_-]*)/([0-9a-f]+)/([0-9]+)/([0-9]+)/)[0-9a-f]{14}"
)
_KEY: Final = re.compile(r"\{([A-Za-z0-9_-]*)/([A-Za-z0-9_-]*)\}:([0-9a-f]+)(?::([0-9]+):([0-9]+))?")


def escaped(text: str) -> str:
    """Return a text of `[A-Za-z0-9-]` and underlines alone. Different texts stay different."""
    if text.startswith(_SHORTENED):
        return text[1:]
    return "".join([_ESCAPED[byte] for byte in text.encode("utf-8", "surrogatepass")])


def unescaped(text: str) -> str:
    """Return a text of which `escaped` makes this one."""
    if _DIGEST in text:
        return _SHORTENED + text
    unpacked = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text).encode("latin-1")
    return unpacked.decode("utf-8", "surrogatepass")


def shortened(text: str, most: int) -> str:
    """Return an escaped text, cut to `most` characters where it has more, with a digest of it behind."""
    if len(text) <= most:
        return text
    digest = _DIGEST + blake2b(text.encode(), digest_size=16).hexdigest()
    kept = text[: most - len(digest)]
    return re.sub("_[0-9A-F]?$", "", kept) + digest


class RedisNames:
    """The keys of one prefix in Redis. All keys of a client have the same hash tag, so they are in one slot."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def tag(self, name: QueueName) -> str:
        """Return the hash tag of a client, with its braces."""
        return f"{{{shortened(escaped(name.tenant), TAG_MAX)}/{shortened(escaped(name.client_id), TAG_MAX)}}}"

    def stream(self, name: QueueName) -> bytes:
        """Return the key of a queue."""
        key = f"{self.prefix}:{self.tag(name)}:{name.journal}:{name.generation}:{name.incarnation}"
        return key.encode()

    def context(self, name: QueueName) -> bytes:
        """Return the key of what is kept of a client beside its queues."""
        return f"{self.prefix}:{self.tag(name)}:{name.journal}".encode()

    def marker(self, tag: str) -> bytes:
        """Return the key by which a primary is told from one that was wiped; `tag` lies in a slot of that primary."""
        return f"{self.prefix}:{{{tag}}}:primary".encode()

    def pattern(self) -> bytes:
        """Return what SCAN looks for: the queues of all clients, and what is kept beside them."""
        literal = re.sub(r"([*?\[\]\\])", r"\\\1", self.prefix)
        return f"{literal}:{{*}}:*".encode()

    def name_of(self, key: bytes) -> QueueName | None:
        """Return whose queue a key is; generation and incarnation are 0 where it is a context. None if it is neither, or
        of another prefix."""
        start = f"{self.prefix}:".encode()
        if not key.startswith(start):
            return None
        found = _KEY.fullmatch(key[len(start) :].decode("latin-1"))
        if found is None:
            return None
        tenant, client, journal, generation, incarnation = found.groups()
        try:
            return QueueName(
                unescaped(tenant), unescaped(client), journal, int(generation or 0), int(incarnation or 0)
            )
        except UnicodeDecodeError:
            return None


class KafkaNames:
    """The topics of one prefix in Kafka. `tenants`: their names say whose a client is."""

    def __init__(self, prefix: str, *, tenants: bool) -> None:
        self.prefix = prefix
        self._tenants = tenants

    def topic(self, tenant: str, client_id: str) -> str:
        """Return the topic of a client."""
        if self._tenants:
            part = KAFKA_PART_MAX // 2
            client = shortened(escaped(client_id), part)
            return f"{self.prefix}.{shortened(escaped(tenant), part)}.{client}"
        return f"{self.prefix}.{shortened(escaped(client_id), TAG_MAX)}"

    def client_of(self, topic: str) -> tuple[str, str] | None:
        """Return the tenant, "" without tenants, and the client of a topic; None if it is of nobody here."""
        if not topic.startswith(f"{self.prefix}."):
            return None
        parts = topic[len(self.prefix) + 1 :].split(".")
        if len(parts) != 1 + self._tenants or not all(_WORD.fullmatch(part) for part in parts):
            return None
        try:
            client_id = unescaped(parts[-1])
            tenant = unescaped(parts[0]) if self._tenants else ""
        except UnicodeDecodeError:
            return None
        return (tenant, client_id) if self.topic(tenant, client_id) == topic else None


class HBaseNames:
    """The rows of streams in HBase. All rows of a client begin with the same bytes."""

    @staticmethod
    def client(tenant: str, client_id: str) -> str:
        """Return what the rows of a client begin with."""
        whose = f"{shortened(escaped(tenant), TAG_MAX)}/{shortened(escaped(client_id), TAG_MAX)}"
        return f"{blake2b(whose.encode(), digest_size=1).hexdigest()}/{whose}/"

    @staticmethod
    def stream(name: QueueName) -> bytes:
        """Return what the rows of a stream begin with."""
        start = HBaseNames.client(name.tenant, name.client_id)
        return f"{start}{name.journal}/{name.generation}/{name.incarnation}/".encode()

    @staticmethod
    def name_of(row: bytes) -> tuple[bytes, QueueName] | None:
        """Return what the rows of the same stream begin with, and whose stream it is; None where a row is not ours."""
        found = _SALTED.fullmatch(row.decode("latin-1"))
        if found is None:
            return None
        start, tenant, client, journal, generation, incarnation = found.groups()
        try:
            name = QueueName(unescaped(tenant), unescaped(client), journal, int(generation), int(incarnation))
        except UnicodeDecodeError:
            return None
        return start.encode(), name
