"""Certificates that were revoked: the lists in a PEM file (RFC 5280, section 5.1), and whether one names a certificate.

OpenSSL asks them at each handshake; this is for connections that are there already when a list is read again. It reads as
much of the DER encoding as it needs::

    CertificateList ::= SEQUENCE { tbsCertList SEQUENCE { [version INTEGER,] signature, issuer Name, thisUpdate,
                        [nextUpdate,] [revokedCertificates SEQUENCE OF SEQUENCE { serial INTEGER, ... },] ... }, ... }
    Certificate     ::= SEQUENCE { tbsCertificate SEQUENCE { [[0] version,] serial INTEGER, signature,
                        issuer Name, ... }, ... }
"""

from __future__ import annotations

import base64
import binascii
import re
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.net.der import CONTEXT_0, INTEGER, SEQUENCE, inside, one

_LIST = re.compile(b"-----BEGIN X509 CRL-----(.+?)-----END X509 CRL-----", re.DOTALL)


class NoRevocationList(HeadraceError):
    """The file has no list of revoked certificates, or one that cannot be read."""


class RevocationList:
    """The issuer and serial number of each revoked certificate."""

    def __init__(self, revoked: set[tuple[bytes, bytes]]) -> None:
        self._revoked = revoked

    def names(self, certificate: bytes) -> bool:
        """Return whether this certificate (DER) was revoked. Raises NoRevocationList for what is none."""
        try:
            fields = inside(inside(one(certificate))[0])
            if fields[0][0] == CONTEXT_0:
                del fields[0]
            serial, issuer = fields[0], fields[2]
        except IndexError:
            raise NoRevocationList("that is no certificate") from None
        return (issuer[2], serial[1]) in self._revoked


def read_revocations(file: Path) -> RevocationList:
    """Read a list of revoked certificates. Raises NoRevocationList, OSError."""
    revoked: set[tuple[bytes, bytes]] = set()
    lists = _LIST.findall(file.read_bytes())
    if not lists:
        raise NoRevocationList("it holds no X509 CRL")
    for text in lists:
        try:
            revoked |= _entries(base64.b64decode(text))
        except (binascii.Error, IndexError) as error:
            raise NoRevocationList(f"a revocation list cannot be read: {error}") from None
    return RevocationList(revoked)


def _entries(der: bytes) -> set[tuple[bytes, bytes]]:
    fields = inside(inside(one(der))[0])
    if fields[0][0] == INTEGER:
        del fields[0]
    issuer = fields[1][2]
    revoked = [field for field in fields[2:] if field[0] == SEQUENCE]
    return {(issuer, inside(entry)[0][1]) for entry in (inside(revoked[0]) if revoked else [])}
