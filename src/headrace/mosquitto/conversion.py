"""The whole of a mosquitto.conf as a configuration of ours, with a remark for every line that has no counterpart."""

from __future__ import annotations

from pathlib import Path

from headrace.mosquitto import bridges, listeners, security
from headrace.mosquitto.bridges import BRIDGE_OPTIONS, Bridge
from headrace.mosquitto.converted import Converted
from headrace.mosquitto.general import GENERAL
from headrace.mosquitto.lines import Line, read_lines
from headrace.mosquitto.listeners import LISTENER_OPTIONS, SECURITY, Listener
from headrace.mosquitto.without import why_without

FOREVER = 0xFFFF_FFFF


def convert(file: Path) -> Converted:
    """Convert a configuration of Mosquitto's. Raises InvalidLine for what Mosquitto would not take either."""
    reading = _Reading()
    for line in read_lines(file):
        reading.take(line)
    return reading.finish()


class _Reading:
    def __init__(self) -> None:
        self._converted = Converted()
        self._listeners = [Listener()]
        self._bridge: Bridge | None = None
        self._bridges: list[Bridge] = []
        self._settings: dict[str, Line] = {}
        self._per_listener = False

    def take(self, line: Line) -> None:
        option, converted = line.option, self._converted
        if option == "per_listener_settings":
            self._per_listener = line.flag()
        elif option == "connection":
            self._bridge = bridges.begin(line, converted)
            self._bridges.append(self._bridge)
        elif option in BRIDGE_OPTIONS and self._bridge is not None:
            bridges.take(self._bridge, line, converted)
        elif option in BRIDGE_OPTIONS:
            converted.remark(line, "there is no connection in front of it that it could belong to")
        elif option in SECURITY:
            of_listener = self._per_listener or option == "listener_allow_anonymous"
            (self._listeners[-1].lines if of_listener else self._settings)[option] = line
        elif option in LISTENER_OPTIONS:
            listeners.take(line, self._listeners)
        elif option in GENERAL:
            GENERAL[option](line, converted)
        else:
            converted.remark(line, why_without(option) or "no option of Mosquitto that is known here")

    def finish(self) -> Converted:
        converted = self._converted
        tables, converted.tables = converted.tables, {}
        if "data_dir" in tables:
            converted.set("data_dir", tables.pop("data_dir"))
        unnamed = self._listeners[0]
        own = {name: line for name, line in unnamed.lines.items() if name in SECURITY}
        unnamed.lines = {name: line for name, line in unnamed.lines.items() if name not in SECURITY}
        local = listeners.convert(self._listeners, converted)
        unnamed.lines |= own
        named = [one for one in self._listeners if one.port is not None] or self._listeners[:1]
        security.convert(self._settings, named, converted, local=local)
        converted.tables |= {key: value for key, value in tables.items() if not isinstance(value, dict)}
        for name, table in tables.items():
            if isinstance(table, dict):
                converted.tables[name] = converted.tables.get(name, {}) | table
        if converted.get("session.v311_session_expiry_s") is None:
            converted.set("session.v311_session_expiry_s", FOREVER)  # as Mosquitto keeps them
        if self._bridges:
            converted.tables["bridge"] = [bridge.as_table() for bridge in self._bridges]
        return converted
