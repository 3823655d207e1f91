"""Passwords, ACL and certificates as users meet them: over the wire, read again on SIGHUP."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker_process import BrokerProcess, free_port, headrace, make_broker
from certificates import Authority
from e2e.conftest import finish
from e2e.raw import RawClient
from e2e.wire import CONNACK, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, SUBACK, connect_packet, packet, text

pytestmark = pytest.mark.skipif("__import__('broker_process').UNDER_AUDIT != 'headrace'")
ACL = """
topic read public/#
user ada
topic readwrite ada/#
topic read public/#
topic deny ada/secret
user bob
topic readwrite #
pattern readwrite clients/%c/#
"""


class Guarded:
    """A broker with a password file and an ACL file, and a TLS listener whose certificates name users."""

    def __init__(self, folder: Path, *, crl: bool = False, proxied: bool = False) -> None:
        self.passwords, self.acl = folder / "passwords", folder / "acl"
        for user, password in (("ada", "lovelace"), ("bob", "böb")):
            done = headrace("passwd", str(self.passwords), user, "-b", password)
            assert done.returncode == 0, done.stderr
        self.acl.write_text(ACL)
        self.authority = Authority(folder / "ca")
        certificate, key = self.authority.issue("server")
        self.tls_port = free_port()
        url = f"tls://127.0.0.1:{self.tls_port}?client_cert=optional&identity=cn&ca={self.authority.ca}"
        settings = {
            "access.password_file": self.passwords,
            "access.acl_file": self.acl,
            "tls.certificate": certificate,
            "tls.key": key,
            "durability": "none",
            "limits.connect_timeout_s": 60,  # hashes on a busy machine
        }
        if crl:
            settings["tls.crl"] = self.authority.revoke()
            url += f"&crl={settings['tls.crl']}"
        self.websocket_port = free_port()
        more = ["--listen", url, "--listen", f"ws://127.0.0.1:{self.websocket_port}"]
        if proxied:
            self.proxied_port = free_port()
            more += ["--listen", f"tcp://127.0.0.1:{self.proxied_port}?proxy=required"]
        self.broker: BrokerProcess = make_broker(folder / "broker", settings, more)

    def reload(self) -> None:
        seen = len(self.broker.lines)
        os.kill(self.broker.pid, signal.SIGHUP)
        self.broker.wait_for_line("reloaded", after=seen)

    def forget_ada(self) -> None:
        """A new line, with the same password: it has to be verified again."""
        done = headrace("passwd", str(self.passwords), "ada", "-b", "lovelace")
        assert done.returncode == 0, done.stderr
        self.reload()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    made = Guarded(tmp_path_factory.mktemp("guarded"))
    made.broker.start()
    try:
        yield made
    finally:
        finish(made.broker)


ADA: dict[str, Any] = {"user_name": "ada", "password": b"lovelace"}
BOB: dict[str, Any] = {"user_name": "bob", "password": "böb".encode()}


@pytest.mark.parametrize("version", [3, 4, 5])
def test_who_gets_in(guarded: Guarded, clients: Callable[..., RawClient], version: int) -> None:
    refused = 0x87 if version == 5 else 5
    good = clients(guarded.broker, f"good {version}", version, **ADA)
    good.ping()
    bad: list[dict[str, Any]] = [
        {},
        {"user_name": "ada", "password": b"wrong"},
        {"user_name": "ada"},
        {"user_name": "eve", "password": b"lovelace"},
        {"user_name": "", "password": b""},
    ]
    for number, fields in enumerate(bad):
        client = clients(guarded.broker, f"bad {version} {number}", version, connect=False)
        client.connect(expect=refused, **fields)


def test_what_is_sent_behind_connect_waits_for_the_password(
    guarded: Guarded, clients: Callable[..., RawClient]
) -> None:
    """A client need not wait for CONNACK [MQTT-3.1.4-5]; the answers come in order."""
    guarded.forget_ada()
    client = clients(guarded.broker, "hasty", connect=False)
    connect = connect_packet("hasty", version=4, user_name="ada", password=b"lovelace")
    subscribe = packet(0x82, b"\0\1" + text("ada/x") + b"\1")
    publish = packet(0x32, text("ada/x") + b"\0\2now")
    data = connect + subscribe + publish
    for piece in (data[: len(connect) + 3], data[len(connect) + 3 :]):
        client.send(piece)
    answers = [client.expect_any(CONNACK, SUBACK, PUBACK, PUBLISH) for _ in range(4)]
    assert [answer.kind for answer in answers[:2]] == [CONNACK, SUBACK]
    assert {answer.kind for answer in answers[2:]} == {PUBACK, PUBLISH}


def test_a_password_is_slow_once(guarded: Guarded, clients: Callable[..., RawClient]) -> None:
    clients(guarded.broker, "first", **ADA)
    began = time.monotonic()
    for number in range(50):
        clients(guarded.broker, f"again {number}", **ADA).close()
    assert time.monotonic() - began < 2.5  # 50 verifications alone would take longer


@pytest.mark.parametrize("version", [4, 5])
def test_what_ada_may_do(guarded: Guarded, clients: Callable[..., RawClient], version: int) -> None:
    bob = clients(guarded.broker, f"bob {version}", version, **BOB)
    bob.subscribe("#", qos=1)
    ada = clients(guarded.broker, f"ada {version}", version, **ADA)
    first = ada.publish("ada/a", "1", qos=1)
    denied = ada.publish("elsewhere", "no", qos=1)
    secret = ada.publish("ada/secret", "no", qos=2)
    own = ada.publish(f"clients/ada {version}/a", "2", qos=1)
    assert ada.expect_ack(PUBACK, first).reason == 0
    refusal = 0x87 if version == 5 else 0
    assert ada.expect(PUBACK).reason == refusal
    assert denied
    assert ada.expect(PUBREC).reason == refusal
    assert ada.expect_ack(PUBACK, own).reason == 0
    if version == 4:
        ada.ack(PUBREL, secret)
        ada.expect_ack(PUBCOMP, secret)
    assert [bob.expect(PUBLISH).payload for _ in range(2)] == [b"1", b"2"]
    codes = [0x87 if version == 5 else 0x80, 1]
    ada.subscribe("bob/#", "public/#", qos=1, granted=codes)


def test_retained_messages_are_read_by_whom_they_may_be(
    guarded: Guarded, clients: Callable[..., RawClient]
) -> None:
    bob = clients(guarded.broker, "keeper", **BOB)
    for topic in ("public/kept", "private/kept", "ada/secret", "ada/kept"):
        bob.deliver(topic, topic, 1, retain=True)
    ada = clients(guarded.broker, "reader", **ADA)
    ada.subscribe("#", qos=1)
    bob.deliver("ada/end", "end", 1)
    got = set()
    while b"end" not in got:
        got.add(ada.expect(PUBLISH).payload)
    assert got >= {b"public/kept", b"ada/kept"}
    assert not got & {b"private/kept", b"ada/secret"}
    assert (
        guarded.broker.metrics()[
            'headrace_dropped_messages_total{reason="permission_withdrawn",tenant="default"}'
        ]
        > 0
    )


def test_a_will_needs_permission(guarded: Guarded, clients: Callable[..., RawClient]) -> None:
    client = clients(guarded.broker, "will", 5, connect=False)
    client.connect(expect=0x87, will=("bob/will", b"x"), **ADA)


def test_a_certificate_is_a_name(guarded: Guarded) -> None:
    context = ssl.create_default_context(cafile=str(guarded.authority.ca))
    context.load_cert_chain(*guarded.authority.issue("ada"))
    plain = socket.create_connection(("127.0.0.1", guarded.tls_port), timeout=10)
    with context.wrap_socket(plain, server_hostname="localhost") as over:
        over.sendall(
            connect_packet("by certificate", version=4) + packet(0x82, b"\0\1" + text("ada/#") + b"\1")
        )
        answer = b""
        while len(answer) < 9:
            answer += over.recv(100)
        assert answer[:9] == bytes([0x20, 2, 0, 0]) + bytes([0x90, 3, 0, 1, 1])
    without = ssl.create_default_context(cafile=str(guarded.authority.ca))
    plain = socket.create_connection(("127.0.0.1", guarded.tls_port), timeout=10)
    with without.wrap_socket(plain, server_hostname="localhost") as over:
        over.sendall(connect_packet("without", version=4))
        assert over.recv(10) == bytes([0x20, 2, 0, 5])


def test_passwords_over_tls_and_websocket(guarded: Guarded) -> None:
    guarded.forget_ada()
    context = ssl.create_default_context(cafile=str(guarded.authority.ca))
    for password, code in ((b"wrong", 5), (b"lovelace", 0)):
        plain = socket.create_connection(("127.0.0.1", guarded.tls_port), timeout=30)
        with context.wrap_socket(plain, server_hostname="localhost") as over:
            over.sendall(connect_packet("over tls", version=4, user_name="ada", password=password))
            assert over.recv(10) == bytes([0x20, 2, 0, code])
    url = f"ws://127.0.0.1:{guarded.websocket_port}"
    for user, secret, fails in (("bob", "wrong", True), ("bob", "böb", False)):
        done = headrace("pub", "--url", url, "-u", user, "-P", secret, "-t", "bob/x", "-m", "1", "-q", "1")
        assert (done.returncode != 0) is fails, done.stderr


def test_sighup_reads_the_files_again(tmp_path: Path, clients: Callable[..., RawClient]) -> None:
    guarded = Guarded(tmp_path)
    guarded.broker.start()
    try:
        ada = clients(guarded.broker, "ada", **ADA)
        ada.subscribe("public/#")
        bob = clients(guarded.broker, "bob", **BOB)
        bob.deliver("public/a", "before")
        assert ada.expect(PUBLISH).payload == b"before"
        assert headrace("passwd", str(guarded.passwords), "ada", "-D").returncode == 0
        assert headrace("passwd", str(guarded.passwords), "eve", "-b", "new").returncode == 0
        guarded.acl.write_text("user ada\ntopic readwrite ada/#\nuser bob\ntopic readwrite #\n")
        guarded.reload()
        bob.deliver("public/a", "after")
        bob.deliver("ada/a", "end")
        ada.read_to_end()  # her line is gone, and so is she
        clients(guarded.broker, "gone", connect=False).connect(expect=5, **ADA)
        clients(guarded.broker, "eve", user_name="eve", password=b"new")
        guarded.acl.write_text("nonsense\n")
        seen = len(guarded.broker.lines)
        os.kill(guarded.broker.pid, signal.SIGHUP)
        guarded.broker.wait_for_line("the old ones stay", after=seen)
        bob.deliver("bob/still", "fine")
    finally:
        finish(guarded.broker)


def over_tls(guarded: Guarded, certificate: str, **issue: str) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=str(guarded.authority.ca))
    context.load_cert_chain(*guarded.authority.issue(certificate, **issue))
    plain = socket.create_connection(("127.0.0.1", guarded.tls_port), timeout=10)
    return context.wrap_socket(plain, server_hostname="localhost")


def test_a_certificate_without_a_name_is_no_way_around_the_password(guarded: Guarded) -> None:
    with over_tls(guarded, "nameless", subject="/O=nobody") as over:
        over.sendall(connect_packet("nameless", version=4, user_name="bob", password="böb".encode()))
        assert over.recv(10) == bytes([0x20, 2, 0, 5])


def test_a_revoked_certificate_s_connection_goes_at_sighup(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path, crl=True)
    guarded.broker.start()
    try:
        with over_tls(guarded, "kept") as kept, over_tls(guarded, "lost") as lost:
            for name, over in (("kept", kept), ("lost", lost)):
                over.sendall(connect_packet(name, version=5))
                assert over.recv(100)[0] == 0x20
            guarded.authority.revoke(tmp_path / "ca" / "lost.pem")
            guarded.reload()
            assert lost.recv(100) == bytes([0xE0, 1, 0x87])
            assert lost.recv(100) == b""
            kept.sendall(packet(0xC0, b""))
            assert kept.recv(10) == bytes([0xD0, 0])
        guarded.broker.wait_for_line("certificate_revoked")
    finally:
        finish(guarded.broker)


def test_what_was_refused_is_in_the_log_with_who_and_where(
    tmp_path: Path, clients: Callable[..., RawClient]
) -> None:
    guarded = Guarded(tmp_path, proxied=True)
    guarded.broker.start()
    try:
        with socket.create_connection(("127.0.0.1", guarded.proxied_port), timeout=10) as over:
            over.sendall(b"PROXY TCP4 203.0.113.9 192.0.2.1 5555 1883\r\n")
            over.sendall(connect_packet("evil user=ada", version=4, user_name="eve", password=b"secret!"))
            assert over.recv(10) == bytes([0x20, 2, 0, 5])
        ada = clients(guarded.broker, "ada", 5, **ADA)
        ada.publish("elsewhere", "no", qos=1)
        assert ada.expect(PUBACK).reason == 0x87
        ada.subscribe("bob/#", granted=[0x87])
        failed = guarded.broker.wait_for_line("login failed")
        for part in (
            "203.0.113.9:5555",
            "unknown_user",
            "user=eve",
            "client='evil user=ada'",
            "listener=tcp://",
        ):
            assert part in failed
        denied = guarded.broker.wait_for_line("denied")
        for part in ("reason=publish", "topic=elsewhere", "user=ada", "client=ada", "address=127.0.0.1:"):
            assert part in denied
        assert not any("secret!" in line for line in guarded.broker.lines)
        metrics = guarded.broker.metrics()
        for event, reason in (
            ("denied", "publish"),
            ("denied", "subscribe"),
            ("login failed", "unknown_user"),
        ):
            assert metrics[f'headrace_security_events_total{{event="{event}",reason="{reason}"}}'] == 1
    finally:
        finish(guarded.broker)


def test_connects_that_are_abandoned_delay_no_login(
    tmp_path: Path, clients: Callable[..., RawClient]
) -> None:
    """From the login's own address, with names of their own and with a known one."""
    guarded = Guarded(tmp_path)
    guarded.broker.start()
    try:
        for number in range(600):
            with socket.create_connection(("127.0.0.1", guarded.broker.port), timeout=10) as stranger:
                user = "bob" if number % 2 else f"stranger {number}"
                stranger.sendall(connect_packet(f"s{number}", version=4, user_name=user, password=b"x"))
        clients(guarded.broker, "ada", **ADA).ping()
        metrics = guarded.broker.metrics()
        assert metrics["headrace_passwords_abandoned_total"] > 300  # each would have been a hash
    finally:
        finish(guarded.broker)


def test_guessing_passwords_delays_nobody(guarded: Guarded, clients: Callable[..., RawClient]) -> None:
    probe = clients(guarded.broker, "probe", **BOB)
    guessing = [clients(guarded.broker, f"guess {number}", connect=False) for number in range(60)]
    for number, client in enumerate(guessing):
        client.send(connect_packet(client.client_id, version=4, user_name="ada", password=b"%d" % number))
    slowest = 0.0
    for _ in range(20):
        began = time.monotonic()
        probe.ping()
        slowest = max(slowest, time.monotonic() - began)
    assert slowest < 1.0
    assert {client.expect(CONNACK).reason for client in guessing} == {5}


@pytest.mark.parametrize(
    ("key", "content"),
    [
        ("access.password_file", b"# users\nnonsense\n"),
        ("access.password_file", b"# users\nada:\xff\n"),
        ("access.password_file", None),
        ("access.acl_file", b"topic #\nnonsense\n"),
        ("access.acl_file", b"topic #\ntopic \xff\n"),
        ("access.acl_file", None),
        ("access.ban_file", b"192.0.2.0/24\nnonsense\n"),
        ("access.ban_file", None),
        ("tls.certificate", b"# nobody\nnonsense\n"),
        ("tls.certificate", None),
    ],
)
def test_a_file_that_cannot_be_used_at_the_start_is_wrong_use(
    tmp_path: Path, key: str, content: bytes | None
) -> None:
    """Exit 2, and one line with the key, the file, and the number of its line where the file has lines of ours."""
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    scheme = "tls" if key.startswith("tls.") else "tcp"
    listener = f"{scheme}://127.0.0.1:{free_port()}"
    where = ["--data-dir", str(tmp_path / "d"), "--listen", listener, "--set", f"{key}={path}"]
    done = headrace("serve", *where)
    assert done.returncode == 2
    said = done.stderr.splitlines()[-1]
    assert said.startswith(f"headrace: {key}")
    assert str(path) in said
    if content is not None and scheme == "tcp":
        assert f"{path}, line 2: " in said
    assert "Traceback" not in done.stderr


def test_reloaded_is_said_only_when_it_is_so(guarded: Guarded) -> None:
    path = Path(guarded.acl)
    good = path.read_bytes()
    try:
        path.write_bytes(b"topic read \xff\n")
        seen = len(guarded.broker.lines)
        os.kill(guarded.broker.pid, signal.SIGHUP)
        guarded.broker.wait_for_line("passwords and ACL not reloaded, the old ones stay", after=seen)
        guarded.broker.wait_for_line(r"failed=\['passwords and ACL'\]", after=seen)
        said = "".join(guarded.broker.lines[seen:])
        assert said.count("reloaded") == said.count("not reloaded")
    finally:
        path.write_bytes(good)
        guarded.reload()


# headrace passwd


def test_passwd_writes_what_mosquitto_s_users_expect(tmp_path: Path) -> None:
    file = str(tmp_path / "p")
    assert headrace("passwd", file, "ada", stdin="secret\nsecret\n").returncode == 0
    assert headrace("passwd", file, "bob", "-b", "x").returncode == 0
    assert [line.partition(":")[0] for line in Path(file).read_text().splitlines()] == ["ada", "bob"]
    assert headrace("passwd", file, "ada", "-D").returncode == 0
    assert [line.partition(":")[0] for line in Path(file).read_text().splitlines()] == ["bob"]
    again = headrace("passwd", file, "ada", "-D")
    assert (again.returncode, "no user" in again.stderr) == (1, True)
    assert headrace("passwd", file, "a:b", "-b", "x").returncode == 2


@pytest.mark.mosquitto
def test_mosquitto_clients_with_passwords(guarded: Guarded) -> None:
    to = ["-h", "127.0.0.1", "-p", str(guarded.broker.port)]
    bob = ["-u", "bob", "-P", "böb"]
    for arguments, code in (([*bob], 0), (["-u", "bob", "-P", "no"], 5), ([], 5)):
        done = subprocess.run(
            ["mosquitto_pub", *to, *arguments, "-t", "t", "-m", "x", "-q", "1"],
            capture_output=True,
            check=False,
            timeout=20,
        )
        assert done.returncode == code, done.stderr
