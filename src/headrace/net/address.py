"""Listener URLs taken apart: `scheme://host:port/?option=value`, or `unix:///path`.

Schemes: `tcp` (`mqtt`), `tls` (`mqtts`), `ws`, `wss`, `unix`; `frame` and `frames` for devices that speak frames.
Options are those of `Options`; what a URL leaves out comes from the configuration. Pure: opens nothing.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, fields, replace
from urllib.parse import parse_qsl, urlsplit

from headrace.address import Location, locate
from headrace.net.subject import COMMON_NAME, SubjectTemplate

PORTS = {"tcp": 1883, "tls": 8883, "ws": 8083, "wss": 8084, "unix": 0, "frame": 6800, "frames": 6801}
CLIENT_CERTIFICATES = ("none", "optional", "require")
PROXY = ("off", "optional", "required")


@dataclass(frozen=True, slots=True)
class Options:
    """What one listener may have of its own. Empty or 0: as the configuration says."""

    cert: str = ""  # PEM: certificate and chain
    key: str = ""
    ca: str = ""  # PEM: who signs client certificates
    crl: str = ""  # PEM: which client certificates were revoked
    client_cert: str = ""  # one of CLIENT_CERTIFICATES
    identity: str = ""  # the user name by the client certificate: "cn", or a template (`net.subject`)
    proxy: str = "off"  # one of PROXY
    origins: str = ""  # of WebSockets, separated by commas; a browser's page from elsewhere is refused
    paths: str = ""  # of WebSockets, separated by commas; at others there is no MQTT
    connections_max: int = 0
    packet_bytes_max: int = 0
    pending_bytes_max: int = 0
    connect_timeout_s: float = 0.0
    messages_per_s: int = 0
    accepts_per_s: float = 0.0
    subscriptions_max: int = 0
    mode: int = 0o660  # of a Unix socket


@dataclass(frozen=True, slots=True)
class Address(Location):
    """Says where to listen. Port 0 lets the system choose."""

    options: Options

    @property
    def loopback(self) -> bool:
        """Return whether only this machine can reach the address; a name other than localhost counts as reachable."""
        if self.scheme == "unix" or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse(url: str) -> Address:
    """Return the parts of a listener URL. ValueError says what is wrong with it."""
    found = locate(url, PORTS)
    if found.path and found.scheme != "unix":
        raise ValueError(f"{url!r} is no address of the form {found.scheme}://HOST:PORT")
    options = _options(url, urlsplit(url).query)
    if not all(path.startswith("/") for path in listed(options.paths)):
        raise ValueError(f"{url!r}: paths={options.paths!r}: a path begins with /")
    return Address(found.scheme, found.host, found.port, found.path, options)


def listed(text: str) -> list[str]:
    """Return what an option names, separated by commas."""
    return [one for one in text.split(",") if one]


def _options(url: str, query: str) -> Options:
    known = {field.name: field.default for field in fields(Options)}
    found: dict[str, object] = {}
    for name, text in parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)):
        if name not in known or name in found:
            raise ValueError(f"{url!r}: option {name!r} is unknown or given twice; known: {', '.join(known)}")
        found[name] = _value(url, name, text, known[name])
    return replace(Options(), **found)  # type: ignore[arg-type]


def _value(url: str, name: str, text: str, default: object) -> object:
    choices = {"client_cert": CLIENT_CERTIFICATES, "proxy": PROXY}.get(name)
    try:
        if name == "mode":
            return int(text, 8)
        if isinstance(default, (int, float)):
            number = type(default)(text)
            if number <= 0:
                raise ValueError
            return number
    except ValueError:
        raise ValueError(f"{url!r}: {name}={text!r} is no positive number") from None
    if not text or (choices is not None and text not in choices):
        raise ValueError(f"{url!r}: {name}={text!r} is not one of {', '.join(choices or ['a value'])}")
    if name == "identity" and text != COMMON_NAME:
        try:
            SubjectTemplate(text)
        except ValueError as error:
            raise ValueError(f"{url!r}: identity: {error}") from None
    return text
