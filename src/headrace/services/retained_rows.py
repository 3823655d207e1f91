"""Retained messages, a page at a time or by topic: for somebody who looks.

There may be a million, and their tree has no numbers: so a walk over it is kept between two pages, for a while. What was
there when the walk began and still is gets listed once. Who does not ask for the next page in `KEPT_S` begins anew, as
does one before whose next page `WALKS_MAX` other walks over the shard have begun. Runs on the loop.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections import OrderedDict
from dataclasses import asdict, dataclass
from itertools import count
from typing import Final, TypedDict

from headrace.core.ports.clock import Clock
from headrace.core.records.message import NO_EXPIRY, Message
from headrace.core.records.record import FLAG_WILL
from headrace.core.state.retained_tree import RetainedWalk
from headrace.core.state.state import Fold
from headrace.errors import NotThere
from headrace.mqtt.packets import PUBLISH
from headrace.mqtt.properties import Properties
from headrace.services.paging import Place, Rows

WALKS_MAX: Final = 8  # of a shard at a time
KEPT_S: Final = 60.0  # between two pages
_PIECE: Final = 200  # messages in a pass of the loop
_PIECES_MAX: Final = 16  # in a page, whether or not much was found
_GONE: Final = "from: this page was not asked for in time, or not in order: begin anew, without `from`"


@dataclass(frozen=True, slots=True)
class RetainedRow:
    """A retained message: of `size` bytes of topic, properties and payload. `client_id` has published it, "" the broker
    itself; `is_will`: it was a will. `received_at_us` and `expires_at_us`, None: never, are microseconds since 1970."""

    tenant: str
    topic: str
    qos: int
    size: int
    client_id: str
    is_will: bool
    received_at_us: int
    expires_at_us: int | None
    shard: int
    worker: int


class PublishProperties(TypedDict, total=False):
    """The properties that a publisher has sent. `correlation_data` is in base64; `user_properties` are [name, value]."""

    payload_format_indicator: int
    content_type: str
    response_topic: str
    correlation_data: str
    user_properties: list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class RetainedMessage(RetainedRow):
    """A retained message with what is in it: the payload in base64, as `text` too where it is UTF-8."""

    payload: str
    text: str | None
    properties: PublishProperties


@dataclass(frozen=True, slots=True)
class Kept:
    """A choice of retained messages: those of a tenant, on topics that a filter matches; "" is any."""

    tenant: str
    filter: str = ""


class _Walk:
    """A walk on its way. `page` is the number of the next page; the last one is kept, for who asks for it again."""

    def __init__(self, wanted: Kept, walk: RetainedWalk) -> None:
        self.wanted = wanted
        self.walk = walk
        self.page = 0
        self.rows: Rows = []
        self.is_busy = False
        self.end: asyncio.TimerHandle | None = None


class Walks:
    """The walks over the retained messages of one shard that somebody may go on with, by number."""

    def __init__(self, first: int) -> None:
        self._walks: OrderedDict[int, _Walk] = OrderedDict()
        self._numbers = count(first)

    def __len__(self) -> int:
        return len(self._walks)

    def begin(self, wanted: Kept, walk: RetainedWalk) -> int:
        """Keep a walk, and return its number; the one that was asked longest ago makes room."""
        while len(self._walks) >= WALKS_MAX:
            self.drop(next(iter(self._walks)))
        number = next(self._numbers)
        self._walks[number] = _Walk(wanted, walk)
        self._keep(number)
        return number

    def at(self, number: int) -> _Walk | None:
        """Return a walk, which is kept for longer now, None if it is over."""
        found = self._walks.get(number)
        if found is not None:
            self._walks.move_to_end(number)
            self._keep(number)
        return found

    def drop(self, number: int) -> None:
        """Forget a walk, if it is there."""
        found = self._walks.pop(number, None)
        if found is not None and found.end is not None:
            found.end.cancel()

    def _keep(self, number: int) -> None:
        walk = self._walks[number]
        if walk.end is not None:
            walk.end.cancel()
        walk.end = asyncio.get_running_loop().call_later(KEPT_S, self.drop, number)


class RetainedRows:
    """Lists the retained messages of one shard, and shows one."""

    def __init__(self, fold: Fold, clock: Clock, walks: Walks, shard: int, worker: int) -> None:
        self._fold = fold
        self._clock = clock
        self._walks = walks
        self._where = shard, worker

    async def page(self, wanted: Kept, limit: int, place: Place) -> tuple[Rows, Place | None]:
        """Return (at most `limit` rows from `place` on, where the next page goes on or None). A page may be short, even
        empty, and not the last one: where much was looked at that is not wanted. Raises ValueError for a page that is
        not there any more."""
        number = place.inner
        if number == -1:
            tenant = self._fold.tenants.get(wanted.tenant)
            if tenant is None:
                return [], None
            store = tenant.retained
            begun = store.walk(wanted.filter) if wanted.filter else store.walk_all()
            number = self._walks.begin(wanted, begun)
        walk = self._walks.at(number)
        if walk is None or walk.wanted != wanted:
            raise ValueError(_GONE)
        if walk.is_busy or place.number not in (walk.page, walk.page - 1):
            raise ValueError(_GONE)
        if place.number == walk.page:
            walk.is_busy = True
            try:
                walk.rows = await self._taken(walk.walk, limit)
            except BaseException:
                self._walks.drop(number)  # what it had come to is in no page: who asks again begins anew
                raise
            walk.is_busy = False
            walk.page += 1
        return walk.rows, None if walk.walk.done else Place(walk.page, number)

    async def _taken(self, walk: RetainedWalk, limit: int) -> Rows:
        found: Rows = []
        for _ in range(_PIECES_MAX):
            now_us = self._clock.now_us
            for message in walk.take(min(_PIECE, limit - len(found))):
                if not message.expired(now_us):
                    found.append(asdict(self._row(message)))
            if walk.done or len(found) >= limit:
                break
            await asyncio.sleep(0)
        return found

    def message(self, tenant: str, topic: str) -> dict[str, object]:
        """Return the retained message of a topic with what is in it. Raises NotThere."""
        of_tenant = self._fold.tenants.get(tenant)
        found = None if of_tenant is None else of_tenant.retained.get(topic.encode("utf-8"))
        if found is None or found.expired(self._clock.now_us):
            raise NotThere(f"tenant {tenant} has no retained message on {topic!r}")
        return asdict(self._row(found)) | content_of(found)

    def _row(self, message: Message) -> RetainedRow:
        expiry_s = message.message_expiry_s
        return RetainedRow(
            message.tenant,
            message.topic.decode("utf-8"),
            message.qos,
            message.size,
            message.client_id,
            message.flags & FLAG_WILL != 0,
            message.timestamp_us,
            None if expiry_s == NO_EXPIRY else message.timestamp_us + expiry_s * 1_000_000,
            *self._where,
        )


def content_of(message: Message) -> dict[str, object]:
    """Return the payload of a message in base64, as text where it is UTF-8, and its properties."""
    properties = {}
    if message.properties:
        decoded = Properties.decode(message.properties, 0, len(message.properties), PUBLISH).as_dict()
        properties = {
            name: b64encode(value).decode("ascii") if isinstance(value, bytes) else value
            for name, value in decoded.items()
        }
    try:
        text: str | None = message.payload.decode("utf-8")
    except UnicodeDecodeError:
        text = None
    return {"payload": b64encode(message.payload).decode("ascii"), "text": text, "properties": properties}


class WalksByShard:
    """The walks of all shards of a worker. A shard that was opened again has others, with other numbers."""

    def __init__(self) -> None:
        self._walks: dict[tuple[int, int], Walks] = {}

    def of(self, shard: int, run: int) -> Walks:
        """Return the walks of a shard since it was opened, as its `run` says."""
        found = self._walks.get((shard, run))
        if found is None:
            for key in [each for each in self._walks if each[0] == shard]:
                del self._walks[key]
            found = self._walks[shard, run] = Walks(run)
        return found
