"""When certificates and revocation lists count."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from certificates import Authority
from headrace.net.validity import complaints

NOW = datetime.now(UTC)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


def test_one_that_counts_today(authority: Authority) -> None:
    certificate, key = authority.issue("server")
    assert complaints(certificate) == []
    assert complaints(key) == []


def test_one_that_has_expired_or_does_not_count_yet(authority: Authority) -> None:
    certificate, _ = authority.issue("server")
    (late,) = complaints(certificate, NOW + timedelta(days=3))
    assert late.startswith("the certificate expired on 20")
    (early,) = complaints(certificate, NOW - timedelta(days=1))
    assert early.startswith("the certificate does not count before 20")


def test_every_one_of_a_chain_is_looked_at(authority: Authority, tmp_path: Path) -> None:
    good, _ = authority.issue("server")
    expired, _ = authority.issue_expired("expired")
    chain = tmp_path / "chain.pem"
    chain.write_bytes(good.read_bytes() + expired.read_bytes())
    assert len(complaints(chain)) == 1


def test_a_revocation_list_has_its_time_too(authority: Authority) -> None:
    certificate, _ = authority.issue("server")
    revoked = authority.revoke(certificate)
    assert complaints(revoked) == []
    (late,) = complaints(revoked, NOW + timedelta(days=3))
    assert late.startswith("the revocation list expired on 20")


@pytest.mark.parametrize("inner", ["", "AAAA", "MAA=", "MAMwAQA=", "%%%"])
def test_what_is_none_is_left_to_openssl(tmp_path: Path, inner: str) -> None:
    file = tmp_path / "x.pem"
    file.write_text(f"-----BEGIN CERTIFICATE-----\n{inner}\n-----END CERTIFICATE-----\n")
    assert complaints(file) == []
