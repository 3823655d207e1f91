"""The journal of a running broker over HTTP: `headrace://HOST:PORT`, `headraces://` for TLS.

The broker serves the files of its journal as byte ranges (`headrace.api.journal`), so this is the reader of local
files on a disk that is far away: same checks, same formats. Requests are repeated for a while when the broker
does not answer, so that a restart costs a query nothing.
"""

from __future__ import annotations

import json
import ssl
import time
import weakref
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPMessage, HTTPSConnection
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

from headrace.journal.consumers import ConsumerPosition
from headrace.journal.disk import Disk
from headrace.journal.reader import DIRECTORY, JournalReader
from headrace.journal.watermark import NAME as WATERMARK
from headrace_spark.base.errors import BadOption, JournalRefused, JournalUnreachable, LakeConflict
from headrace_spark.base.stopping import STOPPING

SCHEMES: Final = ("headrace", "headraces")
DEFAULT_PORT: Final = 18830  # of the broker's admin listener
# What the broker gives in one answer.
READ_AHEAD_BYTES: Final = 1 << 20
# Smaller reads pick out a header, an entry, or messages of one topic.
AHEAD_FROM_BYTES: Final = 64 << 10
RETRY_FOR_S: Final = 30.0
TIMEOUT_S: Final = 30.0
_FIRST_PAUSE_S: Final = 0.1
# What the broker, or a proxy in front of it, says of a moment.
_NOT_NOW: Final = (
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)
_ROOT: Final = "/v1/journal"


@dataclass(frozen=True)
class Patience:
    """Says how long a request is repeated while the broker does not answer, and how long one answer may take."""

    retry_for_s: float = RETRY_FOR_S
    timeout_s: float = TIMEOUT_S


PATIENT: Final = Patience()
IMPATIENT: Final = Patience(0.0, 3.0)
"""For a look in passing: who asks has something better to do than to wait."""


def is_remote(location: str) -> bool:
    return location.partition("://")[0] in SCHEMES


class Endpoint:
    """One broker's routes, over one connection that is kept: a request, its repetitions, what refusals mean.

    Raises JournalUnreachable, JournalRefused, FileNotFoundError for what is not there, LakeConflict for what belongs to
    somebody else. On the main thread of a job that is told to stop, Stopped.
    """

    def __init__(self, location: str, token: str, patience: Patience = PATIENT) -> None:
        parts = urlsplit(location)
        if not parts.hostname or parts.path.strip("/") or parts.query:
            raise BadOption("path", location, "a broker is given as headrace://HOST:PORT")
        kind = HTTPSConnection if parts.scheme == "headraces" else HTTPConnection
        self._connection = kind(parts.hostname, parts.port or DEFAULT_PORT, timeout=patience.timeout_s)
        weakref.finalize(self, self._connection.close)  # readers have no end of their own
        self.location = location
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._patience = patience
        self._problem = ""

    def get(self, path: str, first: int = 0, length: int = 0) -> tuple[bytes, HTTPMessage]:
        """The body, or up to `length` bytes of it from `first` on, and the headers."""
        headers = {"Range": f"bytes={first}-{first + length - 1}"} if length else {}
        return self.request("GET", path, headers)

    def request(
        self, method: str, path: str, headers: dict[str, str], body: bytes | None = None
    ) -> tuple[bytes, HTTPMessage]:
        patience = IMPATIENT if STOPPING.event.is_set() else self._patience
        until, pause_s = time.monotonic() + patience.retry_for_s, _FIRST_PAUSE_S
        self._limit(patience.timeout_s)
        with STOPPING.ends():
            while (found := self._try(method, path, headers, body)) is None:
                if time.monotonic() + pause_s > until:
                    raise JournalUnreachable(f"{self.location} does not answer: {self._problem}")
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, 2.0)
        return found

    def _limit(self, timeout_s: float) -> None:
        self._connection.timeout = timeout_s
        if self._connection.sock is not None:
            self._connection.sock.settimeout(timeout_s)

    def _try(
        self, method: str, path: str, headers: dict[str, str], body: bytes | None
    ) -> tuple[bytes, HTTPMessage] | None:
        """One attempt; None if another one may help, and why is in `_problem`."""
        try:
            self._connection.request(method, _ROOT + path, body, self._headers | headers)
            answer = self._connection.getresponse()
            data = answer.read()
        except ssl.SSLCertVerificationError as error:
            raise JournalRefused(f"{self.location}: {error}") from None
        except (HTTPException, OSError) as error:
            self._connection.close()  # the next request opens it again
            self._problem = str(error) or type(error).__name__
            return None
        except BaseException:
            self._connection.close()  # half an answer may be left in it
            raise
        if answer.status < HTTPStatus.BAD_REQUEST:
            return data, answer.headers
        if answer.status not in _NOT_NOW:
            raise self._refused(HTTPStatus(answer.status), path, data)
        self._problem = _detail(data)
        return None

    def _refused(self, status: HTTPStatus, path: str, data: bytes) -> Exception:
        detail = _detail(data)
        if status == HTTPStatus.NOT_FOUND:
            return FileNotFoundError(f"{self.location}{path}: {detail}")
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            return JournalRefused(
                f"{self.location}: {detail} (option token, pipeline.token_file, or HEADRACE_JOURNAL_TOKEN)"
            )
        if status == HTTPStatus.CONFLICT:
            return LakeConflict(f"{self.location}: {detail}")
        return JournalRefused(f"{self.location}{path}: {status} {detail}")


def _detail(data: bytes) -> str:
    """What the problem document says, or what came instead."""
    try:
        return str(json.loads(data)["detail"])
    except (ValueError, KeyError, TypeError):
        return data[:200].decode("utf-8", "replace")


class RemoteDisk(Disk):
    """The files of a journal behind HTTP, read only. Reads ahead; an open file stays the file it was."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._open: dict[int, _RemoteFile] = {}

    def names(self, directory: Path) -> list[str]:
        try:
            body, _ = self._endpoint.get("/")
        except FileNotFoundError:
            return []
        return sorted(segment["name"] for segment in json.loads(body)["segments"])

    def open(self, path: Path, write: bool = False) -> int:
        if write:
            raise PermissionError(f"{path}: a journal is not written over HTTP")
        fd = max(self._open, default=0) + 1
        self._open[fd] = _RemoteFile(self._endpoint, _route(path))
        return fd

    def close(self, fd: int) -> None:
        del self._open[fd]

    def pread(self, fd: int, length: int, position: int) -> bytes:
        return self._open[fd].read(length, position)

    def size(self, fd: int) -> int:
        return self._open[fd].size

    def read_file(self, path: Path) -> bytes:
        return self._endpoint.get(_route(path))[0]


def _route(path: Path) -> str:
    return f"/{WATERMARK}" if path.name == WATERMARK else f"/files/{quote(path.name)}"


class _RemoteFile:
    """Opening fetches the beginning, which tells the size. Raises FileNotFoundError."""

    def __init__(self, endpoint: Endpoint, route: str) -> None:
        self._endpoint = endpoint
        self._route = route
        self._begin = 0
        self._data, headers = endpoint.get(route, 0, AHEAD_FROM_BYTES)
        self.size = int(headers.get("Content-Range", f"/{len(self._data)}").rpartition("/")[2])
        self._tag = headers.get("ETag", "")

    def read(self, length: int, position: int) -> bytes:
        length = min(length, self.size - position)
        at = position - self._begin
        if length <= 0:
            return b""
        if not 0 <= at <= len(self._data) - length:
            self._data, self._begin, at = self._fetch(length, position), position, 0
        return self._data[at : at + length]

    def _fetch(self, length: int, position: int) -> bytes:
        """Large reads go on to read what comes behind; the broker answers in parts of its own size."""
        wanted = min(max(length, READ_AHEAD_BYTES if length >= AHEAD_FROM_BYTES else 0), self.size - position)
        parts: list[bytes] = []
        while wanted > 0:
            part, headers = self._endpoint.get(self._route, position, wanted)
            if headers.get("ETag", "") != self._tag:
                raise FileNotFoundError(f"{self._route}: it was replaced while it was read")
            parts.append(part)
            position += len(part)
            wanted -= len(part)
        return b"".join(parts)


class RemoteConsumers:
    """Positions of registered consumers at a running broker."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def register(self, name: str, uuid: str, epoch: int, offset: int, owner: str = "") -> None:
        self._put(name, "register", uuid, epoch, offset, owner)

    def commit(self, name: str, uuid: str, epoch: int, offset: int, owner: str = "") -> None:
        self._put(name, "commit", uuid, epoch, offset, owner)

    def read(self, name: str) -> ConsumerPosition | None:
        try:
            found = json.loads(self._endpoint.get(f"/consumers/{quote(name)}")[0])
        except FileNotFoundError:
            return None
        return ConsumerPosition(**found)

    def _put(self, name: str, what: str, uuid: str, epoch: int, offset: int, owner: str) -> None:
        position: dict[str, Any] = {"uuid": uuid, "epoch": epoch, "offset": offset}
        if owner:
            position["owner"] = owner
        body = json.dumps(position).encode()
        headers = {"Content-Type": "application/json"}
        self._endpoint.request("POST", f"/consumers/{quote(name)}/{what}", headers, body)


class RemoteJournal(JournalReader):
    """Does what `JournalReader` does, over HTTP. Every method may raise JournalUnreachable."""

    def __init__(self, location: str, token: str, patience: Patience = PATIENT) -> None:
        super().__init__(Path(DIRECTORY), RemoteDisk(Endpoint(location, token, patience)))
        self.location = location
        self.token = token
        self.consumers = RemoteConsumers(Endpoint(location, token, patience))
