"""The journal over HTTP, for readers on other machines: its files as byte ranges, positions of consumers.

    GET  /v1/journal                          uuid, epoch, offsets, segments
    GET  /v1/journal/watermark                the published high watermark, as the file has it
    GET  /v1/journal/files/NAME               a segment or an index, with Range; whole batches up to the high
                                              watermark, nothing behind it
    GET  /v1/journal/consumers/NAME           position of a registered consumer
    POST /v1/journal/consumers/NAME/register  {"uuid", "epoch", "offset", "owner"?}: retention waits for it from there
                                              on; 409 if it belongs to another owner
    POST /v1/journal/consumers/NAME/commit    the same: everything below is processed

Each wants `Authorization: Bearer TOKEN`, where TOKEN is one of `journal.token_file` (`tokens`); without that key
nobody is let in. What a POST changes needs the role `operate`, all else `read`. Files are read on threads, at most
`RANGE_BYTES_MAX` at a time, so the loop only passes on what is in memory; nothing is parsed here but the end
of the segment being written.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Final

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from headrace.api.problem import problem
from headrace.api.tokens import OPERATE, READ, Tokens, guarded
from headrace.journal.consumers import OWNER_BYTES_MAX, ConsumerPosition
from headrace.journal.disk import DISK
from headrace.journal.errors import ConsumerTaken, EpochMismatch, JournalError, UnknownConsumer
from headrace.journal.finished import FinishedSegment
from headrace.journal.index import SUFFIX as INDEX_SUFFIX
from headrace.journal.reader import DIRECTORY, JournalReader
from headrace.journal.segment import SEGMENT_HEADER_SIZE, base_offset_of
from headrace.journal.watermark import NAME as WATERMARK

RANGE_BYTES_MAX: Final = 1 << 20
# Of at most 18 digits: larger than any file, and every system call can take it.
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
        return {
            "uuid": self.reader.uuid,
            "epoch": self.reader.epoch,
            "start_offset": self.reader.start_offset(),
            "complete_offset": self.reader.complete_offset(),
            "high_watermark": self.reader.high_watermark(),
            "segments": segments,
        }

    def segment(self, base_offset: int, first: int, last: int) -> tuple[bytes, int, str]:
        """Bytes `first` to `last` of a segment as far as they may be seen, how many that are in all, and what tells this
        file from another of the same name. Raises FileNotFoundError."""
        with self.reader.finished(base_offset) as segment:
            size = segment.size if segment.footer else self._readable(segment, last)
            length = max(0, min(last + 1, size, first + RANGE_BYTES_MAX) - first)
            return segment.read(first, length), size, segment.key

    def _readable(self, segment: FinishedSegment, last: int) -> int:
        """Return where the batches below the high watermark end. Looked up again only for what lies behind the last
        answer."""
        base, size = self._end
        if base != segment.base_offset or last >= size:
            infos = self.reader.segments()
            size = next((i.bytes for i in infos if i.base_offset == segment.base_offset), 0)
            size += SEGMENT_HEADER_SIZE
            self._end = (segment.base_offset, size)
        return size

    def small(self, name: str) -> bytes:
        """The watermark or an index. Raises FileNotFoundError."""
        folder = self.data_dir if name == WATERMARK else self.data_dir / DIRECTORY
        return DISK.read_file(folder / name)

    def move(self, consumer: str, what: str, position: Position) -> None:
        """Raises EpochMismatch, ConsumerTaken, ValueError for a name that cannot be one."""
        self.reader.check(position.uuid, position.epoch)
        _MOVES[what](
            self.data_dir, consumer, position.uuid, position.epoch, position.offset, owner=position.owner
        )


class JournalRoutes:
    """The endpoints. They run on the loop and leave every file to a thread."""

    def __init__(self, data_dir: Path, token_file: Path | None) -> None:
        self._files = JournalFiles(data_dir)
        self._tokens = Tokens(token_file)

    def mount(self) -> Mount:
        return Mount(
            "/v1/journal",
            routes=[
                Route("/", self._guarded(self._catalog)),
                Route("/watermark", self._guarded(self._watermark)),
                Route("/files/{name}", self._guarded(self._file)),
                Route("/consumers/{name}", self._guarded(self._consumer)),
                Route("/consumers/{name}/{what}", self._guarded(self._move, OPERATE), methods=["POST"]),
            ],
        )

    def _guarded(
        self, answer: Callable[[Request, bytes], Response], role: str = READ
    ) -> Callable[[Request], object]:
        """Run a request on a thread, for whoever has a token of that role, which is asked before a body is read.

        What goes wrong becomes a problem document.
        """

        return guarded(self._tokens, role, lambda *asked: run_in_threadpool(self._answered, answer, *asked))

    def _answered(
        self, answer: Callable[[Request, bytes], Response], request: Request, body: bytes
    ) -> Response:
        try:
            return answer(request, body)
        except (FileNotFoundError, UnknownConsumer) as error:
            return problem(HTTPStatus.NOT_FOUND, str(error))
        except (EpochMismatch, ConsumerTaken) as error:
            return problem(HTTPStatus.CONFLICT, str(error))
        except (ValueError, OverflowError, msgspec.MsgspecError) as error:
            return problem(HTTPStatus.BAD_REQUEST, str(error))
        except JournalError as error:
            return problem(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        except OSError as error:
            return problem(HTTPStatus.SERVICE_UNAVAILABLE, f"not now: {error.strerror}")

    def _catalog(self, _request: Request, _body: bytes) -> Response:
        return JSONResponse(self._files.catalog())

    def _watermark(self, _request: Request, _body: bytes) -> Response:
        return Response(self._files.small(WATERMARK), media_type=_BYTES)

    def _file(self, request: Request, _body: bytes) -> Response:
        name = request.path_params["name"]
        if base_offset_of(name, INDEX_SUFFIX) is not None:
            return Response(self._files.small(name), media_type=_BYTES)
        base_offset = base_offset_of(name)
        if base_offset is None:
            return problem(HTTPStatus.NOT_FOUND, f"{name} is neither a segment nor an index")
        asked = _RANGE.fullmatch(request.headers.get("range", "bytes=0-"))
        if asked is None:
            return problem(HTTPStatus.BAD_REQUEST, "Range must be bytes=FIRST-LAST")
        first = int(asked[1])
        last = int(asked[2]) if asked[2] else first + RANGE_BYTES_MAX - 1
        data, size, tag = self._files.segment(base_offset, first, last)
        if not data:
            status = HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
            return problem(status, f"{name} has {size} bytes", {"Content-Range": f"bytes */{size}"})
        headers = {"Content-Range": f"bytes {first}-{first + len(data) - 1}/{size}", "ETag": f'"{tag}"'}
        return Response(data, HTTPStatus.PARTIAL_CONTENT, headers, media_type=_BYTES)

    def _consumer(self, request: Request, _body: bytes) -> Response:
        found = ConsumerPosition.read(self._files.data_dir, request.path_params["name"])
        fields = {name: getattr(found, name) for name in found.__slots__}
        if not found.owner:
            del fields["owner"]  # readers of before do not know it
        return JSONResponse(fields)

    def _move(self, request: Request, body: bytes) -> Response:
        name, what = request.path_params["name"], request.path_params["what"]
        if what not in _MOVES:
            return problem(
                HTTPStatus.NOT_FOUND, f"{what}: a consumer's position is moved by register or commit"
            )
        self._files.move(name, what, msgspec.json.decode(body, type=Position))
        return Response(status_code=HTTPStatus.NO_CONTENT)
