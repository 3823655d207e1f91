"""Where a journal in Kafka is, as option `path` and the key `pipeline.journal` name it: `kafka://HOST:PORT/NAME`, several
brokers with commas between. `?shard=N` is the journal of one shard of it.

`&at=...` is for tasks: what the one who planned them knows of that journal already. It counts as long as Kafka has it.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, urlencode

from headrace.storage.kafka.cluster_url import PROPERTIES_FILE, SCHEME, BadClusterUrl, ClusterUrl
from headrace.storage.kafka.envelope import Epoch
from headrace.storage.kafka.log_fold import Standing
from headrace_spark.base.errors import BadOption

FORM: Final = "a cluster's journal is given as kafka://HOST:PORT[,HOST:PORT...]/NAME"


@dataclass(frozen=True)
class Known:
    """What a task is told: the id of the journal's topic, a place from which what it reads is found, and where the
    journal ended when the task was planned."""

    topic_id: str
    begin: Standing
    end: Standing


@dataclass(frozen=True)
class KafkaAddress:
    """A cluster's journals, or that of one shard."""

    url: ClusterUrl
    shard: int | None
    known: Known | None

    @classmethod
    def parse(cls, location: str) -> KafkaAddress:
        """Return the address that a location names. Raises BadOption."""
        base, _, query = location.partition("?")
        try:
            given = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
            named = {PROPERTIES_FILE: given.pop(PROPERTIES_FILE)} if PROPERTIES_FILE in given else {}
            url = ClusterUrl.parse(f"{base}?{urlencode(named)}" if named else base)
            shard = int(given.pop("shard")) if "shard" in given else None
            known = _known(given.pop("at")) if "at" in given else None
        except (BadClusterUrl, ValueError, TypeError, KeyError) as error:
            raise BadOption("path", location, f"{FORM} ({error})") from None
        if given or (shard is not None and shard < 0):
            raise BadOption("path", location, f"{FORM}, with ?shard=N for that of one shard")
        return cls(url, shard, known)


def is_kafka(location: str) -> bool:
    """Return whether a location names journals in Kafka."""
    return location.startswith(SCHEME)


def is_begun(location: str) -> bool:
    """Return whether a location is the first part of one, of which a comma was taken for the end."""
    return is_kafka(location) and "/" not in location.removeprefix(SCHEME)


def location_of(url: ClusterUrl, shard: int, known: Known | None = None) -> str:
    """Return the location of a shard's journal, with what is known of it."""
    found = f"{SCHEME}{url.bootstrap}/{url.name}{url.query or '?'}{'&' * bool(url.query)}shard={shard}"
    if known is None:
        return found
    told = json.dumps([known.topic_id, _packed(known.begin), _packed(known.end)]).encode()
    return f"{found}&at={base64.urlsafe_b64encode(told).decode().rstrip('=')}"


def _packed(standing: Standing) -> list[object]:
    owner = standing.owner
    return [standing.tail, owner.offset, owner.bits.hex(), standing.next_offset, standing.last.hex()]


def _known(text: str) -> Known:
    topic_id, begin, end = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    return Known(str(topic_id), _unpacked(*begin), _unpacked(*end))


def _unpacked(tail: int, owner: int, bits: str, next_offset: int, last: str) -> Standing:
    return Standing(tail, Epoch(owner, bytes.fromhex(bits)), next_offset, bytes.fromhex(last))
