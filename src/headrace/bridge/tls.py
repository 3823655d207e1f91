"""TLS towards the remote broker: a context from PEM files, made anew for every attempt, so that renewed files count."""

from __future__ import annotations

import ssl
from collections.abc import Callable

from headrace.bridge.settings import RemoteTls
from headrace.errors import HeadraceError


class UnusableFile(HeadraceError):
    """A certificate, key or password file of a bridge cannot be used. The message names the file."""

    retry_helps = True


def client_context(tls: RemoteTls) -> ssl.SSLContext:
    """Return a context that checks who signed the remote certificate, and for which name, unless `insecure`. Raises
    UnusableFile."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if tls.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif tls.ca:
        _load(tls.ca, lambda: context.load_verify_locations(tls.ca))
    else:
        context.load_default_certs()
    if tls.certificate:
        certificate, key = tls.certificate, tls.key or None
        _load(certificate, lambda: context.load_cert_chain(certificate, key, password=_no_password))
    return context


def _load(file: str, load: Callable[[], None]) -> None:
    try:
        load()
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise UnusableFile(f"{file}: {error}") from None


def _no_password() -> str:
    """Return no password, where OpenSSL would ask for one at the terminal."""
    raise ValueError("the private key is encrypted; headrace has no password for it")
