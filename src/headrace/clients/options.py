"""The options that `headrace pub` and `headrace sub` share, and what they mean as a CONNECT and as properties."""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import click

from headrace.clients.endpoint import Endpoint, client_context, parse
from headrace.mqtt import packets
from headrace.mqtt.data_types import VARINT_MAX
from headrace.mqtt.packets import Connect, Will
from headrace.mqtt.properties import Properties
from headrace.mqtt.property_table import BINARY, PAIRS, TABLE, TEXT, WILL
from headrace.mqtt.topics import valid_topic

VERSIONS = {"3.1": packets.VERSION_3_1, "3.1.1": packets.VERSION_3_1_1, "5": packets.VERSION_5}
_VERSION_NAMES = VERSIONS | {
    "mqttv31": packets.VERSION_3_1,
    "mqttv311": packets.VERSION_3_1_1,
    "mqttv5": packets.VERSION_5,
    "31": packets.VERSION_3_1,
    "311": packets.VERSION_3_1_1,
}
PACKETS = {
    "connect": packets.CONNECT,
    "publish": packets.PUBLISH,
    "subscribe": packets.SUBSCRIBE,
    "unsubscribe": packets.UNSUBSCRIBE,
    "disconnect": packets.DISCONNECT,
    "will": WILL,
}
DEFAULT_HOST = "127.0.0.1"
NEVER_EXPIRES_S = 0xFFFF_FFFF
_SINGULAR = {"user_properties": "user-property", "subscription_identifiers": "subscription-identifier"}
_NAMES = {_SINGULAR.get(row[1], row[1].replace("_", "-")): row for row in TABLE}
Command = TypeVar("Command", bound=Callable[..., Any])


class FiniteRange(click.FloatRange):
    """A number of an option, within bounds. click takes "nan" for one that is within any bounds, and "inf" where there is
    no upper one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value} is no number that can be reached", param, ctx)
        return found


class PropertyCommand(click.Command):
    """`--property NAME VALUE` takes one value more when NAME is `user-property`; with a PACKET before NAME it is `-D`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        joined: list[str] = []
        rest = list(args)
        while rest:
            word = rest.pop(0)
            if word == "--property" and rest[:1] and rest[0] in PACKETS:
                word = "-D"
            joined.append(word)
            if word == "-D" and rest:
                joined.append(rest.pop(0))
            if (
                word in ("-D", "--property", "--connect-property")
                and rest[:1] == ["user-property"]
                and len(rest) >= 3
            ):
                joined += ["user-property", f"{rest[1]}\0{rest[2]}"]
                del rest[:3]
        return super().parse_args(ctx, joined)


def connection_options(command: Command) -> Command:
    """Add the options that say where to connect, as whom, with which Will."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


PASSWORD_VARIABLE = "HEADRACE_PASSWORD"  # noqa: S105
_OPTIONS = [
    click.option("--url", help="where the broker listens  [default: tcp://127.0.0.1:1883]"),
    click.option("-L", "located", metavar="URL", help="mqtt[s]://[USER[:PASSWORD]@]HOST[:PORT]/TOPIC"),
    click.option("-h", "--host", help="instead of the one in --url"),
    click.option("-p", "--port", type=click.IntRange(1, 65_535), help="instead of the one in --url"),
    click.option(
        "--ca", "--cafile", "ca", default="", help="PEM: who signs its certificate  [default: the system's]"
    ),
    click.option("--cert", default="", help="PEM: this client's certificate"),
    click.option("--key", default="", help="PEM: its key, if it is in a file of its own"),
    click.option("--insecure", is_flag=True, help="do not check the broker's certificate"),
    click.option("-i", "--id", "client_id", help="client id  [default: a random one]"),
    click.option("-u", "--username"),
    click.option("-P", "--password", help="others may see it in the list of processes"),
    click.option(
        "--password-file",
        type=click.Path(path_type=Path, exists=True, dir_okay=False, allow_dash=True),
        help=f"its first line is the password  [default: what {PASSWORD_VARIABLE} holds]",
    ),
    click.option("-V", "--protocol", type=click.Choice(list(_VERSION_NAMES)), default="5", show_default=True),
    click.option("-d", "--debug", is_flag=True, help="a line for each packet"),
    click.option(
        "-D",
        "packet_properties",
        type=(click.Choice(list(PACKETS)), str, str),
        multiple=True,
        metavar="PACKET NAME VALUE",
        help="in that packet (5)",
    ),
    click.option("-k", "--keep-alive", type=click.IntRange(0, 65_535), default=60, show_default=True),
    click.option("-c", "--persistent", is_flag=True, help="keep the session (needs -i)"),
    click.option(
        "-x", "--session-expiry", type=click.IntRange(0, NEVER_EXPIRES_S), help="seconds after the end (5)"
    ),
    click.option(
        "--connect-property", type=(str, str), multiple=True, metavar="NAME VALUE", help="in CONNECT (5)"
    ),
    click.option("--application", is_flag=True, help="ask for an APPLICATION session (5)"),
    click.option("--will-topic"),
    click.option("--will-payload"),
    click.option("--will-qos", type=click.IntRange(0, 2), default=0),
    click.option("--will-retain", is_flag=True),
    click.option("--will-delay", type=click.IntRange(0, NEVER_EXPIRES_S), default=0, help="seconds (5)"),
]


def endpoint_from(options: dict[str, Any]) -> Endpoint:
    """Return where to connect, and how: over TLS too if no URL says otherwise and a CA, a certificate or `insecure`
    is given. UnusableFile if a certificate is none."""
    given = [name for name in ("ca", "cert", "key", "insecure") if options[name]]
    url = options["url"] or f"{'tls' if given else 'tcp'}://{DEFAULT_HOST}"
    try:
        broker = parse(url)
    except ValueError as error:
        raise click.UsageError(f"--url: {error}") from None
    if given and not broker.encrypted:
        raise click.UsageError(f"--{given[0]}: only tls:// and wss:// have certificates")
    if options["key"] and not options["cert"]:
        raise click.UsageError("--key needs --cert")
    tls = None
    if broker.encrypted:
        tls = client_context(options["ca"], options["cert"], options["key"], options["insecure"])
    return Endpoint(options["host"] or broker.host, options["port"] or broker.port, broker.path, tls)


def take_located(options: dict[str, Any]) -> str:
    """Put what `-L` says where the other options are; return the topic in it, "" if there is none."""
    if options["located"] is None:
        return ""
    if options["url"]:
        raise click.UsageError("-L: give it or --url")
    try:
        parts = urlsplit(options["located"])
        port = parts.port
    except ValueError as error:
        raise click.UsageError(f"-L: {error}") from None
    scheme = {"mqtt": "tcp", "mqtts": "tls"}.get(parts.scheme)
    if scheme is None or not parts.hostname:
        raise click.UsageError("-L: the form is mqtt[s]://[USER[:PASSWORD]@]HOST[:PORT]/TOPIC")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    options["url"] = f"{scheme}://{host}" + ("" if port is None else f":{port}")
    if parts.username is not None:
        options["username"] = unquote(parts.username)
    if parts.password is not None:
        options["password"] = unquote(parts.password)
    query = f"?{parts.query}" if parts.query else ""
    fragment = f"#{parts.fragment}" if "#" in options["located"] else ""  # a wildcard of a topic filter
    return unquote(parts.path[1:] + query + fragment)


def connect_from(options: dict[str, Any], receive_maximum: int | None = None) -> Connect:
    """Return the CONNECT that the shared options ask for."""
    version = _VERSION_NAMES[options["protocol"]]
    if options["persistent"] and not options["client_id"]:
        raise click.UsageError("--persistent needs --id")
    password = _password(options)
    if password is not None and options["username"] is None and version != packets.VERSION_5:
        raise click.UsageError("--password needs --username before version 5")
    packet = Connect(version, options["client_id"] or f"headrace-{secrets.token_hex(6)}")
    packet.clean_start = not options["persistent"]
    packet.keep_alive_s = options["keep_alive"]
    packet.username = options["username"]
    packet.password = password
    packet.will = _will(options, version)
    packet.properties = _connect_properties(options, version, receive_maximum)
    return packet


def _password(options: dict[str, Any]) -> bytes | None:
    """Return the password from the command line, a file, or, for a user, the environment."""
    file = options["password_file"]
    if options["password"] is not None:
        if file is not None:
            raise click.UsageError("give one of --password, --password-file")
        return encoded(options["password"])
    if file is not None:
        with click.open_file(str(file), "rb") as opened:
            return bytes(opened.readline()).rstrip(b"\r\n")
    found = os.environb.get(PASSWORD_VARIABLE.encode())
    return found if options["username"] is not None else None


def encoded(text: str) -> bytes:
    """Return the bytes of an argument as the shell gave it, which need not be UTF-8."""
    return text.encode("utf-8", "surrogateescape")


def properties_of(options: dict[str, Any], packet: str, more: tuple[tuple[str, str], ...] = ()) -> Properties:
    """Return the properties that `-D` gives to that packet, and those that an option of their own gives."""
    found = tuple((name, value) for of, name, value in options["packet_properties"] if of == packet)
    properties = parse_properties(found + more, PACKETS[packet])
    if properties.as_dict() and _VERSION_NAMES[options["protocol"]] != packets.VERSION_5:
        raise click.UsageError(f"{', '.join(properties.as_dict())}: only MQTT 5 has properties")
    return properties


def _connect_properties(options: dict[str, Any], version: int, receive_maximum: int | None) -> Properties:
    properties = properties_of(options, "connect", options["connect_property"])
    if options["session_expiry"] is not None:
        properties.session_expiry_interval = options["session_expiry"]
    if options["application"]:
        properties.user_properties.append(("session-type", "application"))
    if receive_maximum is not None:
        properties.receive_maximum = receive_maximum
    if version != packets.VERSION_5:
        if properties.as_dict():
            raise click.UsageError(f"{', '.join(properties.as_dict())}: only MQTT 5 has properties")
        return properties
    if options["persistent"] and properties.session_expiry_interval is None:
        properties.session_expiry_interval = NEVER_EXPIRES_S
    return properties


def _will(options: dict[str, Any], version: int) -> Will | None:
    topic = options["will_topic"]
    properties = properties_of(options, "will")
    if topic is None:
        if options["will_payload"] is not None or properties.as_dict():
            raise click.UsageError("--will-payload needs --will-topic")
        return None
    if not valid_topic(encoded(topic)):
        raise click.UsageError(f"--will-topic: {topic!r} is no topic name")
    delay_s, expiry_s = properties.will_delay_interval, properties.message_expiry_interval
    properties.will_delay_interval = properties.message_expiry_interval = None
    return Will(
        topic,
        encoded(options["will_payload"] or ""),
        options["will_qos"],
        options["will_retain"],
        properties.encode() if version == packets.VERSION_5 else b"",
        options["will_delay"] or delay_s or 0,
        packets.NO_EXPIRY if expiry_s is None else expiry_s,
    )


def parse_properties(pairs: tuple[tuple[str, str], ...], packet_type: int) -> Properties:
    """Return the properties for this packet type from the specification's names in lower case with dashes."""
    properties = Properties()
    for name, value in pairs:
        row = _NAMES.get(name)
        if row is None or not row[3] >> packet_type & 1:
            known = ", ".join(sorted(key for key, entry in _NAMES.items() if entry[3] >> packet_type & 1))
            raise click.UsageError(f"property {name!r} is not one of {known}")
        _put(properties, name, row[1], row[2], value)
    return properties


def _put(properties: Properties, name: str, attribute: str, kind: int, value: str) -> None:
    if kind == PAIRS:
        key, separator, text = value.partition("\0")
        if not separator:
            raise click.UsageError("property user-property takes NAME VALUE")
        properties.user_properties.append((key, text))
    elif kind in (TEXT, BINARY):
        setattr(properties, attribute, value if kind == TEXT else encoded(value))
    elif not value.isdecimal() or int(value) > (VARINT_MAX if name.startswith("subscr") else NEVER_EXPIRES_S):
        raise click.UsageError(f"property {name}: {value!r} is no number that fits")
    elif attribute == "subscription_identifiers":
        properties.subscription_identifiers.append(int(value))
    else:
        setattr(properties, attribute, int(value))
