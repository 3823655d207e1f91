"""Lists of revoked certificates, as openssl makes them."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from certificates import Authority
from headrace.errors import HeadraceError
from headrace.net.revocation import NoRevocationList, RevocationList, read_revocations


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


def der(certificate: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(certificate.read_text())


def test_revoked_certificates_are_named_and_no_others(authority: Authority, tmp_path: Path) -> None:
    kept, _ = authority.issue("kept")
    lost = [authority.issue(f"lost {number}")[0] for number in range(3)]
    empty = read_revocations(authority.revoke())
    assert not any(empty.names(der(one)) for one in [kept, *lost])
    found = read_revocations(authority.revoke(*lost))
    assert [found.names(der(one)) for one in [kept, *lost]] == [False, True, True, True]
    other = Authority(tmp_path / "other", "another authority")
    both = tmp_path / "both"
    stranger, _ = other.issue("kept")
    both.write_bytes(authority.revoke().read_bytes() + other.revoke(stranger).read_bytes())
    found = read_revocations(both)
    assert [found.names(der(one)) for one in [kept, *lost, stranger]] == [False, True, True, True, True]


@pytest.mark.parametrize(
    "text", [b"", b"nonsense", b"-----BEGIN X509 CRL-----\nMAA=\n-----END X509 CRL-----\n"]
)
def test_a_file_that_is_none(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "crl").write_bytes(text)
    with pytest.raises(NoRevocationList):
        read_revocations(tmp_path / "crl")


@given(st.binary(max_size=200))
def test_no_certificate_crashes_it_otherwise(data: bytes) -> None:
    with contextlib.suppress(HeadraceError):
        assert not RevocationList(set()).names(data)
