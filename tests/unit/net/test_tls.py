"""TLS contexts: what they are made of, and what is said when they cannot be."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from certificates import Authority
from headrace.net.address import parse
from headrace.net.subject import SubjectTemplate
from headrace.net.tls import (
    TlsFiles,
    UnusableCertificate,
    common_name,
    is_hang_up,
    revocations,
    server_context,
    shown_certificate,
)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def files(authority: Authority) -> TlsFiles:
    certificate, key = authority.issue("server")
    return TlsFiles(str(certificate), str(key), "", "none")


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Over memory: (the server's side, the client's side)."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = server.wrap_bio(to_server, to_client, server_side=True)
    other = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    for _ in range(4):
        for side in (other, one):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return one, other


def client_of(authority: Authority) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.ca))
    context.set_alpn_protocols(["mqtt"])
    return context


def test_tls_1_3_and_alpn_mqtt(authority: Authority, files: TlsFiles) -> None:
    server, _ = shake_hands(server_context(files, "mqtt"), client_of(authority))
    assert (server.version(), server.selected_alpn_protocol()) == ("TLSv1.3", "mqtt")


def test_nothing_older_than_1_2(authority: Authority, files: TlsFiles) -> None:
    client = client_of(authority)
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    assert shake_hands(server_context(files, "mqtt"), client)[0].version() == "TLSv1.2"
    newest = TlsFiles(files.certificate, files.key, "", "none", "1.3")
    with pytest.raises(ssl.SSLError):
        shake_hands(server_context(newest, "mqtt"), client)


def test_a_client_certificate_is_demanded_and_names_the_client(authority: Authority, files: TlsFiles) -> None:
    demanding = TlsFiles(files.certificate, files.key, str(authority.ca), "require")
    client = client_of(authority)
    client.maximum_version = ssl.TLSVersion.TLSv1_2  # in 1.3 the client is done before it is refused
    with pytest.raises(ssl.SSLError):
        shake_hands(server_context(demanding, "mqtt"), client)
    client.load_cert_chain(*authority.issue("pump 7", "client"))
    server, _ = shake_hands(server_context(demanding, "mqtt"), client)

    class Transport:
        def get_extra_info(self, name: str) -> object:
            return server if name == "ssl_object" else None

    assert common_name(Transport()) == "pump 7"  # type: ignore[arg-type]


def test_a_certificate_without_a_name_is_not_one_without_a_certificate(
    authority: Authority, files: TlsFiles
) -> None:
    asking = TlsFiles(files.certificate, files.key, str(authority.ca), "optional")

    def name(client: ssl.SSLContext) -> str | None:
        server, _ = shake_hands(server_context(asking, "mqtt"), client)

        class Transport:
            def get_extra_info(self, name: str) -> object:
                return server if name == "ssl_object" else None

        return common_name(Transport())  # type: ignore[arg-type]

    assert name(client_of(authority)) == ""
    nameless = client_of(authority)
    nameless.load_cert_chain(*authority.issue("nameless", subject="/O=nobody"))
    assert name(nameless) is None


def test_a_revoked_certificate_is_refused(authority: Authority, files: TlsFiles) -> None:
    good, bad = client_of(authority), client_of(authority)
    good.load_cert_chain(*authority.issue("good"))
    bad.load_cert_chain(*authority.issue("bad"))
    crl = authority.revoke(authority.folder / "bad.pem")
    asking = TlsFiles(files.certificate, files.key, str(authority.ca), "require", crl=str(crl))
    shake_hands(server_context(asking, "mqtt"), good)
    with pytest.raises(ssl.SSLError, match="revoked"):
        shake_hands(server_context(asking, "mqtt"), bad)
    found = revocations(asking)
    assert found is not None
    assert found.names(ssl.PEM_cert_to_DER_cert((authority.folder / "bad.pem").read_text()))
    crl.write_text("damaged")
    for read in (revocations, lambda files: server_context(files, "mqtt")):
        with pytest.raises(UnusableCertificate, match=r"ca\.crl"):
            read(asking)


def test_a_listener_s_own_files_come_first(files: TlsFiles) -> None:
    general = TlsFiles("/c", "/k", "/a", "none", "1.3")
    assert general.overridden_by(parse("tls://h:1")) == general
    own = general.overridden_by(parse("tls://h:1?cert=/x&client_cert=optional"))
    assert own == TlsFiles("/x", "", "/a", "optional", "1.3")


def test_what_cannot_be_used_is_named(tmp_path: Path, authority: Authority, files: TlsFiles) -> None:
    other_key = authority.issue("other")[1]
    (tmp_path / "no.pem").write_text("no certificate")
    wrong = [
        TlsFiles("", "", "", "none"),
        TlsFiles(str(tmp_path / "missing.pem"), "", "", "none"),
        TlsFiles(str(tmp_path / "no.pem"), "", "", "none"),
        TlsFiles(files.certificate, str(other_key), "", "none"),
        TlsFiles(files.certificate, files.key, "", "require"),
        TlsFiles(files.certificate, files.key, str(tmp_path / "no.pem"), "optional"),
    ]
    for one in wrong:
        with pytest.raises(UnusableCertificate, match=r"\.pem|\.key|tls\."):
            server_context(one, "mqtt")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionResetError, True),
        (ConnectionResetError(), True),
        (ssl.SSLError(1, "alert"), True),
        (ValueError("a bug of ours"), False),
        (None, False),
    ],
)
def test_who_hangs_up_is_no_error_of_the_loop(error: object, expected: bool) -> None:
    assert is_hang_up({"message": "SSL handshake failed", "exception": error}) == expected
    assert not is_hang_up({"message": "without an exception"})


def test_a_template_reads_a_real_certificate(authority: Authority, files: TlsFiles) -> None:
    asking = TlsFiles(files.certificate, files.key, str(authority.ca), "require")
    client = client_of(authority)
    client.load_cert_chain(*authority.issue("of-acme", subject="/O=acme/OU=pumps/CN=gw"))
    server, _ = shake_hands(server_context(asking, "mqtt"), client)

    class Transport:
        def get_extra_info(self, name: str) -> object:
            return server if name == "ssl_object" else None

    found = shown_certificate(Transport())  # type: ignore[arg-type]
    assert found is not None
    names = {text: SubjectTemplate(text).name(found) for text in ("{o}/{cn}", "{ou}/{dns}", "x/{uri}")}
    assert names == {"{o}/{cn}": "acme/gw", "{ou}/{dns}": "pumps/localhost", "x/{uri}": None}
