"""`headrace cluster certs`: what it makes is checked by openssl and by Python's own TLS."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headrace.commands.main import cli
from headrace.net.tls import UnusableCertificate
from headrace.peers.peer_tls import PeerTls


def certs(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["cluster", "certs", str(folder), *arguments])


def test_each_node_has_a_certificate_of_the_authority_and_a_key_that_others_cannot_read(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "tls"
    assert certs(folder, "--node", "n0", "--node", "node-1.plant").exit_code == 0
    authority = (folder / "ca.pem").read_bytes()
    assert certs(folder, "--node", "n2").exit_code == 0
    assert (folder / "ca.pem").read_bytes() == authority
    for node in ("n0", "node-1.plant", "n2"):
        found = folder / f"{node}.pem", folder / f"{node}.key"
        checked = [
            "openssl",
            "verify",
            "-x509_strict",
            "-CAfile",
            str(folder / "ca.pem"),
            "-verify_hostname",
            node,
        ]
        subprocess.run([*checked, str(found[0])], check=True, capture_output=True)
        assert found[1].stat().st_mode & 0o077 == 0
        PeerTls.load(str(folder / "ca.pem"), *map(str, found))
    assert (folder / "ca.key").stat().st_mode & 0o077 == 0
    with pytest.raises(UnusableCertificate):
        PeerTls.load(str(folder / "ca.pem"), str(folder / "n0.pem"), str(folder / "n2.key"))


@pytest.mark.parametrize("name", ["ca", "../n0", "", "a_b", "n0.pem/"])
def test_a_name_that_is_none_is_refused_and_nothing_is_made(tmp_path: Path, name: str) -> None:
    found = certs(tmp_path / "tls", "--node", name)
    assert (found.exit_code, "--node" in found.output) == (2, True)
    assert not (tmp_path / "tls").exists()


def test_a_certificate_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    assert certs(tmp_path, "--node", "n0").exit_code == 0
    found = certs(tmp_path, "--node", "n1", "--node", "n0")
    assert (found.exit_code, "there already" in found.output) == (2, True)
    assert not (tmp_path / "n1.pem").exists()
