"""Mutual TLS between nodes: both sides show a certificate of the cluster's own authority, in which its name stands.

Whoever has a certificate of that authority may join, so it signs for nodes of this cluster and for nobody else.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass

from headrace.net.tls import TlsFiles, server_context

ALPN = "headrace-peer"


@dataclass(frozen=True, slots=True)
class PeerTls:
    """The contexts for who is dialled, and for whom this node dials."""

    server: ssl.SSLContext
    client: ssl.SSLContext

    @classmethod
    def load(cls, ca: str, certificate: str, key: str) -> PeerTls:
        """Read the authority's certificate, and the node's with its key. Raises UnusableCertificate."""
        server = server_context(TlsFiles(certificate, key, ca, "require", "1.3"), ALPN)
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # asks for the name of whom it dials
        client.minimum_version = ssl.TLSVersion.TLSv1_3
        client.set_alpn_protocols([ALPN])
        client.load_verify_locations(ca)
        client.load_cert_chain(certificate, key)
        return cls(server, client)


def names_of(transport: asyncio.Transport) -> list[str]:
    """Return the names in the certificate of the other side of a connection."""
    certificate = transport.get_extra_info("peercert") or {}
    return [name for kind, name in certificate.get("subjectAltName", ()) if kind == "DNS"]
