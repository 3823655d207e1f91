"""`headrace cluster certs`: a private authority and a certificate for each node, made by the program openssl."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import click

_KEY: Final = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,61}[A-Za-z0-9])?")
_OF_AUTHORITY: Final = ["-addext", "keyUsage=critical,keyCertSign,cRLSign"]
_OF_NODE: Final = """subjectAltName=DNS:{node}
basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage=serverAuth,clientAuth
subjectKeyIdentifier=hash
authorityKeyIdentifier=keyid
"""


@click.command("certs")
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option("--node", "nodes", metavar="NAME", multiple=True, required=True, help="may be repeated")
@click.option("--days", type=click.IntRange(1, 36500), default=825, show_default=True, help="they are valid")
def certs(folder: Path, nodes: tuple[str, ...], days: int) -> None:
    """Make a certificate for each node in a folder, signed by the authority there, which is made first."""
    for node in nodes:
        if node == "ca" or not _NAME.fullmatch(node):
            raise click.BadParameter(f"{node!r} is no name of a host that is not ca", param_hint="--node")
        if (folder / f"{node}.pem").exists():
            raise click.BadParameter(f"{folder / node}.pem is there already", param_hint="--node")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (folder / "ca.pem").exists():
        _make_authority(folder, days)
        click.echo(f"{folder / 'ca.pem'}: the authority; keep {folder / 'ca.key'} where no node is")
    for node in dict.fromkeys(nodes):
        _make_certificate(folder, node, days)
        click.echo(f"{folder / node}.pem: node {node}, with {folder / node}.key")


def _make_authority(folder: Path, days: int) -> None:
    subject = ["-subj", "/CN=headrace cluster", "-days", str(days)]
    with tempfile.TemporaryDirectory(dir=folder) as work:
        made = ["-keyout", f"{work}/ca.key", "-out", f"{work}/ca.pem"]
        _openssl("req", "-x509", *_KEY, *made, *subject, *_OF_AUTHORITY)
        for name in ("ca.key", "ca.pem"):  # the certificate last: it says that the authority is there
            Path(work, name).rename(folder / name)


def _make_certificate(folder: Path, node: str, days: int) -> None:
    """Make the key and the certificate of a node; the certificate is there when all is well."""
    with tempfile.TemporaryDirectory(dir=folder) as work:
        key, request, extensions = f"{work}/key", f"{work}/request", Path(work, "extensions")
        extensions.write_text(_OF_NODE.format(node=node), encoding="utf-8")
        _openssl("req", *_KEY, "-keyout", key, "-out", request, "-subj", f"/CN={node}")
        signer = ["-CA", str(folder / "ca.pem"), "-CAkey", str(folder / "ca.key"), "-CAcreateserial"]
        sign = [*signer, "-CAserial", f"{work}/serial", "-days", str(days), "-extfile", str(extensions)]
        _openssl("x509", "-req", "-in", request, *sign, "-out", f"{work}/certificate")
        Path(key).rename(folder / f"{node}.key")
        Path(work, "certificate").rename(folder / f"{node}.pem")


def _openssl(*arguments: str) -> None:
    """Run openssl. Raises ClickException with what it says last."""
    try:
        done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise click.ClickException("the program openssl is missing") from error
    if done.returncode:
        raise click.ClickException(f"openssl: {' '.join(done.stderr.split()[-30:])}")
