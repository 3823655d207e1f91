"""Listeners of mosquitto.conf as URLs with options.

A listener begins with `listener PORT [ADDRESS]`; what follows belongs to it. Options in front of the first one belong to
the default listener, which `port` and `bind_address` make. Without any listener Mosquitto 2 listens on the loopback.
"""

from __future__ import annotations

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

    def flag(self, option: str) -> bool:
        return option in self.lines and self.lines[option].flag()

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


def convert(listeners: list[Listener], converted: Converted) -> bool:
    """Set `listeners`; whether Mosquitto would listen on the loopback alone, since none was named. Raises InvalidLine."""
    named = [one for one in listeners if one.port is not None]
    if not named:
        for line in listeners[0].lines.values():
            converted.remark(line, "there is no listener that it could belong to")
        converted.set("listeners", ["tcp://127.0.0.1:1883"])
        return True
    converted.set("listeners", [_url(one, converted) for one in named])
    return False


def _url(listener: Listener, converted: Converted) -> str:
    lines = listener.lines
    protocol = lines["protocol"].value if "protocol" in lines else "mqtt"
    if protocol not in ("mqtt", "websockets"):
        converted.remark(lines["protocol"], "this protocol is not spoken; the listener is made one for MQTT")
    options = _options(listener, converted)
    query = f"?{urlencode(options, safe='/:,', quote_via=quote)}" if options else ""
    if listener.port == 0 and listener.host.startswith("/"):
        return f"unix://{quote(listener.host)}{query}"
    scheme = {(False, False): "tcp", (True, False): "tls", (False, True): "ws", (True, True): "wss"}[
        listener.encrypted, protocol == "websockets"
    ]
    host = listener.host or ("[::]" if _is_ipv6(listener) else "0.0.0.0")  # noqa: S104  as the file says
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return f"{scheme}://{host}:{listener.port}{'/' if query else ''}{query}"


def _is_ipv6(listener: Listener) -> bool:
    return "socket_domain" in listener.lines and listener.lines["socket_domain"].value == "ipv6"


_OF_TLS = (
    "keyfile",
    "cafile",
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
    if listener.flag("enable_proxy_protocol") if "enable_proxy_protocol" in lines else False:
        found["proxy"] = "required"
    if listener.origins:
        found["origins"] = ",".join(listener.origins)
    return found


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
        for option in ("cafile", "crlfile", "use_identity_as_username"):
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
