"""The journal of a running broker over HTTP: `headrace://HOST:PORT`, `headraces://` for TLS.

The broker serves the files of its journal as byte ranges (`headrace.api.journal`), so this is the reader of local
files on a disk that is far away: same checks, same formats. Requests are repeated for a while when the broker
does not answer, so that a restart costs a query nothing.

What else is to be known of a broker stands in its address, as with listeners: `?ca=FILE` who signed its certificate,
`compression=gzip`, `requests=N` that are in flight when a file is read from front to back, `shard=N` whose journal of
several; with `&` between them.
"""

from __future__ import annotations

import builtins
import json
import re
import ssl
import time
import weakref
import zlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPMessage, HTTPSConnection
from pathlib import Path
from threading import Thread
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlsplit

from headrace.journal.consumers import ConsumerPosition
from headrace.journal.disk import Disk
from headrace.journal.reader import DIRECTORY, JournalReader
from headrace.journal.watermark import NAME as WATERMARK
from headrace_spark.base.errors import BadOption, JournalRefused, JournalUnreachable, LakeConflict
from headrace_spark.base.stopping import STOPPING
from headrace_spark.source.log_reader import DividedFrom

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
GZIP: Final = "gzip"
NO_COMPRESSION: Final = "none"
REQUESTS: Final = 2
_NOTHING: Final = re.compile(r"(?!)")
_ADDRESS: Final = {
    "ca": re.compile(r".+"),
    "compression": re.compile(f"{GZIP}|{NO_COMPRESSION}"),
    "requests": re.compile(r"[1-9]|1[0-6]"),
    "shard": re.compile(r"[0-9]{1,5}"),
}
_SPAN: Final = re.compile(r"bytes (\d{1,18})-(\d{1,18})/\d{1,18}")
_GZIP_BITS: Final = 31


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


def log_locations(location: str, token: str, patience: Patience = PATIENT) -> list[str]:
    """Return where each journal of a broker is: its address alone where it has one, or names a shard."""
    endpoint = Endpoint(location, token, patience)
    if endpoint.address.root != _ROOT:
        return [location]
    try:
        shards = json.loads(endpoint.get("/shards")[0])["shards"]
    except FileNotFoundError:  # an older broker, which has one
        return [location]
    if len(shards) == 1:
        return [location]
    sign = "&" if "?" in location else "?"
    return [f"{location}{sign}shard={shard['shard']}" for shard in shards]


@dataclass(frozen=True)
class Address:
    """A broker's admin HTTP, taken apart."""

    host: str
    port: int
    encrypted: bool
    ca_file: str
    """PEM of who signed the certificate; "": the system's."""
    compression: str
    requests: int
    root: str = _ROOT
    """Of the routes of its journal."""

    @classmethod
    def parse(cls, location: str) -> Address:
        """Return the address that a location names. Raises BadOption."""
        form = "a broker is given as headrace://HOST:PORT, or headraces:// over TLS"
        try:
            parts = urlsplit(location)
            port = parts.port or DEFAULT_PORT
            given = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
        except ValueError as error:
            raise BadOption("path", location, f"{form} ({error})") from None
        if not parts.hostname or parts.path.strip("/"):
            raise BadOption("path", location, form)
        encrypted = parts.scheme == "headraces"
        found = {"ca": "", "compression": NO_COMPRESSION, "requests": str(REQUESTS)} | given
        for name, value in given.items():
            if not _ADDRESS.get(name, _NOTHING).fullmatch(value) or (name == "ca" and not encrypted):
                what = (
                    "?ca=FILE of headraces://, compression=gzip or none, requests=1 to 16, shard=0 to 65535 are what "
                    "it may say"
                )
                raise BadOption("path", location, f"{name}={value}: {what}")
        root = f"{_ROOT}/shards/{int(given['shard'])}" if "shard" in given else _ROOT
        return cls(
            parts.hostname, port, encrypted, found["ca"], found["compression"], int(found["requests"]), root
        )

    def connection(self, timeout_s: float) -> HTTPConnection:
        """Return a connection that is not open yet. Raises BadOption for a CA file that cannot be used."""
        if not self.encrypted:
            return HTTPConnection(self.host, self.port, timeout=timeout_s)
        try:
            context = ssl.create_default_context(cafile=self.ca_file or None)
        except OSError as error:
            raise BadOption("ca", self.ca_file, error.strerror or str(error)) from None
        return HTTPSConnection(self.host, self.port, timeout=timeout_s, context=context)


class Endpoint:
    """One broker's routes, over one connection that is kept: a request, its repetitions, what refusals mean.

    Raises JournalUnreachable, JournalRefused, FileNotFoundError for what is not there, LakeConflict for what belongs to
    somebody else. On the main thread of a job that is told to stop, Stopped.
    """

    def __init__(self, location: str, token: str, patience: Patience = PATIENT) -> None:
        self.address = address = Address.parse(location)
        self._connection = address.connection(patience.timeout_s)
        weakref.finalize(self, self._connection.close)  # readers have no end of their own
        self.location = location
        self._token = token
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._patience = patience
        self._problem = ""

    def another(self) -> Endpoint:
        """Return the same endpoint over a connection of its own, for another thread."""
        return Endpoint(self.location, self._token, self._patience)

    def get(self, path: str, first: int = 0, length: int = 0) -> tuple[bytes, HTTPMessage]:
        """Return the body, or up to `length` bytes of it from `first` on, and the headers."""
        if not length:
            return self.request("GET", path, {})
        headers = {"Range": f"bytes={first}-{first + length - 1}"}
        if self.address.compression == GZIP:
            headers["Accept-Encoding"] = GZIP
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
        """Make one attempt at a request; None if another one may help, and why is in `_problem`."""
        try:
            self._connection.request(method, self.address.root + path, body, self._headers | headers)
            answer = self._connection.getresponse()
            data = answer.read()
            if answer.status < HTTPStatus.BAD_REQUEST and "Range" in headers:
                data = _whole(headers["Range"], answer.headers, data)
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


def _whole(asked: str, headers: HTTPMessage, data: bytes) -> bytes:
    """Return the bytes of the file that an answer says it has. Raises HTTPException where it has others, or says
    nothing."""
    span = _SPAN.fullmatch(headers.get("Content-Range", ""))
    if span is None or not asked.startswith(f"bytes={span[1]}-"):
        raise HTTPException(f"{asked} was asked for, and not answered")
    length = int(span[2]) - int(span[1]) + 1
    if headers.get("Content-Encoding") == GZIP:
        try:
            data = zlib.decompressobj(_GZIP_BITS).decompress(data, length + 1)
        except zlib.error as error:
            raise HTTPException(f"the answer cannot be unpacked: {error}") from None
    if len(data) != length:
        raise HTTPException(f"the answer has {len(data)} bytes instead of {length}")
    return data


def _detail(data: bytes) -> str:
    """Return what the problem document says, or what came instead."""
    try:
        return str(json.loads(data)["detail"])
    except (ValueError, KeyError, TypeError):
        return data[:200].decode("utf-8", "replace")


class RemoteDisk(Disk):
    """The files of a journal behind HTTP, read only. Reads ahead; an open file stays the file it was."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.tenant = ""
        """Whose messages alone the token shows, as of the last look at the names; "": everybody's."""
        self._endpoint = endpoint
        self._spare = Spare(endpoint)
        self._open: dict[int, _RemoteFile] = {}

    def names(self, directory: Path) -> list[str]:
        try:
            catalog = self.catalog()
        except FileNotFoundError:
            return []
        self.tenant = catalog.get("tenant", "")
        return sorted(segment["name"] for segment in catalog["segments"])

    def catalog(self) -> dict[str, Any]:
        """Return what the broker says of the journal. Raises FileNotFoundError, JournalUnreachable."""
        found: dict[str, Any] = json.loads(self._endpoint.get("/")[0])
        return found

    def open(self, path: Path, write: bool = False) -> int:
        if write:
            raise PermissionError(f"{path}: a journal is not written over HTTP")
        fd = max(self._open, default=0) + 1
        self._open[fd] = _RemoteFile(self._endpoint, self._spare, _route(path))
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


class Spare:
    """Connections to a broker for reading ahead, each used by one thread at a time; those of a file that is done go to
    the next one."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._idle: deque[Endpoint] = deque()

    @property
    def count(self) -> int:
        return self._endpoint.address.requests

    def ask(self, read: Callable[[Endpoint, int, int], bytes], position: int, length: int) -> Future[bytes]:
        """Read on a thread, which nobody has to wait for at the end of the process."""
        future: Future[bytes] = Future()

        def run() -> None:
            try:
                endpoint = self._take()
                found = read(endpoint, position, length)
            except BaseException as error:  # noqa: BLE001  raised again by who wants the bytes
                future.set_exception(error)
            else:
                self._idle.append(endpoint)
                future.set_result(found)

        Thread(target=run, name="read-ahead", daemon=True).start()
        return future

    def _take(self) -> Endpoint:
        try:
            return self._idle.pop()
        except IndexError:
            return self._endpoint.another()


class _RemoteFile:
    """A file of a journal behind HTTP. Opening fetches the beginning, which tells the size. Raises FileNotFoundError.

    Holds the bytes from `_begin` on; when a large read goes on where the one before did, what follows is asked for
    before it is wanted, in `_ahead`.
    """

    def __init__(self, endpoint: Endpoint, spare: Spare, route: str) -> None:
        self._endpoint = endpoint
        self._spare = spare
        self._route = route
        self._begin = 0
        self._data, headers = endpoint.get(route, 0, AHEAD_FROM_BYTES)
        self._ahead: deque[Future[bytes]] = deque()
        self._asked = 0  # up to where bytes are there or asked for
        self._is_run = (
            False  # whether the last read was a large one: if the next goes on there, so will others
        )
        self.size = int(headers.get("Content-Range", f"/{len(self._data)}").rpartition("/")[2])
        self._tag = headers.get("ETag", "")

    def read(self, length: int, position: int) -> bytes:
        length = min(length, self.size - position)
        at = position - self._begin
        if length <= 0:
            return b""
        if not 0 <= at <= len(self._data) - length:
            self._fill(length, position)
            at = 0
        return self._data[at : at + length]

    def _fill(self, length: int, position: int) -> None:
        """Hold at least `length` bytes from `position` on. Large reads go on to read what comes behind."""
        is_large = length >= AHEAD_FROM_BYTES
        if is_large and self._is_run and self._begin <= position <= self._begin + len(self._data):
            self._data = self._data[position - self._begin :]
            self._await(length)
        else:
            wanted = max(length, READ_AHEAD_BYTES) if is_large else length
            self._data = self._get(self._endpoint, position, min(wanted, self.size - position))
            self._asked = position + len(self._data)
            self._ahead.clear()
        self._begin, self._is_run = position, is_large

    def _await(self, length: int) -> None:
        """Add to the bytes that are there until there are enough, and ask for more."""
        parts = [self._data]
        missing = length - len(self._data)
        while missing > 0:
            self._ask()
            with STOPPING.ends():
                part = self._ahead.popleft().result()
            parts.append(part)
            missing -= len(part)
        self._data = b"".join(parts)
        self._ask()

    def _ask(self) -> None:
        """Have as many requests in flight as the address says."""
        while len(self._ahead) < self._spare.count and self._asked < self.size:
            length = min(READ_AHEAD_BYTES, self.size - self._asked)
            self._ahead.append(self._spare.ask(self._get, self._asked, length))
            self._asked += length

    def _get(self, endpoint: Endpoint, position: int, wanted: int) -> bytes:
        """Return these bytes of the file; the broker answers in parts of its own size."""
        parts: list[bytes] = []
        while wanted > 0:
            part, headers = endpoint.get(self._route, position, wanted)
            if headers.get("ETag", "") != self._tag:
                raise FileNotFoundError(f"{self._route}: it was replaced while it was read")
            if not part:
                raise JournalUnreachable(f"{self._route}: the broker answers with nothing")
            parts.append(part)
            position += len(part)
            wanted -= len(part)
        return b"".join(parts)


class RemoteConsumers:
    """The positions of registered consumers at a running broker."""

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

    def list(self) -> builtins.list[ConsumerPosition]:
        """Return the positions by name; none where the broker is an older one, which does not say."""
        try:
            found = json.loads(self._endpoint.get("/consumers")[0])["consumers"]
        except FileNotFoundError:
            return []
        return [ConsumerPosition(**one) for one in found]

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
        self._remote = RemoteDisk(Endpoint(location, token, patience))
        super().__init__(Path(DIRECTORY), self._remote)
        self.location = location
        self.token = token
        self.consumers = RemoteConsumers(Endpoint(location, token, patience))

    @property
    def tenant(self) -> str:
        """Return whose messages alone the token shows; "": everybody's."""
        return self._remote.tenant

    def location_from(self, start: int) -> str:
        return self.location

    def divided_from(self) -> DividedFrom | None:
        found = self._remote.catalog().get("origin")  # an older broker does not say
        return found and DividedFrom(found["uuid"], found["epoch"], found["end_offset"])
