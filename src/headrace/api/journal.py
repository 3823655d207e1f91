"""The journal over HTTP, for readers on other machines: its files as byte ranges, positions of consumers.

    GET  /v1/journal                          uuid, epoch, offsets, segments
    GET  /v1/journal/watermark                the published high watermark, as the file has it
    GET  /v1/journal/files/NAME               a segment or an index, with Range; whole batches up to the high
                                              watermark, nothing behind it
    GET  /v1/journal/consumers                {"consumers"}: all that the token may see, by name
    GET  /v1/journal/consumers/NAME           position of a registered consumer
    POST /v1/journal/consumers/NAME/register  {"uuid", "epoch", "offset", "owner"?}: retention waits for it from there
                                              on; 409 if it belongs to another owner
    POST /v1/journal/consumers/NAME/commit    the same: everything below is processed
    DELETE /v1/journal/consumers/NAME         retention waits for it no longer; answers what it was; 409 if its process
                                              is at work, unless `?force=true`
    GET  /v1/journal/shards                   {"shards"}: number, uuid, epoch and offsets of each shard's journal

Of a broker with several shards everything but the last lies below `/v1/journal/shards/N`; without a number it is refused
(409), because a reader of one journal would miss the others.

Each wants `Authorization: Bearer TOKEN`, where TOKEN is one of `journal.token_file` (`tokens`); without that key
nobody is let in. What a POST changes needs the role `operate`, all else `read`. A token of a tenant sees that tenant's
messages alone (`tenant_view`), one of a consumer moves no other. Files are read on threads of their own, at most
`RANGE_BYTES_MAX` at a time, so the loop only passes on what is in memory; nothing is parsed here but the end of the
segment being written, and what a tenant sees.

A reader may ask for several ranges at once. `EACH_MAX` answers are made or on their way for one token, `ALL_MAX` for all
of them: that bounds the memory, whoever reads slowly; more are told 429, and to come again. Who says `Accept-Encoding:
gzip` has a range compressed, if that makes it smaller; `Range` and `Content-Range` count bytes of the file all the same.
"""

from __future__ import annotations

import asyncio
import gzip
import re
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Final, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import Message, Receive, Scope, Send

from headrace.api.problem import problem
from headrace.api.tenant_view import TenantView
from headrace.api.tokens import OPERATE, READ, Tokens, answered
from headrace.core.records.message_id import origin_in
from headrace.journal.consumers import OWNER_BYTES_MAX, ConsumerPosition
from headrace.journal.disk import DISK
from headrace.journal.errors import (
    ConsumerAtWork,
    ConsumerTaken,
    EpochMismatch,
    JournalError,
    UnknownConsumer,
)
from headrace.journal.finished import FinishedSegment
from headrace.journal.index import SUFFIX as INDEX_SUFFIX
from headrace.journal.reader import DIRECTORY, JournalReader
from headrace.journal.segment import SEGMENT_HEADER_SIZE, base_offset_of, file_name
from headrace.journal.snapshot import first_entries
from headrace.journal.watermark import NAME as WATERMARK

RANGE_BYTES_MAX: Final = 1 << 20
# Answers that are made or on their way: for one token, and for all.
EACH_MAX: Final = 16
ALL_MAX: Final = 48
THREADS_MAX: Final = 4
# What the loop hands on of an answer before it looks at others.
PART_BYTES: Final = 128 << 10
# Of at most 18 digits: larger than any file, and every system call can take it.
T = TypeVar("T")
_RANGE: Final = re.compile(r"bytes=([0-9]{1,18})-([0-9]{0,18})")
_BYTES: Final = "application/octet-stream"
_MOVES: Final = {
    "register": ConsumerPosition.register_at,
    "commit": ConsumerPosition.commit_or_register,
}


class Position(msgspec.Struct, frozen=True):
    """The body of `register` and `commit`."""

    uuid: str
    epoch: Annotated[int, msgspec.Meta(ge=0, le=0xFFFF_FFFF)]
    offset: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
    owner: Annotated[str, msgspec.Meta(max_length=OWNER_BYTES_MAX)] = ""


class JournalFiles:
    """What of the journal may be seen from outside. Methods run on threads."""

    def __init__(self, data_dir: Path) -> None:
        self._view = TenantView()
        self.data_dir = data_dir
        self.reader = JournalReader(data_dir)
        self._end: tuple[int, int] = (
            -1,
            0,
        )  # of the segment being written: base offset, bytes that may be read

    def catalog(self) -> dict[str, object]:
        segments = [
            {
                "name": f"{info.base_offset:020d}.log",
                "base_offset": info.base_offset,
                "end_offset": info.end_offset,
                "bytes": info.bytes,
            }
            for info in self.reader.segments()
        ]
        return self.summary() | {"segments": segments}

    def summary(self) -> dict[str, object]:
        """Return what tells this journal from others, how far it goes, and which one it was made of by `reshard`."""
        origin = origin_in(first_entries(self.data_dir / DIRECTORY))
        return {
            "uuid": self.reader.uuid,
            "epoch": self.reader.epoch,
            "origin": origin and {"uuid": origin.uuid, "epoch": origin.epoch, "end_offset": origin.end},
            "start_offset": self.reader.start_offset(),
            "complete_offset": self.reader.complete_offset(),
            "high_watermark": self.reader.high_watermark(),
        }

    def segment(self, base_offset: int, first: int, last: int, tenant: str = "") -> tuple[bytes, int, str]:
        """Return the bytes `first` to `last` of a segment as far as they may be seen, by a tenant or by all; how many
        that are in all; and what tells this file from another of the same name. Raises FileNotFoundError,
        CorruptBatch."""
        with self.reader.finished(base_offset) as segment:
            size = segment.size if segment.footer else self._readable(segment, first, last)
            length = max(0, min(last + 1, size, first + RANGE_BYTES_MAX) - first)
            if not tenant:
                return segment.read(first, length), size, segment.key
            index = self._index(base_offset)
            return self._view.read(segment, index, first, length, tenant), size, f"{segment.key}-of-a-tenant"

    def _index(self, base_offset: int) -> bytes:
        try:
            return self.small(file_name(base_offset, INDEX_SUFFIX))
        except FileNotFoundError:
            return b""  # of the segment being written

    def _readable(self, segment: FinishedSegment, first: int, last: int) -> int:
        """Return where the batches below the high watermark end. Looked up again only for what lies behind the last
        answer, and for the beginning: by that a reader learns how much there is."""
        base, size = self._end
        if base != segment.base_offset or first == 0 or last >= size:
            infos = self.reader.segments()
            size = next((i.bytes for i in infos if i.base_offset == segment.base_offset), 0)
            size += SEGMENT_HEADER_SIZE
            self._end = (segment.base_offset, size)
        return size

    def small(self, name: str) -> bytes:
        """Return the content of the watermark or an index. Raises FileNotFoundError."""
        folder = self.data_dir if name == WATERMARK else self.data_dir / DIRECTORY
        return DISK.read_file(folder / name)

    def move(self, consumer: str, what: str, position: Position) -> None:
        """Move a consumer's position, by what was asked. Raises EpochMismatch, ConsumerTaken, ValueError for a name
        that cannot be one."""
        self.reader.check(position.uuid, position.epoch)
        _MOVES[what](
            self.data_dir, consumer, position.uuid, position.epoch, position.offset, owner=position.owner
        )


class Turns:
    """Counts the answers that are made or on their way, for each token and in all. Runs on the loop."""

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()

    def take(self, who: str) -> bool:
        """Return whether there is one more for it."""
        if self._taken[who] >= EACH_MAX or self._taken.total() >= ALL_MAX:
            return False
        self._taken[who] += 1
        return True

    def give(self, who: str) -> None:
        self._taken[who] -= 1
        if not self._taken[who]:
            del self._taken[who]


class Taken:
    """An answer that keeps its turn until its bytes have left this process, or the connection has."""

    def __init__(self, response: Response, turns: Turns, who: str) -> None:
        self._response = response
        self._turns = turns
        self._who = who

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_and_wait(message: Message) -> None:
            if message["type"] != "http.response.body":
                await send(message)
                return
            body = memoryview(message.get("body", b""))
            for at in range(0, len(body), PART_BYTES):
                part = bytes(body[at : at + PART_BYTES])
                await send({"type": "http.response.body", "body": part, "more_body": True})
                await asyncio.sleep(
                    0
                )  # for others; and what was written goes to the socket at the end of a pass
            if not message.get("more_body", False):
                await send(
                    {"type": "http.response.body", "body": b""}
                )  # once nearly all of it has been taken

        try:
            await self._response(scope, receive, send_and_wait)
        finally:
            self._turns.give(self._who)


class ShardWanted(Exception):
    """A request names no shard, and there are several."""


class JournalRoutes:
    """The endpoints of the journal. They run on the loop and leave every file to a thread."""

    def __init__(self, data_dirs: Sequence[Path], token_file: Path | None) -> None:
        """Serve the journals of these data directories, one for each shard, by number."""
        self._logs = [JournalFiles(data_dir) for data_dir in data_dirs]
        self._tokens = Tokens(token_file)
        self._turns = Turns()
        # What takes a processor, which the loop may want, is done for one at a time; others wait for none of its threads.
        self._costly = asyncio.Lock()
        self._threads = ThreadPoolExecutor(THREADS_MAX, "journal-http")

    def routes(self) -> list[BaseRoute]:
        """Return the routes of the journal: what is below it, and its own path without a slash behind it, since nothing
        is redirected."""
        catalog = self._guarded(self._catalog)
        own = [Route(path, catalog) for path in ("/v1/journal", "/v1/journal/shards/{shard:int}")]
        return [*own, self.mount()]

    def mount(self) -> Mount:
        """Return what is below the path of the journal."""
        routes = [
            Route("/", self._guarded(self._catalog)),
            Route("/watermark", self._guarded(self._watermark)),
            Route("/files/{name}", self._guarded(self._file)),
            Route("/consumers", self._guarded(self._consumers)),
            Route("/consumers/{name}", self._guarded(self._consumer)),
            Route("/consumers/{name}", self._guarded(self._remove, OPERATE), methods=["DELETE"]),
            Route("/consumers/{name}/{what}", self._guarded(self._move, OPERATE), methods=["POST"]),
        ]
        shards = Route("/shards", self._guarded(self._shards))
        return Mount("/v1/journal", routes=[shards, Mount("/shards/{shard:int}", routes=routes), *routes])

    def _log(self, request: Request) -> JournalFiles:
        """Return the journal that a request names. Raises FileNotFoundError, ShardWanted."""
        shard: int | None = request.path_params.get("shard")
        if shard is None and len(self._logs) > 1:
            raise ShardWanted(
                f"this broker has {len(self._logs)} shards, each with a journal: /v1/journal/shards names them. A reader "
                "that does not know them is older than this broker"
            )
        if (shard or 0) >= len(self._logs):
            raise FileNotFoundError(f"this broker has no shard {shard}")
        return self._logs[shard or 0]

    def _guarded(
        self, answer: Callable[[Request, bytes], Response], role: str = READ
    ) -> Callable[[Request], object]:
        """Run a request on a thread, for whoever has a token of that role, which is asked before a body is read.

        What goes wrong becomes a problem document.
        """

        async def made(request: Request, body: bytes) -> Response:
            is_costly = request.state.grant.tenant or _takes_gzip(request.headers.get("accept-encoding", ""))
            async with self._costly if is_costly else nullcontext():
                return await self._on_thread(self._answered, answer, request, body)

        async def endpoint(request: Request) -> object:
            given = request.headers.get("authorization", "")
            grant = await self._on_thread(self._tokens.grant, given, role)
            if isinstance(grant, Response):
                return grant
            if not self._turns.take(given):
                detail = "too many answers are on their way: ask again when one of them is there"
                return problem(HTTPStatus.TOO_MANY_REQUESTS, detail, {"Retry-After": "1"})
            request.state.grant = grant
            try:
                found = await answered(request, made)
            except BaseException:
                self._turns.give(given)
                raise
            return Taken(found, self._turns, given)

        return endpoint

    async def _on_thread(self, work: Callable[..., T], *given: object) -> T:
        """Do the work on threads that nothing else of the admin HTTP waits for."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *given)

    def _answered(
        self, answer: Callable[[Request, bytes], Response], request: Request, body: bytes
    ) -> Response:
        try:
            return answer(request, body)
        except (FileNotFoundError, UnknownConsumer) as error:
            return problem(HTTPStatus.NOT_FOUND, str(error))
        except (EpochMismatch, ConsumerTaken, ConsumerAtWork, ShardWanted) as error:
            return problem(HTTPStatus.CONFLICT, str(error))
        except (ValueError, OverflowError, msgspec.MsgspecError) as error:
            return problem(HTTPStatus.BAD_REQUEST, str(error))
        except JournalError as error:
            return problem(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        except OSError as error:
            return problem(HTTPStatus.SERVICE_UNAVAILABLE, f"not now: {error.strerror}")

    def _catalog(self, request: Request, _body: bytes) -> Response:
        tenant = request.state.grant.tenant
        return JSONResponse(self._log(request).catalog() | ({"tenant": tenant} if tenant else {}))

    def _shards(self, _request: Request, _body: bytes) -> Response:
        found = [{"shard": number} | log.summary() for number, log in enumerate(self._logs)]
        return JSONResponse({"shards": found})

    def _watermark(self, request: Request, _body: bytes) -> Response:
        return Response(self._log(request).small(WATERMARK), media_type=_BYTES)

    def _file(self, request: Request, _body: bytes) -> Response:
        log, name = self._log(request), request.path_params["name"]
        if base_offset_of(name, INDEX_SUFFIX) is not None:
            return Response(log.small(name), media_type=_BYTES)
        base_offset = base_offset_of(name)
        if base_offset is None:
            return problem(HTTPStatus.NOT_FOUND, f"{name} is neither a segment nor an index")
        asked = _RANGE.fullmatch(request.headers.get("range", "bytes=0-"))
        if asked is None:
            return problem(HTTPStatus.BAD_REQUEST, "Range must be bytes=FIRST-LAST")
        first = int(asked[1])
        last = int(asked[2]) if asked[2] else first + RANGE_BYTES_MAX - 1
        data, size, tag = log.segment(base_offset, first, last, request.state.grant.tenant)
        if not data:
            status = HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
            return problem(status, f"{name} has {size} bytes", {"Content-Range": f"bytes */{size}"})
        headers = {"Content-Range": f"bytes {first}-{first + len(data) - 1}/{size}", "ETag": f'"{tag}"'}
        headers["Vary"] = "Accept-Encoding"
        if _takes_gzip(request.headers.get("accept-encoding", "")):
            packed = gzip.compress(data, compresslevel=1, mtime=0)
            if len(packed) < len(data):
                data, headers["Content-Encoding"] = packed, "gzip"
        return Response(data, HTTPStatus.PARTIAL_CONTENT, headers, media_type=_BYTES)

    def _consumers(self, request: Request, _body: bytes) -> Response:
        data_dir, found = self._log(request).data_dir, []
        for name in ConsumerPosition.names(data_dir):
            if request.state.grant.names(name):
                with suppress(UnknownConsumer):  # it has gone meanwhile
                    found.append(_fields(ConsumerPosition.read(data_dir, name)))
        return JSONResponse({"consumers": found})

    def _consumer(self, request: Request, _body: bytes) -> Response:
        name = request.path_params["name"]
        if not request.state.grant.names(name):
            return _not_of_this_token(name)
        return JSONResponse(_fields(ConsumerPosition.read(self._log(request).data_dir, name)))

    def _remove(self, request: Request, _body: bytes) -> Response:
        name, force = request.path_params["name"], request.query_params.get("force", "false")
        if force not in ("true", "false"):
            raise ValueError(f"force: {force} is neither true nor false")
        if not request.state.grant.names(name):
            return _not_of_this_token(name)
        return JSONResponse(
            _fields(ConsumerPosition.drop(self._log(request).data_dir, name, force == "true"))
        )

    def _move(self, request: Request, body: bytes) -> Response:
        name, what = request.path_params["name"], request.path_params["what"]
        if what not in _MOVES:
            return problem(
                HTTPStatus.NOT_FOUND, f"{what}: a consumer's position is moved by register or commit"
            )
        if not request.state.grant.names(name):
            return _not_of_this_token(name)
        self._log(request).move(name, what, msgspec.json.decode(body, type=Position))
        return Response(status_code=HTTPStatus.NO_CONTENT)


def _fields(position: ConsumerPosition) -> dict[str, object]:
    fields = {name: getattr(position, name) for name in position.__slots__}
    if not position.owner:
        del fields["owner"]  # readers of before do not know it
    return fields


def _not_of_this_token(consumer: str) -> Response:
    return problem(HTTPStatus.FORBIDDEN, f"this token is not for the consumer {consumer}")


def _takes_gzip(accepted: str) -> bool:
    """Return whether an Accept-Encoding header names gzip, and not with the weight 0."""
    for one in accepted.lower().split(","):
        name, _, weight = one.partition(";")
        if name.strip() == "gzip":
            return re.fullmatch(r"q=0(\.0*)?", weight.replace(" ", "")) is None
    return False
