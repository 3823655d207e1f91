"""The options that `headrace pub` and `headrace sub` share, and what they mean as a CONNECT and as properties."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, TypeVar

import click

from headrace.clients.endpoint import Endpoint, client_context, parse
from headrace.mqtt import packets
from headrace.mqtt.data_types import VARINT_MAX
from headrace.mqtt.packets import Connect, Will
from headrace.mqtt.properties import Properties
from headrace.mqtt.property_table import BINARY, PAIRS, TABLE, TEXT
from headrace.mqtt.topics import valid_topic

VERSIONS = {"3.1": packets.VERSION_3_1, "3.1.1": packets.VERSION_3_1_1, "5": packets.VERSION_5}
NEVER_EXPIRES_S = 0xFFFF_FFFF
_SINGULAR = {"user_properties": "user-property", "subscription_identifiers": "subscription-identifier"}
_NAMES = {_SINGULAR.get(row[1], row[1].replace("_", "-")): row for row in TABLE}
Command = TypeVar("Command", bound=Callable[..., Any])


class PropertyCommand(click.Command):
    """`--property NAME VALUE` takes one value more when NAME is `user-property`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        joined: list[str] = []
        rest = list(args)
        while rest:
            word = rest.pop(0)
            joined.append(word)
            if (
                word in ("--property", "--connect-property")
                and rest[:1] == ["user-property"]
                and len(rest) >= 3
            ):
                joined += ["user-property", f"{rest[1]}\0{rest[2]}"]
                del rest[:3]
        return super().parse_args(ctx, joined)


def connection_options(command: Command) -> Command:
    """Where to connect, as whom, with which Will."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS = [
    click.option("--url", default="tcp://127.0.0.1:1883", show_default=True, help="where the broker listens"),
    click.option("-h", "--host", help="instead of the one in --url"),
    click.option("-p", "--port", type=click.IntRange(1, 65_535), help="instead of the one in --url"),
    click.option("--ca", default="", help="PEM: who signs the broker's certificate  [default: the system's]"),
    click.option("--cert", default="", help="PEM: this client's certificate"),
    click.option("--key", default="", help="PEM: its key, if it is in a file of its own"),
    click.option("--insecure", is_flag=True, help="do not check the broker's certificate"),
    click.option("-i", "--id", "client_id", help="client id  [default: a random one]"),
    click.option("-u", "--username"),
    click.option("-P", "--password"),
    click.option("--protocol", type=click.Choice(list(VERSIONS)), default="5", show_default=True),
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
    click.option("--will-payload", default=""),
    click.option("--will-qos", type=click.IntRange(0, 2), default=0),
    click.option("--will-retain", is_flag=True),
    click.option("--will-delay", type=click.IntRange(0, NEVER_EXPIRES_S), default=0, help="seconds (5)"),
]


def endpoint_from(options: dict[str, Any]) -> Endpoint:
    """Where to connect, and how. UnusableFile if a certificate is none."""
    try:
        broker = parse(options["url"])
    except ValueError as error:
        raise click.UsageError(f"--url: {error}") from None
    given = [name for name in ("ca", "cert", "key", "insecure") if options[name]]
    if given and not broker.encrypted:
        raise click.UsageError(f"--{given[0]}: only tls:// and wss:// have certificates")
    if options["key"] and not options["cert"]:
        raise click.UsageError("--key needs --cert")
    tls = None
    if broker.encrypted:
        tls = client_context(options["ca"], options["cert"], options["key"], options["insecure"])
    return Endpoint(options["host"] or broker.host, options["port"] or broker.port, broker.path, tls)


def connect_from(options: dict[str, Any], receive_maximum: int | None = None) -> Connect:
    """The CONNECT that the shared options ask for."""
    version = VERSIONS[options["protocol"]]
    if options["persistent"] and not options["client_id"]:
        raise click.UsageError("--persistent needs --id")
    if options["password"] is not None and options["username"] is None and version != packets.VERSION_5:
        raise click.UsageError("--password needs --username before version 5")
    packet = Connect(version, options["client_id"] or f"headrace-{secrets.token_hex(6)}")
    packet.clean_start = not options["persistent"]
    packet.keep_alive_s = options["keep_alive"]
    packet.username = options["username"]
    packet.password = None if options["password"] is None else options["password"].encode()
    packet.will = _will(options)
    packet.properties = _connect_properties(options, version, receive_maximum)
    return packet


def _connect_properties(options: dict[str, Any], version: int, receive_maximum: int | None) -> Properties:
    properties = parse_properties(options["connect_property"], packets.CONNECT)
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


def _will(options: dict[str, Any]) -> Will | None:
    topic = options["will_topic"]
    if topic is None:
        return None
    if not valid_topic(topic.encode()):
        raise click.UsageError(f"--will-topic: {topic!r} is no topic name")
    payload = options["will_payload"].encode()
    return Will(topic, payload, options["will_qos"], options["will_retain"], delay_s=options["will_delay"])


def parse_properties(pairs: tuple[tuple[str, str], ...], packet_type: int) -> Properties:
    """Properties by the specification's names in lower case with dashes, for this packet type."""
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
        setattr(properties, attribute, value if kind == TEXT else value.encode())
    elif not value.isdecimal() or int(value) > (VARINT_MAX if name.startswith("subscr") else NEVER_EXPIRES_S):
        raise click.UsageError(f"property {name}: {value!r} is no number that fits")
    elif attribute == "subscription_identifiers":
        properties.subscription_identifiers.append(int(value))
    else:
        setattr(properties, attribute, int(value))
