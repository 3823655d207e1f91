"""Where the remote broker is: `tcp://host:port`, `tls://`, `ws://host:port/path`, `wss://`, `unix:///path`."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

SCHEMES = {
    "tcp": "tcp",
    "mqtt": "tcp",
    "tls": "tls",
    "mqtts": "tls",
    "ws": "ws",
    "wss": "wss",
    "unix": "unix",
}
PORTS = {"tcp": 1883, "tls": 8883, "ws": 80, "wss": 443, "unix": 0}


@dataclass(frozen=True, slots=True)
class RemoteAddress:
    """`path` is a Unix socket's, or the resource of a WebSocket."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def encrypted(self) -> bool:
        return self.scheme in ("tls", "wss")

    @property
    def websocket(self) -> bool:
        return self.scheme in ("ws", "wss")

    def __str__(self) -> str:
        if self.scheme == "unix":
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"


def parse(url: str) -> RemoteAddress:
    """The parts of an address. ValueError says what is wrong with it."""
    parts = urlsplit(url)
    port = parts.port
    scheme = SCHEMES.get(parts.scheme)
    if scheme is None or parts.username or parts.query or parts.fragment:
        raise ValueError(f"{url!r} is no address of the form tcp|tls|ws|wss://HOST:PORT or unix:///PATH")
    if scheme == "unix":
        if parts.netloc or parts.path in ("", "/"):
            raise ValueError(f"{url!r} is no address of the form unix:///PATH")
        return RemoteAddress(scheme, "", 0, unquote(parts.path))
    websocket = scheme in ("ws", "wss")
    if not parts.hostname or (parts.path not in ("", "/") and not websocket):
        raise ValueError(f"{url!r} is no address of the form {scheme}://HOST:PORT")
    path = (parts.path if parts.path.strip("/") else "/mqtt") if websocket else ""
    return RemoteAddress(scheme, parts.hostname, PORTS[scheme] if port is None else port, path)
