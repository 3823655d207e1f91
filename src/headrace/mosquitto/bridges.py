"""Bridges of mosquitto.conf: what follows a line `connection NAME` belongs to it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from headrace.mosquitto.converted import Converted, Table
from headrace.mosquitto.lines import InvalidLine, Line

_VERSIONS = {"mqttv31": "3.1.1", "mqttv311": "3.1.1", "mqttv50": "5.0"}
_TEXTS = {
    "clientid": "client_id",
    "remote_clientid": "client_id",
    "notification_topic": "notification_topic",
    "password": "password",
    "remote_password": "password",
    "remote_username": "username",
    "username": "username",
}
_NUMBERS = {
    "bridge_max_packet_size": "packet_bytes_max",
    "bridge_receive_maximum": "inflight_max",
    "bridge_session_expiry_interval": "session_expiry_s",
    "keepalive_interval": "keep_alive_s",
}
_FLAGS = {"cleansession": "clean_session", "clean_session": "clean_session", "try_private": "try_private"}
_TLS = {"bridge_cafile": "ca", "bridge_certfile": "certificate", "bridge_keyfile": "key"}
BRIDGE_OPTIONS = {
    *_TEXTS,
    *_NUMBERS,
    *_TLS,
    *_FLAGS,
    "address",
    "addresses",
    "bridge_capath",
    "bridge_insecure",
    "bridge_protocol_version",
    "bridge_tls_use_os_certs",
    "connection",
    "notifications",
    "notifications_local_only",
    "restart_timeout",
    "topic",
}
_BOTH_WAYS = ("in", "out", "both")


@dataclass
class Bridge:
    """One `connection` of mosquitto.conf."""

    first: Line
    table: Table = field(default_factory=dict)
    tls: Table = field(default_factory=dict)
    topics: list[Table] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    encrypted: bool = False
    closed: list[tuple[Line, str]] = field(default_factory=list)  # that close a door, and why
    authorities: Line | None = None  # a folder of them, other than the system's
    insecure: Line | None = None

    def is_left_out(self, converted: Converted) -> bool:
        """Return whether it would cross less protected than before."""
        if self.authorities is not None and "ca" not in self.tls:
            why = "the system's authorities would be trusted; name one file with those of the folder: bridge_cafile"
            self.closed.append((self.authorities, why))
        if self.insecure is not None and self.encrypted:
            self.tls["insecure"] = True
            why = "a certificate of anybody would do, where Mosquitto leaves out the name alone"
            self.closed.append((self.insecure, why))
        what = f"connection {self.first.value}"
        said = [converted.closes(line, why, what) for line, why in self.closed]  # each of them
        return any(said)

    def as_table(self) -> Table:
        """Return the table of a bridge. Raises InvalidLine."""
        if not self.hosts or not self.topics:
            raise InvalidLine(f"{self.first.place}: connection {self.first.value} has no address or no topic")
        scheme = "tls" if self.encrypted else "tcp"
        port = "1883"  # also of one with TLS
        hosts = [host if re.search(r":\d+$", host) else f"{host}:{port}" for host in self.hosts]
        found: dict[str, Any] = {
            "name": self.table.pop("name"),
            "addresses": [f"{scheme}://{host}" for host in hosts],
        }
        # Mosquitto's default is the older one.
        found |= {"version": "3.1.1"} | self.table
        if self.tls and self.encrypted:
            found["tls"] = self.tls
        return found | {"topics": self.topics}


def begin(line: Line, converted: Converted) -> Bridge:
    """Begin the bridge that a `connection` line names. Raises InvalidLine."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", line.text())[:64]
    if name != line.value:
        converted.remark(line, f"a name of letters, digits and _.- alone: {name}")
    return Bridge(line, {"name": name})


def _take_tls(bridge: Bridge, line: Line) -> None:
    if line.option == "bridge_insecure":
        bridge.insecure = line if line.flag() else None
    elif line.option == "bridge_tls_use_os_certs":
        bridge.encrypted = bridge.encrypted or line.flag()
    else:
        bridge.encrypted = True
        if line.option in _TLS:
            bridge.tls[_TLS[line.option]] = line.text()
        elif line.value.rstrip("/") != "/etc/ssl/certs":
            bridge.authorities = line


def take(bridge: Bridge, line: Line) -> None:
    """Note an option of this bridge. Raises InvalidLine."""
    option, table = line.option, bridge.table
    if option in ("address", "addresses"):
        bridge.hosts += line.text().split()
    elif option == "topic":
        bridge.topics += _topic(line)
    elif option in _TEXTS:
        table[_TEXTS[option]] = line.text()
    elif option in _NUMBERS:
        table[_NUMBERS[option]] = line.integer()
    elif option in _TLS or option in ("bridge_capath", "bridge_insecure", "bridge_tls_use_os_certs"):
        _take_tls(bridge, line)
    elif option == "bridge_protocol_version":
        if line.value not in _VERSIONS:
            raise InvalidLine(f"{line.place}: {option} {line.value}: one of {', '.join(_VERSIONS)} is needed")
        table["version"] = _VERSIONS[line.value]
    elif option in _FLAGS:
        table[_FLAGS[option]] = line.flag()
    elif option in ("notifications", "notifications_local_only"):
        _notify(table, line)
    else:
        _restart(table, line)


def _notify(table: Table, line: Line) -> None:
    if line.option == "notifications_local_only":
        if line.flag() and table.get("notifications") != "none":
            table["notifications"] = "local"
    elif not line.flag():
        table["notifications"] = "none"


def _restart(table: Table, line: Line) -> None:
    """Convert `restart_timeout BASE [CAP]`: with one number Mosquitto waits for just so long."""
    numbers = line.text().split()
    if not all(number.isdecimal() for number in numbers) or len(numbers) > 2:
        raise InvalidLine(f"{line.place}: {line.option} {line.value}: one or two numbers are needed")
    table["reconnect_min_s"] = max(1, int(numbers[0]))
    table["reconnect_max_s"] = max(table["reconnect_min_s"], int(numbers[-1]))


def _topic(line: Line) -> list[Table]:
    """Convert `topic PATTERN [[DIRECTION] QOS] [LOCAL] [REMOTE]`; "" stands for none. Raises InvalidLine."""
    pattern, *rest = line.text().split()
    found: Table = {"pattern": _plain(pattern), "direction": "out", "qos": 0}
    if rest and rest[0] in _BOTH_WAYS:
        found["direction"] = rest.pop(0)
        if rest:
            if rest[0] not in ("0", "1", "2"):
                raise InvalidLine(f"{line.place}: topic {line.value}: {rest[0]!r} is no QoS")
            found["qos"] = int(rest.pop(0))
    if len(rest) > 2:
        raise InvalidLine(
            f"{line.place}: topic {line.value}: more than pattern, direction, QoS and two prefixes"
        )
    for key, prefix in zip(("local_prefix", "remote_prefix"), rest, strict=False):
        if _plain(prefix):
            found[key] = _plain(prefix)
    return [found]


def _plain(text: str) -> str:
    return "" if text == '""' else text
