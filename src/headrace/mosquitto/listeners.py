"""Listeners of mosquitto.conf as URLs with options.

A listener begins with `listener PORT [ADDRESS]`; what follows belongs to it. Options in front of the first one belong to
the default listener, at port 1883 if they name no other. Without any of either Mosquitto 2 listens on the loopback.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import quote, urlencode

from headrace.mosquitto.converted import Converted
from headrace.mosquitto.lines import InvalidLine, Line

# Options of one listener -> that of our URL.
_OPTIONS = {"crlfile": "crl", "keyfile": "key", "certfile": "cert", "websockets_origin": "origins"}
LISTENER_OPTIONS = {
    *_OPTIONS,
    "bind_address",
    "cafile",
    "capath",
    "enable_proxy_protocol",
    "listener",
    "max_connections",
    "port",
    "protocol",
    "require_certificate",
    "socket_domain",
    "tls_version",
    "use_identity_as_username",
}
_SPOKEN = ("mqtt", "websockets")
# With per_listener_settings these belong to a listener.
SECURITY = ("allow_anonymous", "listener_allow_anonymous", "password_file", "acl_file")


@dataclass
class Listener:
    """One listener of mosquitto.conf. `port` 0 and an address that is a path: a Unix socket."""

    host: str = ""
    port: int | None = None
    first: Line | None = None
    lines: dict[str, Line] = field(default_factory=dict)
    origins: list[str] = field(default_factory=list)
    closed: list[tuple[Line, str]] = field(default_factory=list)  # that close a door, and why

    @property
    def is_named(self) -> bool:
        """Return whether the file makes it: one that others can reach, as all are that have an option of their own."""
        own = set(self.lines) - {"allow_anonymous", "listener_allow_anonymous", "acl_file"}
        return self.port is not None or bool(own or self.origins or self.closed)

    def is_left_out(self, converted: Converted) -> bool:
        """Return whether it would let in more than before, or is for something else than MQTT."""
        if not _speaks_mqtt(self, converted):
            return True
        closed = [*self.closed, *_closed_by_context(self)]
        said = [converted.closes(line, why, self.name) for line, why in closed]  # each of them
        return any(said)

    def flag(self, option: str) -> bool:
        return option in self.lines and self.lines[option].flag()

    @property
    def takes_names_from_certificates(self) -> bool:
        return self.encrypted and self.flag("require_certificate") and self.flag("use_identity_as_username")

    @property
    def encrypted(self) -> bool:
        return "certfile" in self.lines

    @property
    def name(self) -> str:
        return "the default listener" if self.first is None else f"listener {self.first.value}"


def take(line: Line, listeners: list[Listener]) -> None:
    """Note an option of the listener that it belongs to. Raises InvalidLine."""
    current = listeners[-1]
    if line.option == "listener":
        port, _, host = line.text().partition(" ")
        listeners.append(Listener(host.strip(), _port(line, port), line))
    elif line.option == "port":
        listeners[0].port = _port(line, line.text())
    elif line.option == "bind_address":
        listeners[0].host = line.text()
        listeners[0].port = listeners[0].port or 1883
    elif line.option == "websockets_origin":
        current.origins.append(line.text())
    else:
        current.lines[line.option] = line


def _port(line: Line, text: str) -> int:
    if not text.isdecimal() or int(text) > 0xFFFF:
        raise InvalidLine(f"{line.place}: {line.option} {line.value}: {text!r} is no port")
    return int(text)


def named(listeners: list[Listener], converted: Converted) -> list[Listener]:
    """Return the listeners that Mosquitto has with this file: if it names none, that of the loopback."""
    default, *others = listeners
    if default.is_named and others:
        for line in default.lines.values():
            converted.remark(line, f"it stands before the first listener: it is for {default.name} alone")
    if default.is_named or not others:
        return listeners
    for line in default.lines.values():
        converted.remark(line, "there is no listener that it could belong to")
    return others


def convert(listeners: list[Listener], converted: Converted, *, local: bool) -> None:
    """Set `listeners`. `local`: Mosquitto would listen on the loopback alone, since none was named. Raises
    InvalidLine."""
    if local:
        converted.set("listeners", ["tcp://127.0.0.1:1883"])
    else:
        converted.set("listeners", [_url(one, converted) for one in listeners])


def _speaks_mqtt(listener: Listener, converted: Converted) -> bool:
    line = listener.lines.get("protocol")
    if line is None or line.value in _SPOKEN:
        return True
    if line.value == "http_api":
        converted.remark(line, f"{listener.name} is not for MQTT, and left out; admin has an API of ours")
    else:
        converted.closes(line, "this protocol is not spoken", listener.name)
    return False


def _closed_by_context(listener: Listener) -> Iterator[tuple[Line, str]]:
    """Yield the lines that keep somebody out together with others of the listener, and why ours would not."""
    lines = listener.lines
    if not listener.host and _is_ipv6(listener):
        yield lines["socket_domain"], "[::] takes IPv4 too; give the listener an address"
    if not listener.encrypted:
        if listener.flag("require_certificate"):
            yield lines["require_certificate"], "it has no certfile, so it speaks no TLS"
        return
    if listener.port == 0:
        yield lines["certfile"], "a Unix socket speaks no TLS"
    asks = listener.flag("require_certificate")
    if asks and "cafile" not in lines:
        last = lines.get("capath", lines["require_certificate"])
        yield last, "one file with all who sign client certificates is needed: cafile"
    if listener.flag("use_identity_as_username") and not asks:
        yield lines["use_identity_as_username"], "without require_certificate Mosquitto lets nobody in here"


def _url(listener: Listener, converted: Converted) -> str:
    options = _options(listener, converted)
    query = f"?{urlencode(options, safe='/:,', quote_via=quote)}" if options else ""
    if listener.port == 0 and listener.host.startswith("/"):
        return f"unix://{quote(listener.host)}{query}"
    over_websocket = "protocol" in listener.lines and listener.lines["protocol"].value == "websockets"
    scheme = {(False, False): "tcp", (True, False): "tls", (False, True): "ws", (True, True): "wss"}[
        listener.encrypted, over_websocket
    ]
    host = listener.host or ("[::]" if _is_ipv6(listener) else "0.0.0.0")  # noqa: S104  as the file says
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    port = 1883 if listener.port is None else listener.port
    return f"{scheme}://{host}:{port}{'/' if query else ''}{query}"


def _is_ipv6(listener: Listener) -> bool:
    return "socket_domain" in listener.lines and listener.lines["socket_domain"].value == "ipv6"


_OF_TLS = (
    "keyfile",
    "cafile",
    "capath",
    "crlfile",
    "require_certificate",
    "use_identity_as_username",
    "tls_version",
)


def _options(listener: Listener, converted: Converted) -> dict[str, str]:
    lines = listener.lines
    found = _tls_options(listener, converted) if listener.encrypted else _without_tls(listener, converted)
    if "max_connections" in lines and lines["max_connections"].integer() > 0:
        found["connections_max"] = lines["max_connections"].value
    if "enable_proxy_protocol" in lines and _proxied(lines["enable_proxy_protocol"]):
        found["proxy"] = "required"
    if listener.origins:
        found["origins"] = ",".join(listener.origins)
    return found


def _proxied(line: Line) -> bool:
    """Return whether connections open with a PROXY header: 1 and 2 name its version, of which either is taken."""
    return line.value == "2" or line.flag()


def _without_tls(listener: Listener, converted: Converted) -> dict[str, str]:
    for option in _OF_TLS:
        if option in listener.lines:
            converted.remark(listener.lines[option], "the listener has no certfile, so it speaks no TLS")
    return {}


def _tls_options(listener: Listener, converted: Converted) -> dict[str, str]:
    lines = listener.lines
    found = {ours: lines[theirs].text() for theirs, ours in _OPTIONS.items() if theirs in lines}
    if listener.flag("require_certificate"):
        found["client_cert"] = "require"
        if "cafile" in lines:
            found["ca"] = lines["cafile"].text()
        if listener.flag("use_identity_as_username"):
            found["identity"] = "cn"
    else:
        found.pop("crl", None)
        for option in ("cafile", "capath", "crlfile", "use_identity_as_username"):
            if option in lines and not (option.startswith("use_") and not listener.flag(option)):
                converted.remark(
                    lines[option], "only with require_certificate: this listener asks clients for none"
                )
    if "tls_version" in lines:
        _minimum_version(lines["tls_version"], converted)
    return found


def _minimum_version(line: Line, converted: Converted) -> None:
    if line.value == "tlsv1.3":
        converted.set("tls.minimum_version", "1.3")
        converted.remark(line, "tls.minimum_version is for all listeners")
    elif line.value != "tlsv1.2":
        converted.remark(line, "TLS 1.2 is the oldest")
