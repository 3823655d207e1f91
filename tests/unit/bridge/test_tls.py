"""TLS contexts of bridges."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from certificates import Authority
from headrace.bridge.settings import RemoteTls
from headrace.bridge.tls import UnusableFile, client_context


def test_the_remote_broker_is_checked_unless_that_is_switched_off(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("us")
    strict = client_context(RemoteTls(str(authority.ca), str(certificate), str(key), False))
    assert (strict.verify_mode, strict.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert strict.cert_store_stats()["x509_ca"] == 1
    loose = client_context(RemoteTls("", "", "", True))
    assert (loose.verify_mode, loose.check_hostname) == (ssl.CERT_NONE, False)
    assert client_context(RemoteTls("", "", "", False)).verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize("which", ["ca", "certificate"])
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, which: str) -> None:
    (tmp_path / "none.pem").write_text("no PEM")
    files = {"ca": "", "certificate": ""} | {which: str(tmp_path / "none.pem")}
    with pytest.raises(UnusableFile, match=r"none\.pem"):
        client_context(RemoteTls(files["ca"], files["certificate"], "", False))


def test_an_encrypted_key_is_not_asked_for_at_the_terminal(tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).issue("us")
    locked = tmp_path / "locked.key"
    import subprocess

    encrypt = ["openssl", "pkey", "-in", str(key), "-aes256", "-passout", "pass:x", "-out", str(locked)]
    subprocess.run(encrypt, check=True, capture_output=True)
    with pytest.raises(UnusableFile, match="encrypted"):
        client_context(RemoteTls("", str(certificate), str(locked), False))
