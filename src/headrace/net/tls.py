"""TLS: contexts from PEM files, read again on SIGHUP, and the faster transport where it is installed.

A connection keeps the context that it was accepted with, so new certificates drop nobody.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError
from headrace.net.address import Address
from headrace.net.key_updates import READ_BYTES_MAX, WatchedLoop
from headrace.net.revocation import NoRevocationList, RevocationList, read_revocations

FAST = find_spec("aiofastnet") is not None  # else the event loop's own TLS serves


class UnusableCertificate(ConfigError):
    """A certificate, key or CA file is missing, no PEM, or they do not belong together. The message names the `file`."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(f"{file}: {reason}")
        self.file = file
        self.reason = reason


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """What a context is made of. `client_certificate`: none, optional or require; `minimum_version`: 1.2 or 1.3."""

    certificate: str
    key: str
    ca: str
    client_certificate: str
    minimum_version: str = "1.2"
    crl: str = ""  # revocation lists of who signs client certificates; "": none are asked

    def overridden_by(self, address: Address) -> TlsFiles:
        """Return the files of one listener: its URL's options first."""
        options = address.options
        own = bool(options.cert)
        return TlsFiles(
            options.cert or self.certificate,
            options.key or ("" if own else self.key),
            options.ca or self.ca,
            options.client_cert or self.client_certificate,
            self.minimum_version,
            options.crl or ("" if options.ca else self.crl),
        )


def server_context(files: TlsFiles, alpn: str) -> ssl.SSLContext:
    """Return a context that serves `files`. Raises UnusableCertificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = (
        ssl.TLSVersion.TLSv1_3 if files.minimum_version == "1.3" else ssl.TLSVersion.TLSv1_2
    )
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols([alpn])
    if not files.certificate:
        raise UnusableCertificate("tls.certificate", "a TLS listener needs it, or ?cert= in its URL")
    _readable(files.certificate)
    if files.key:
        _readable(files.key)
    _load(
        files.certificate,
        lambda: context.load_cert_chain(files.certificate, files.key or None, password=_no_password),
    )
    if files.client_certificate != "none":
        if not files.ca:
            raise UnusableCertificate("tls.ca", "client certificates need it, or ?ca= in the listener's URL")
        _load(files.ca, lambda: context.load_verify_locations(files.ca))
        if files.crl:
            _load(files.crl, lambda: context.load_verify_locations(files.crl))
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        required = files.client_certificate == "require"
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    return context


def revocations(files: TlsFiles) -> RevocationList | None:
    """Return the certificates that are not accepted any more. Raises UnusableCertificate."""
    if not files.crl or files.client_certificate == "none":
        return None
    try:
        return read_revocations(Path(files.crl))
    except (OSError, NoRevocationList) as error:
        raise UnusableCertificate(files.crl, getattr(error, "strerror", None) or str(error)) from None


def _readable(file: str) -> None:
    """Check that a file can be read: OpenSSL does not say which one of two files is missing."""
    try:
        with open(file, "rb"):
            pass
    except OSError as error:
        raise UnusableCertificate(file, error.strerror or str(error)) from None


def _load(file: str, load: Callable[[], None]) -> None:
    try:
        load()
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise UnusableCertificate(file, _plain(error)) from None


def _plain(error: OSError | ValueError) -> str:
    """Return what OpenSSL says, in words."""
    if isinstance(error, ssl.SSLError):
        if error.reason == "KEY_VALUES_MISMATCH":
            return "the key does not belong to this certificate"
        if error.reason in (None, "NO_START_LINE", "NO_CERTIFICATE_OR_CRL_FOUND", "PEM_LIB"):
            return "there is no PEM in it that could be used here"
        return str(error.reason).lower().replace("_", " ")
    return getattr(error, "strerror", None) or str(error)


def _no_password() -> str:
    """Return no password, where OpenSSL would ask for one at the terminal."""
    raise ValueError("the private key is encrypted; headrace has no password for it")


async def connect(
    loop: asyncio.AbstractEventLoop,
    make: Callable[[], asyncio.Protocol],
    accepted: socket.socket,
    context: ssl.SSLContext,
    handshake_timeout_s: float,
    heard: Callable[[], int | None],
    cut: Callable[[], object],
) -> None:
    """Shake hands on an accepted socket. Raises OSError (ssl.SSLError among them) when that fails.

    `cut` ends the connection of a client that keeps TLS busy while `heard`, which counts its data, stands still.
    """
    if FAST:
        import aiofastnet

        _bound_reads()
        await aiofastnet.connect_accepted_socket(
            WatchedLoop(loop, heard, cut),  # type: ignore[arg-type]  # as much of one as is used
            make,
            accepted,
            ssl=context,
            ssl_handshake_timeout=handshake_timeout_s,
        )
    else:
        await loop.connect_accepted_socket(
            make, accepted, ssl=context, ssl_handshake_timeout=handshake_timeout_s
        )


def _bound_reads() -> None:
    """Bound what a TLS connection is read in a pass, for which aiofastnet has no argument: it refuses less than 16
    KiB."""
    from aiofastnet import constants

    constants.MAX_READ_BYTES_PER_CYCLE_HINT = READ_BYTES_MAX
    constants.SSL_BIO_SIZE_DEFAULTS["ssl_incoming_bio_size"] = READ_BYTES_MAX


def is_hang_up(context: dict[str, Any]) -> bool:
    """Return whether what the loop could not handle is a connection that its peer broke off: no error of ours, and told
    by the listener.

    aiofastnet reports a reset within the handshake so, as a class instead of an exception, which logging cannot print.
    """
    error = context.get("exception")
    kind = error if isinstance(error, type) else type(error)
    return issubclass(kind, OSError)


def certificate(transport: asyncio.BaseTransport) -> bytes | None:
    """Return the client's certificate (DER)."""
    tls = transport.get_extra_info("ssl_object")
    found = None if tls is None else tls.getpeercert(True)
    return found if isinstance(found, bytes) else None


def shown_certificate(transport: asyncio.BaseTransport) -> Mapping[str, Any] | None:
    """Return the client's verified certificate as `ssl` shows it, None without one."""
    tls = transport.get_extra_info("ssl_object")
    return None if tls is None else tls.getpeercert() or None


def common_name(transport: asyncio.BaseTransport) -> str | None:
    """Return the common name of the client's verified certificate, "" without a certificate, None if there is no name
    in it."""
    certificate = shown_certificate(transport)
    if certificate is None:
        return ""
    for names in certificate.get("subject", ()):
        for key, value in names:
            if key == "commonName":
                return str(value) or None
    return None
