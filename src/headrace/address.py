"""Where a broker or a listener is: `tcp://host:port` (`mqtt`), `tls://` (`mqtts`), `ws://`, `wss://`, `unix:///path`.

What is common to all who take addresses apart; which schemes there are for them, and their ports, they say themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import unquote, urlsplit

ALIASES = {"mqtt": "tcp", "mqtts": "tls"}
ENCRYPTED = ("tls", "wss", "frames")
WEBSOCKETS = ("ws", "wss")
FRAMES = ("frame", "frames")  # of low-power devices


@dataclass(frozen=True, slots=True)
class Location:
    """An address taken apart. `path` is a Unix socket's, or the resource of a WebSocket."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def encrypted(self) -> bool:
        return self.scheme in ENCRYPTED

    @property
    def websocket(self) -> bool:
        return self.scheme in WEBSOCKETS

    @property
    def frames(self) -> bool:
        return self.scheme in FRAMES

    def __str__(self) -> str:
        return self.url(self.port)

    def url(self, port: int) -> str:
        """Return the address as a URL, with this port."""
        if self.scheme == "unix":
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{port}{self.path}"


def locate(url: str, ports: Mapping[str, int]) -> Location:
    """Take an address apart, of one of the schemes in `ports` without a port of its own. ValueError says what is wrong.

    A query is left to the caller."""
    parts = urlsplit(url)
    port = parts.port
    scheme = ALIASES.get(parts.scheme, parts.scheme)
    if scheme not in ports or parts.username or parts.fragment:
        raise ValueError(f"{url!r} is no address of the form {_forms(ports)}")
    if scheme == "unix":
        if parts.netloc or parts.path in ("", "/"):
            raise ValueError(f"{url!r} is no address of the form unix:///PATH")
        return Location(scheme, "", 0, unquote(parts.path))
    has_path = parts.path.strip("/") != ""
    if not parts.hostname or (has_path and scheme not in WEBSOCKETS):
        raise ValueError(f"{url!r} is no address of the form {scheme}://HOST:PORT")
    return Location(
        scheme, parts.hostname, ports[scheme] if port is None else port, parts.path if has_path else ""
    )


def locate_remote(url: str, ports: Mapping[str, int]) -> Location:
    """Return the location of the address `url`, which has no options; a WebSocket's resource is /mqtt unless it names
    one."""
    found = locate(url, ports)
    if urlsplit(url).query:
        raise ValueError(f"{url!r} is no address: no options belong there")
    return replace(found, path="/mqtt") if found.websocket and not found.path else found


def _forms(ports: Mapping[str, int]) -> str:
    internet = "|".join(scheme for scheme in ports if scheme != "unix") + "://HOST:PORT"
    return f"{internet} or unix:///PATH" if "unix" in ports else internet
