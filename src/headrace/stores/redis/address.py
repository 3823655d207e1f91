"""Where a Redis is: `redis://[user[:password]@]host[:port][,host[:port] ...][/database][?option=value&...]`.

With `rediss://` it is spoken to over TLS. Of a cluster some of its nodes are enough; of a server and its replicas all of
them are named, since whoever is the primary among them is asked. Options: `prefix` (of all keys, "headrace"),
`password_file`, `replicas` (0: a server that once had some is believed without them), `name` (what the journal calls the
store, else its places, database and prefix: with the name of before, it may be somewhere else), and for TLS `ca`,
`certificate` and `key`, files in PEM.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from headrace.stores.options import options_of

PORT: Final = 6379
OPTIONS: Final = ("prefix", "password_file", "replicas", "name", "ca", "certificate", "key")
_OF_TLS: Final = ("ca", "certificate", "key")

Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """The servers to begin with, and how to speak to all of them. `username` and `password` are "" where nobody signs
    in; `copies`: whoever had a replica is believed only while one follows."""

    places: tuple[Place, ...]
    username: str
    password: str
    database: int
    prefix: str
    copies: bool
    tls: ssl.SSLContext | None
    name: str

    @property
    def url(self) -> str:
        """Return the address without what nobody should read over a shoulder."""
        scheme = "redis" if self.tls is None else "rediss"
        hosts = ",".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.places
        )
        return f"{scheme}://{hosts}" + (f"/{self.database}" if self.database else "")


def parse(url: str) -> RedisAddress:
    """Return the parts of an address. ValueError says what is wrong with it, without the password."""
    scheme, _, rest = url.partition("://")  # `urlsplit` knows one host alone
    if scheme not in ("redis", "rediss"):
        raise ValueError("a Redis is at redis://host:port, or at rediss://host:port over TLS")
    if "#" in rest:
        raise ValueError("there is a # in it; one of a password is written %23")
    rest, _, query = rest.partition("?")
    options = _options(query, is_tls=scheme == "rediss")
    netloc, _, path = rest.partition("/")
    user, _, hosts = netloc.rpartition("@")
    username, _, password = user.partition(":")
    if "password_file" in options:
        password = _read(options["password_file"])
    else:
        password = unquote(password)
    places = tuple(_place(host) for host in hosts.split(","))
    database, prefix = _database(path), options.get("prefix", "headrace")
    return RedisAddress(
        places=places,
        username=unquote(username),
        password=password,
        database=database,
        prefix=prefix,
        copies=_copies(options.get("replicas", "")),
        tls=_tls(options) if scheme == "rediss" else None,
        name=options.get("name", "") or _name(places, database, prefix),
    )


def _name(places: tuple[Place, ...], database: int, prefix: str) -> str:
    """Return what a store is called that was given no name."""
    return f"{','.join(sorted(f'{host}:{port}' for host, port in places))}/{database}?prefix={prefix}"


def _options(query: str, *, is_tls: bool) -> dict[str, str]:
    """Return the options behind the `?`. Raises ValueError."""
    options = options_of(query, OPTIONS)
    for name in _OF_TLS:
        if name in options and not is_tls:
            raise ValueError(f"option {name} is of rediss://")
    if any(brace in options.get("prefix", "") for brace in "{}"):
        raise ValueError("option prefix has a brace, which would choose the slots of keys")
    return options


def _copies(replicas: str) -> bool:
    """Return whether replicas are waited for where there are some. Raises ValueError."""
    if replicas not in ("", "0"):
        raise ValueError("option replicas is 0, or is left out: how many there are is seen")
    return not replicas


def _place(host: str) -> Place:
    """Return host and port. Raises ValueError."""
    split = urlsplit(f"//{host}")
    if not split.hostname or split.path or split.username is not None:
        raise ValueError(f"{host!r} is no host:port")
    port = split.port  # raises ValueError
    return split.hostname, PORT if port is None else port


def _database(path: str) -> int:
    """Return the number of the database, 0 by default. Raises ValueError."""
    digits = path.strip("/")
    if digits and not (digits.isascii() and digits.isdigit()):
        raise ValueError(f"{digits!r} is no number of a database")
    return int(digits or 0)


def _read(path: str) -> str:
    """Return the first line of a file. Raises ValueError."""
    try:
        return Path(path).read_text(encoding="utf-8").partition("\n")[0].rstrip("\r")
    except OSError as error:
        raise ValueError(f"password_file cannot be read: {error}") from None


def _tls(options: dict[str, str]) -> ssl.SSLContext:
    """Return how certificates are checked, and shown. Raises ValueError."""
    if ("key" in options) and "certificate" not in options:
        raise ValueError("option key is of no use without certificate")
    try:
        context = ssl.create_default_context(cafile=options.get("ca"))
        if "certificate" in options:
            context.load_cert_chain(options["certificate"], options.get("key"))
    except OSError as error:  # ssl.SSLError is one
        raise ValueError(f"a file of its TLS cannot be used: {error}") from None
    return context
