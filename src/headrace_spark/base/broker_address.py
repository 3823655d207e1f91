"""Where and as whom the pipeline connects to a broker: `tcp://host:port`, or `tls://host:port` with a CA file."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from headrace_spark.base.errors import BadOption

_PORTS: Final = {"tcp": 1883, "mqtt": 1883, "tls": 8883, "mqtts": 8883}


@dataclass(frozen=True)
class BrokerAddress:
    """The address of a broker, with user and certificates. It goes to Spark's workers: the files it names must be there
    too."""

    url: str
    username: str | None = None
    password: bytes | None = field(default=None, repr=False)
    ca_file: str | None = None
    """PEM of who signed the broker's certificate; None: the system's."""

    def check(self) -> None:
        """Check that the address has what a connection needs. Raises BadOption."""
        self._parts()

    def dial(self, timeout_s: float) -> socket.socket:
        """Connect to the broker. Raises OSError, BadOption."""
        scheme, host, port = self._parts()
        found = socket.create_connection((host, port), timeout=timeout_s)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if scheme in ("tcp", "mqtt"):
            return found
        try:
            return ssl.create_default_context(cafile=self.ca_file).wrap_socket(found, server_hostname=host)
        except BaseException:
            found.close()
            raise

    def _parts(self) -> tuple[str, str, int]:
        try:
            parts = urlsplit(self.url)
            port = parts.port
        except ValueError as error:
            raise BadOption("url", self.url, str(error)) from None
        if parts.scheme not in _PORTS or not parts.hostname or parts.path.strip("/"):
            raise BadOption("url", self.url, "tcp://host:port or tls://host:port is needed")
        return parts.scheme, parts.hostname, _PORTS[parts.scheme] if port is None else port


def read_password(file: str) -> bytes | None:
    """Return the first line of a file, which keeps the password out of command lines; None for "". Raises BadOption."""
    if not file:
        return None
    try:
        return Path(file).read_bytes().partition(b"\n")[0].rstrip(b"\r")
    except OSError as error:
        raise BadOption("password_file", file, error.strerror or str(error)) from None
