"""The whole of a mosquitto.conf as a configuration of ours, with a remark for every line that has no counterpart.

The result lets in nobody whom Mosquitto kept out: see `closing`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from headrace.errors import ConfigError
from headrace.mosquitto import bridges, listeners, security
from headrace.mosquitto.bridges import BRIDGE_OPTIONS, Bridge
from headrace.mosquitto.closing import (
    FILE_PLUGINS,
    UNKNOWN,
    Closing,
    closing_of,
    is_harmless_plugin,
    name_of_plugin,
)
from headrace.mosquitto.converted import Converted
from headrace.mosquitto.general import GENERAL
from headrace.mosquitto.lines import InvalidLine, Line, read_lines
from headrace.mosquitto.listeners import LISTENER_OPTIONS, SECURITY, Listener
from headrace.mosquitto.without import why_without

FOREVER = 0xFFFF_FFFF
_PLUGINS = ("plugin", "global_plugin")
_ALL = "everything"
_OF_ONE = [option for option in SECURITY if option != "listener_allow_anonymous"]
# Options behind which Mosquitto takes no `per_listener_settings true`.
_OF_SECURITY = {
    *SECURITY,
    "allow_zero_length_clientid",
    "auth_plugin",
    "auto_id_prefix",
    "plugin",
    "psk_file",
}


def convert(file: Path, accepted: Collection[str] = ()) -> Converted:
    """Convert a configuration of Mosquitto's. `accepted`: options that may go although they close a door. Raises
    InvalidLine for what Mosquitto would not take either, ConfigError for an accepted option that is not in the file."""
    reading = _Reading(frozenset(accepted))
    named = {"acl_file", "per_listener_settings"}
    for line in read_lines(file):
        named |= {line.option, line.veiled().option}
        reading.take(line)
    if others := sorted(set(accepted) - named):
        raise ConfigError(f"--accept {others[0]}: {file} has no such option")
    return reading.finish()


class _Reading:
    def __init__(self, accepted: frozenset[str]) -> None:
        self._converted = Converted(accepted=accepted)
        self._listeners = [Listener()]
        self._bridge: Bridge | None = None
        self._bridges: list[Bridge] = []
        self._settings: dict[str, Line] = {}
        self._closed: list[tuple[Line, str]] = []  # that close a door of the whole broker, and why
        self._plugins: list[tuple[Line, bool]] = []  # and whether their file came
        self._per_listener: Line | None = None
        self._is_secured = False

    def take(self, line: Line) -> None:
        option, converted = line.option, self._converted
        if option in _OF_SECURITY or option.startswith(("auth_opt_", "plugin_opt_")):
            self._is_secured = True
        if option == "per_listener_settings":
            self._take_per_listener(line)
        elif option == "connection":
            self._bridge = bridges.begin(line, converted)
            self._bridges.append(self._bridge)
        elif option in BRIDGE_OPTIONS and self._bridge is not None:
            bridges.take(self._bridge, line)
        elif option in BRIDGE_OPTIONS:
            converted.remark(line, "there is no connection in front of it that it could belong to")
        elif option in SECURITY:
            self._secure(line)
        elif option in LISTENER_OPTIONS:
            listeners.take(line, self._listeners)
        elif option in GENERAL:
            GENERAL[option](line, converted)
        else:
            self._take_other(line)

    def _take_per_listener(self, line: Line) -> None:
        """Note whose what follows is. Raises InvalidLine."""
        if line.flag() and self._is_secured:
            raise InvalidLine(f"{line.place}: {line.option} must stand before all that is about security")
        self._per_listener = line if line.flag() else None

    def _secure(self, line: Line) -> None:
        of_listener = self._per_listener is not None or line.option == "listener_allow_anonymous"
        (self._listeners[-1].lines if of_listener else self._settings)[line.option] = line

    def _take_other(self, line: Line) -> None:
        """Take an option without a counterpart."""
        option = line.option
        if option in _PLUGINS and name_of_plugin(line) in FILE_PLUGINS:
            self._plugins.append((line, False))
        elif self._plugins and option == FILE_PLUGINS[name_of_plugin(self._plugins[-1][0])][0]:
            plugin = self._plugins[-1][0]
            self._plugins[-1] = (plugin, True)
            self._secure(replace(line, option=FILE_PLUGINS[name_of_plugin(plugin)][1]))
        elif is_harmless_plugin(line):
            self._converted.remark(line, "it keeps nobody out, and headrace has no plugins")
        elif (closing := closing_of(option)) is None:
            known = line.veiled() if option.startswith(("auth_opt_", "plugin_opt_")) else line
            self._converted.remark(known, why_without(option))
        else:
            self._close(line, closing)

    def _close(self, line: Line, closing: Closing) -> None:
        if not closing.matters(line):
            self._converted.remark(line, "this value keeps nobody out")
        elif closing.scope == "listener":
            self._listeners[-1].closed.append((line, closing.why))
        elif closing.scope == "broker":
            self._closed.append((line.veiled() if closing is UNKNOWN else line, closing.why))
        elif self._bridge is not None:
            self._bridge.closed.append((line, closing.why))
        else:
            self._converted.remark(line, "there is no connection in front of it that it could belong to")

    def finish(self) -> Converted:
        converted = self._converted
        tables, converted.tables = converted.tables, {}
        if "data_dir" in tables:
            converted.set("data_dir", tables.pop("data_dir"))
        self._close_all()
        self._finish_listeners()
        converted.tables |= {key: value for key, value in tables.items() if not isinstance(value, dict)}
        for name, table in tables.items():
            if isinstance(table, dict):
                converted.tables[name] = converted.tables.get(name, {}) | table
        if converted.get("session.v311_session_expiry_s") is None:
            converted.set("session.v311_session_expiry_s", FOREVER)  # as Mosquitto keeps them
        made = [bridge.as_table() for bridge in self._bridges if not bridge.is_left_out(converted)]
        if made:
            converted.tables["bridge"] = made
        return converted

    def _without_own_security(self) -> None:
        """Take out what stood behind a `per_listener_settings true` that another line has taken back: it counts for
        nobody."""
        for one in self._listeners:
            for option in [name for name in _OF_ONE if name in one.lines]:
                why = "per_listener_settings is taken back behind it: it counts for nobody"
                self._converted.remark(one.lines.pop(option), why)

    def _close_all(self) -> None:
        """Make nothing where something of the whole broker closes a door."""
        closed = list(self._closed)
        for plugin, came in self._plugins:
            if not came:
                closed.append((plugin, "the option that names its file is missing"))
        for line, why in closed:
            if self._converted.closes(line, why, _ALL):
                self._converted.is_made = False

    def _finish_listeners(self) -> None:
        converted = self._converted
        if self._per_listener is None:
            self._without_own_security()
        named = listeners.named(self._listeners, converted)
        kept = [one for one in named if not one.is_left_out(converted)]
        if self._per_listener is not None and kept:
            kept = security.with_one_wall(kept, self._per_listener, converted)
        if not kept:
            converted.is_made = False
            return
        local = named == self._listeners[:1] and not self._listeners[0].is_named
        listeners.convert(kept, converted, local=local)
        security.convert(self._settings, kept, converted, local=local)
