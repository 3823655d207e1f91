"""Options of Mosquitto (up to 2.1) that close a door and have no counterpart: whoever they kept out would come in.

What such an option belongs to is left out of the result: its listener, its bridge, or all of it, until the person who
converts has named the option (`--accept`). An option that nobody knows may close a door as well, and is treated as one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from headrace.mosquitto.lines import Line
from headrace.mosquitto.without import PREFIXES, WITHOUT

Scope = Literal["listener", "bridge", "broker"]


def _always(_: Line) -> bool:
    return True


def _if_true(line: Line) -> bool:
    return line.flag()


def _not_all_versions(line: Line) -> bool:
    return {"3", "4", "5"} - set(line.value.replace(",", " ").split()) != set()


@dataclass(frozen=True, slots=True)
class Closing:
    """What an option belongs to, and why nothing of ours does the same. `matters`: whether a line with it closes a
    door."""

    scope: Scope
    why: str
    matters: Callable[[Line], bool] = _always


_PLUGIN = "headrace has no plugins: whom it kept out, and what it forbade, is not known"
_PSK = "headrace has no TLS with pre-shared keys: it would be a listener without TLS"
_PSK_BRIDGE = (
    "headrace has no TLS with pre-shared keys: what crosses, with the password, would be in the clear"
)
UNKNOWN: Final = Closing(
    "broker", "no option of Mosquitto that is known here, so what it closes is not known"
)
CLOSING: Final = {
    "accept_protocol_versions": Closing(
        "listener", "every listener speaks MQTT 3.1, 3.1.1 and 5.0", _not_all_versions
    ),
    "auth_plugin": Closing("broker", _PLUGIN),
    "bind_interface": Closing(
        "listener", "listeners have addresses, not interfaces: it would be reachable from all of them"
    ),
    "bridge_identity": Closing("bridge", _PSK_BRIDGE),
    "bridge_psk": Closing("bridge", _PSK_BRIDGE),
    "bridge_require_ocsp": Closing("bridge", "revocation is not asked for over OCSP", _if_true),
    "clientid_prefixes": Closing(
        "broker", "every client id may connect; the ACL file can say it: a client-id line for each user"
    ),
    "global_plugin": Closing("broker", _PLUGIN),
    "mount_point": Closing("listener", "its clients would see the topics of all others"),
    "plugin": Closing("broker", _PLUGIN),
    "plugin_load": Closing("broker", _PLUGIN),
    "plugin_use": Closing("broker", _PLUGIN),
    "proxy_protocol_v2_require_tls": Closing(
        "listener", "whether a proxy's client came over TLS is not asked", _if_true
    ),
    "psk_hint": Closing("listener", _PSK),
    "use_subject_as_username": Closing(
        "listener", "the common name can be the user name (use_identity_as_username), the subject cannot", _if_true
    ),
    "use_username_as_clientid": Closing(
        "listener", "a user could have the client id of another one; see access.client_ids and the ACL", _if_true
    ),
}  # fmt: skip
# Plugins of Mosquitto's own that keep nobody out.
_HARMLESS_PLUGINS: Final = ("mosquitto_persist_sqlite", "mosquitto_sparkplug_aware")
# Plugins of Mosquitto's own that read a file of ours: their option, and the option that it stands for.
FILE_PLUGINS: Final = {
    "mosquitto_acl_file": ("plugin_opt_acl_file", "acl_file"),
    "mosquitto_password_file": ("plugin_opt_password_file", "password_file"),
}
SECRETS: Final = {"bridge_psk", "local_password", "password", "remote_password", "tls_engine_kpass_sha1"}


def name_of_plugin(line: Line) -> str:
    """Return the name of the file that a `plugin` line names, without folder and suffix."""
    return line.value.rpartition("/")[2].rpartition(".")[0]


def is_harmless_plugin(line: Line) -> bool:
    return line.option in ("plugin", "global_plugin") and name_of_plugin(line) in _HARMLESS_PLUGINS


def closing_of(option: str) -> Closing | None:
    """Return what an option closes; None for one without a counterpart that closes nothing."""
    if option in CLOSING:
        return CLOSING[option]
    return None if option in WITHOUT or option.startswith(tuple(PREFIXES)) else UNKNOWN
