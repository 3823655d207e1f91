"""Options of mosquitto.conf for the whole broker, and what they are here."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import PurePosixPath

from headrace.mosquitto.converted import Converted
from headrace.mosquitto.lines import InvalidLine, Line

UINT32_MAX = 0xFFFF_FFFF
INFLIGHT_MAX = 49_151
BACKLOG_MAX = 65_535
OVERHEAD = 65_536  # of topic and properties around a payload, at most about
_PERIODS = {"h": 3600, "d": 86_400, "w": 7 * 86_400, "m": 30 * 86_400, "y": 365 * 86_400}
_LEVELS = {
    "debug": 0,
    "all": 0,
    "information": 1,
    "notice": 1,
    "subscribe": 1,
    "unsubscribe": 1,
    "websockets": 1,
}
_NAMES = ["debug", "info", "warning", "error"]


def _number(key: str, most: int, none: int) -> Callable[[Line, Converted], None]:
    """Return the conversion of a number within our limit; 0, which is Mosquitto's "no limit", becomes `none`."""

    def set_it(line: Line, converted: Converted) -> None:
        wanted = line.integer()
        value = none if wanted <= 0 else min(wanted, most)
        converted.set(key, value)
        if value != wanted and not (wanted <= 0 and none == 0):
            converted.remark(line, f"{key} is {value}, the most that there is")

    return set_it


def _persistence(line: Line, converted: Converted) -> None:
    if not line.flag():
        converted.remark(line, "headrace always keeps everything; durability = 'none' waits for no disk")


def _location(line: Line, converted: Converted) -> None:
    """Say that Mosquitto's own folder is not used: what lies there is not read."""
    wanted = PurePosixPath(line.text())
    ours = wanted.parent / "headrace" if wanted.name == "mosquitto" else wanted / "headrace"
    converted.set("data_dir", str(ours))
    converted.remark(line, f"data_dir is {ours}: mosquitto.db is not read")


def _expiration(line: Line, converted: Converted) -> None:
    found = re.fullmatch(r"(\d+)([hdwmy])", line.text())
    if found is None:
        raise InvalidLine(f"{line.place}: {line.option} {line.value}: a number and one of h, d, w, m, y")
    seconds = min(int(found[1]) * _PERIODS[found[2]], UINT32_MAX)
    converted.set("session.v311_session_expiry_s", seconds)
    converted.set("session.session_expiry_max_s", seconds)


def _packet(line: Line, converted: Converted) -> None:
    if line.integer() > 0:
        converted.set("limits.packet_bytes_max", max(128, min(line.integer(), 268_435_460)))


def _payload(line: Line, converted: Converted) -> None:
    wanted = line.integer()
    if wanted <= 0 or converted.get("limits.packet_bytes_max") is not None:
        return
    size = min(wanted + OVERHEAD, 268_435_460)
    converted.set("limits.packet_bytes_max", size)
    converted.remark(
        line, f"limits.packet_bytes_max = {size} is of the packet, topic and properties included"
    )


def _log_type(line: Line, converted: Converted) -> None:
    """Set the log level to the lowest that is asked for."""
    level = _LEVELS.get(line.value, {"warning": 2, "error": 3, "none": 3}.get(line.value))
    if level is None:
        converted.remark(line, "log.level is debug, info, warning or error")
        return
    known = converted.get("log.level")
    if known is None or _NAMES.index(known) > level:
        converted.set("log.level", _NAMES[level])


def _zero_length(line: Line, converted: Converted) -> None:
    if not line.flag():
        converted.remark(line, "clients without an id get one")


def _nothing(line: Line, converted: Converted) -> None:
    """Do nothing: what is asked for is so."""


def _interval(line: Line, converted: Converted) -> None:
    converted.set("sys_interval_s", max(0, line.integer()))


GENERAL: dict[str, Callable[[Line, Converted], None]] = {
    "allow_zero_length_clientid": _zero_length,
    "log_type": _log_type,
    "max_inflight_messages": _number("session.inflight_max", INFLIGHT_MAX, INFLIGHT_MAX),
    "max_keepalive": _number("limits.keep_alive_max_s", 0xFFFF, 0),
    "max_packet_size": _packet,
    "max_queued_bytes": _number("session.backlog_bytes_max", 1 << 62, 0),
    "max_queued_messages": _number("session.backlog_messages_max", BACKLOG_MAX, BACKLOG_MAX),
    "max_topic_alias": _number("limits.topic_alias_maximum", 0xFFFF, 0),
    "max_topic_alias_broker": _number("limits.topic_alias_outbound", 0xFFFF, 0),
    "message_size_limit": _payload,
    "persistence": _persistence,
    "persistence_location": _location,
    "persistent_client_expiration": _expiration,
    "set_tcp_nodelay": _nothing,
    "sys_interval": _interval,
}
