"""Certificates for tests, made by openssl: an authority, and whatever it signs."""

from __future__ import annotations

import subprocess
from pathlib import Path


class Authority:
    """A certificate authority in `folder`; `ca` is its certificate."""

    def __init__(self, folder: Path, name: str = "headrace test") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.ca = folder / "ca.pem"
        self._openssl(
            "req", "-x509", *_KEY, "-keyout", "ca.key", "-out", "ca.pem", "-subj", f"/CN={name}", "-days", "2"
        )

    def issue(
        self, common_name: str, stem: str | None = None, subject: str | None = None
    ) -> tuple[Path, Path]:
        """A certificate for localhost and 127.0.0.1 with this common name, or this subject: (certificate, key)."""
        return self._issue(stem or common_name, subject or f"/CN={common_name}", 2)

    def issue_expired(self, common_name: str) -> tuple[Path, Path]:
        """The same, of yesterday."""
        return self._issue(common_name, f"/CN={common_name}", -1)

    def _issue(self, stem: str, subject: str, days: int) -> tuple[Path, Path]:
        names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
        request = ["-keyout", f"{stem}.key", "-out", f"{stem}.csr", "-subj", subject, "-addext", names]
        self._openssl("req", *_KEY, *request)
        sign = [
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-copy_extensions",
            "copy",
            "-days",
            str(days),
        ]
        self._openssl("x509", "-req", "-in", f"{stem}.csr", *sign, "-out", f"{stem}.pem")
        return self.folder / f"{stem}.pem", self.folder / f"{stem}.key"

    def revoke(self, *certificates: Path) -> Path:
        """A list of all certificates that were revoked so far, these too."""
        index = self.folder / "index.txt"
        index.touch()
        (self.folder / "ca.cnf").write_text(_REVOKING)
        sign = ["-config", "ca.cnf", "-cert", "ca.pem", "-keyfile", "ca.key"]
        for certificate in certificates:
            self._openssl("ca", *sign, "-revoke", str(certificate))
        self._openssl("ca", *sign, "-gencrl", "-crldays", "2", "-out", "ca.crl")
        return self.folder / "ca.crl"

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)


_REVOKING = """
[ca]
default_ca = here
[here]
database = index.txt
default_md = sha256
"""
_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
