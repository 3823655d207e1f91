"""Every transport with foreign clients; what is no MQTT, no TLS, no WebSocket costs only that connection."""

from __future__ import annotations

import base64
import contextlib
import os
import resource
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from broker_process import BrokerProcess, free_port, headrace, make_broker, wait_until
from certificates import Authority
from e2e.conftest import finish
from e2e.raw import RawClient
from e2e.wire import connect_packet
from paho_end import end_loop

pytestmark = pytest.mark.skipif("__import__('broker_process').UNDER_AUDIT != 'headrace'")
CONNACK = bytes([0x20, 2, 0, 0])


class Doors:
    """A broker with a listener of each kind."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder / "ca")
        certificate, key = self.authority.issue("server")
        self.unix = folder / "mqtt.sock"
        self.ports = {
            name: free_port()
            for name in ("tls", "ws", "wss", "mutual", "proxied", "maybe", "proxied-tls", "few")
        }
        at = {name: f"127.0.0.1:{port}" for name, port in self.ports.items()}
        urls = [
            f"tls://{at['tls']}?connect_timeout_s=1.5",
            f"ws://{at['ws']}?connect_timeout_s=1.5",
            f"wss://{at['wss']}?paths=/mqtt",
            f"tls://{at['mutual']}?client_cert=require&ca={self.authority.ca}&identity=cn",
            f"tcp://{at['proxied']}?proxy=required&connect_timeout_s=1.5",
            f"tcp://{at['few']}?connections_max=3&packet_bytes_max=1000",
            f"tcp://{at['maybe']}?proxy=optional",
            f"tls://{at['proxied-tls']}?proxy=required",
            f"unix://{self.unix}",
        ]
        settings = {"tls.certificate": certificate, "tls.key": key, "durability": "none"}
        extra = [part for url in urls for part in ("--listen", url)]
        self.broker: BrokerProcess = make_broker(folder / "broker", settings, extra)

    def tls(self, name: str = "tls", **client: Path) -> ssl.SSLSocket:
        context = ssl.create_default_context(cafile=str(self.authority.ca))
        if client:
            context.load_cert_chain(client["cert"], client["key"])
        plain = socket.create_connection(("127.0.0.1", self.ports[name]), timeout=10)
        return context.wrap_socket(plain, server_hostname="localhost")


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    made = Doors(tmp_path_factory.mktemp("doors"))
    made.broker.start()
    try:
        yield made
    finally:
        finish(made.broker)


def exchange(over: socket.socket, client_id: str) -> None:
    """CONNECT, and a ping as proof of life."""
    over.sendall(connect_packet(client_id, version=4) + bytes([0xC0, 0]))
    answer = b""
    while len(answer) < 6:
        piece = over.recv(6 - len(answer))
        assert piece, f"closed after {answer!r}"
        answer += piece
    assert answer == CONNACK + bytes([0xD0, 0])


def ends(over: socket.socket, deadline_s: float = 10) -> bytes:
    """What comes until the broker ends the connection."""
    over.settimeout(deadline_s)
    answer = b""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while piece := over.recv(65536):
            answer += piece
    return answer


def mosquitto(*arguments: str, stdin: str = "") -> str:
    done = subprocess.run(
        list(arguments), input=stdin, capture_output=True, text=True, timeout=20, check=False
    )
    assert done.returncode == 0, f"{arguments}: {done.stderr}"
    return done.stdout


@pytest.mark.mosquitto
@pytest.mark.parametrize("over", ["tls", "unix"])
def test_mosquitto_clients(doors: Doors, over: str) -> None:
    to = {
        "tls": ["-h", "localhost", "-p", str(doors.ports["tls"]), "--cafile", str(doors.authority.ca)],
        "unix": ["--unix", str(doors.unix)],
    }[over]
    topic = f"mosquitto/{over}"
    mosquitto("mosquitto_pub", *to, "-t", topic, "-m", f"kept {over}", "-q", "2", "-r", "-V", "mqttv5")
    assert mosquitto("mosquitto_sub", *to, "-t", topic, "-C", "1", "-W", "10") == f"kept {over}\n"
    big = "x" * 500_000
    mosquitto("mosquitto_pub", *to, "-t", topic, "-s", "-q", "1", "-r", stdin=big)
    assert mosquitto("mosquitto_sub", *to, "-t", topic, "-C", "1", "-W", "10").strip() == big


@pytest.mark.parametrize("over", ["ws", "wss", "tls"])
@pytest.mark.parametrize("version", [4, 5])
def test_paho(doors: Doors, over: str, version: int) -> None:
    """Payloads that need one byte, two and eight for the length of their frame, in both directions, at each QoS."""
    client = paho.Client(
        CallbackAPIVersion.VERSION2,
        f"paho-{over}-{version}",
        transport="tcp" if over == "tls" else "websockets",
        protocol=MQTTProtocolVersion(version),
    )
    if over != "ws":
        client.tls_set(str(doors.authority.ca))
    got: list[bytes] = []
    client.on_message = lambda _client, _data, message: got.append(bytes(message.payload))
    subscribed: list[int] = []
    client.on_subscribe = lambda *_: subscribed.append(1)
    client.connect("localhost", doors.ports[over])
    client.loop_start()
    try:
        topic = f"paho/{over}/{version}"
        wait_until(client.is_connected, "connected")
        client.subscribe(topic, 2)
        wait_until(lambda: bool(subscribed), "subscribed")
        payloads = [b"small", b"m" * 5_000, b"l" * 300_000]
        for qos, payload in enumerate(payloads):
            client.publish(topic, payload, qos).wait_for_publish(10)
        wait_until(lambda: len(got) == 3, "three messages")
        assert sorted(got) == sorted(payloads)
    finally:
        client.disconnect()
        end_loop(client)


@pytest.mark.slow
@pytest.mark.parametrize("over", ["tls", "ws", "wss", "mutual"])
def test_headrace_pub_and_sub(doors: Doors, over: str) -> None:
    options = ["--ca", str(doors.authority.ca)] if over != "ws" else []
    if over == "mutual":
        certificate, key = doors.authority.issue("pump-9")
        options += ["--cert", str(certificate), "--key", str(key)]
    url = f"{'tls' if over == 'mutual' else over}://localhost:{doors.ports[over]}"
    to = ["--url", url, *options, "-t", f"headrace/{over}", "-q", "1"]
    payload = "x" * 200_000
    sent = headrace("pub", *to, "-r", "-l", stdin=payload + "\n")
    assert sent.returncode == 0, sent.stderr
    got = headrace("sub", *to, "-C", "1", "-W", "20")
    assert (got.returncode, got.stdout) == (0, payload + "\n"), got.stderr


@pytest.mark.slow
def test_headrace_pub_checks_who_it_speaks_to(doors: Doors) -> None:
    to = ["-t", "t", "-m", "x", "-q", "1", "--url"]
    wss = [*to, f"wss://localhost:{doors.ports['wss']}"]
    unknown = headrace("pub", *wss)
    assert unknown.returncode == 1
    assert "certificate verify failed" in unknown.stderr
    assert headrace("pub", *wss, "--insecure").returncode == 0
    for path in ("/", "/ws", "/mqtt/"):  # where no path is named all are served
        assert headrace("pub", *to, f"ws://localhost:{doors.ports['ws']}{path}").returncode == 0
    elsewhere = headrace(
        "pub", *wss, "--insecure", "--url", f"wss://localhost:{doors.ports['wss']}/elsewhere"
    )
    assert elsewhere.returncode == 1
    assert "404" in elsewhere.stderr
    no_file = headrace("pub", *wss, "--ca", "/none.pem")
    assert no_file.returncode == 1
    assert "/none.pem" in no_file.stderr
    assert headrace("pub", *to, f"tcp://localhost:{doors.broker.port}", "--insecure").returncode == 2


def test_alpn_and_version(doors: Doors) -> None:
    context = ssl.create_default_context(cafile=str(doors.authority.ca))
    context.set_alpn_protocols(["mqtt"])
    plain = socket.create_connection(("127.0.0.1", doors.ports["tls"]), timeout=10)
    with context.wrap_socket(plain, server_hostname="localhost") as over:
        assert (over.selected_alpn_protocol(), over.version()) == ("mqtt", "TLSv1.3")
        exchange(over, "alpn")


def test_a_client_certificate_is_required(doors: Doors) -> None:
    certificate, key = doors.authority.issue("pump-7")
    with doors.tls("mutual", cert=certificate, key=key) as over:
        exchange(over, "mutual")
    assert refused(doors)
    stranger = Authority(doors.authority.folder / "stranger", "stranger")
    certificate, key = stranger.issue("pump-7")
    assert refused(doors, cert=certificate, key=key)


def refused(doors: Doors, **client: Path) -> bool:
    """In TLS 1.3 a client learns that its certificate is not taken only after its own handshake."""
    try:
        with doors.tls("mutual", **client) as over:
            over.sendall(connect_packet("nobody", version=4))
            return over.recv(4) == b""
    except (ssl.SSLError, ConnectionError):
        return True


def test_certificates_are_read_again_on_sighup_and_nobody_is_dropped(tmp_path: Path) -> None:
    doors = Doors(tmp_path)
    doors.broker.start()
    try:
        old = doors.tls()
        exchange(old, "stays")
        before = old.getpeercert(binary_form=True)
        doors.authority.issue("server")
        os.kill(doors.broker.pid, signal.SIGHUP)
        doors.broker.wait_for_line("reloaded")
        with doors.tls() as fresh:
            assert fresh.getpeercert(binary_form=True) != before
            exchange(fresh, "fresh")
        (doors.authority.folder / "server.pem").write_text("damaged")
        seen = len(doors.broker.lines)
        os.kill(doors.broker.pid, signal.SIGHUP)
        doors.broker.wait_for_line("not reloaded, the old one stays", after=seen)
        with doors.tls() as again:
            exchange(again, "again")
        old.sendall(bytes([0xC0, 0]))
        assert old.recv(2) == bytes([0xD0, 0])
        old.close()
    finally:
        finish(doors.broker)


# PROXY protocol


@pytest.mark.parametrize(
    "header",
    [
        b"PROXY TCP4 192.0.2.9 10.0.0.1 12345 1883\r\n",
        b"PROXY UNKNOWN\r\n",
        b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c" + bytes(12),
        b"\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00",
    ],
)
@pytest.mark.parametrize("listener", ["proxied", "maybe"])
@pytest.mark.parametrize("slowly", [False, True])
def test_proxy_header(doors: Doors, header: bytes, listener: str, slowly: bool) -> None:
    with socket.create_connection(("127.0.0.1", doors.ports[listener]), timeout=10) as over:
        over.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in [header[:1], header[1:9], header[9:]] if slowly else [header]:
            over.sendall(piece)
        exchange(over, "behind a proxy")


def test_a_missing_or_wrong_proxy_header_ends_that_connection(doors: Doors) -> None:
    for data in (connect_packet("direct", version=4), b"PROXY nonsense\r\n", b"\r\n\r\n\x00\r\nQUIX"):
        with socket.create_connection(("127.0.0.1", doors.ports["proxied"]), timeout=10) as over:
            over.sendall(data)
            assert ends(over) == b""
    with socket.create_connection(("127.0.0.1", doors.ports["maybe"]), timeout=10) as over:
        exchange(over, "direct")


def test_a_proxy_header_comes_before_tls(doors: Doors) -> None:
    context = ssl.create_default_context(cafile=str(doors.authority.ca))
    with socket.create_connection(("127.0.0.1", doors.ports["proxied-tls"]), timeout=10) as plain:
        plain.sendall(b"PROXY TCP4 192.0.2.9 10.0.0.1 12345 8883\r\n")
        with context.wrap_socket(plain, server_hostname="localhost") as over:
            exchange(over, "proxied tls")


@pytest.mark.parametrize("send", ["send-proxy", "send-proxy-v2"])
@pytest.mark.skipif(not Path("/usr/sbin/haproxy").exists(), reason="needs HAProxy")
def test_haproxy_in_front(doors: Doors, tmp_path: Path, send: str) -> None:
    front = {"proxied": free_port(), "proxied-tls": free_port()}
    lines = ["defaults", "  mode tcp", "  timeout connect 5s", "  timeout client 30s", "  timeout server 30s"]
    for name, port in front.items():
        lines += [f"listen {name}", f"  bind 127.0.0.1:{port}"]
        lines += [f"  server broker 127.0.0.1:{doors.ports[name]} {send}"]
    (tmp_path / "haproxy.cfg").write_text("\n".join(lines) + "\n")
    haproxy = subprocess.Popen(
        ["/usr/sbin/haproxy", "-f", str(tmp_path / "haproxy.cfg"), "-db"], stderr=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: connects(front["proxied"]), "haproxy listens")
        to = ["-h", "localhost", "-p", str(front["proxied"])]
        mosquitto("mosquitto_pub", *to, "-t", send, "-m", "through", "-q", "1", "-r")
        assert mosquitto("mosquitto_sub", *to, "-t", send, "-C", "1", "-W", "10") == "through\n"
        context = ssl.create_default_context(cafile=str(doors.authority.ca))
        plain = socket.create_connection(("127.0.0.1", front["proxied-tls"]), timeout=10)
        with context.wrap_socket(plain, server_hostname="localhost") as over:
            exchange(over, "through haproxy")
    finally:
        haproxy.terminate()
        haproxy.wait(10)


def connects(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


# Limits of a listener


def test_a_listener_has_limits_of_its_own(doors: Doors) -> None:
    with contextlib.ExitStack() as stack:
        for number in range(3):
            over = stack.enter_context(
                socket.create_connection(("127.0.0.1", doors.ports["few"]), timeout=10)
            )
            exchange(over, f"one of three {number}")
        fourth = stack.enter_context(socket.create_connection(("127.0.0.1", doors.ports["few"]), timeout=10))
        assert ends(fourth) == b""
        large = bytes([0x30]) + bytes([0xE8, 0x07]) + b"\x00\x01t" + b"x" * 997  # 1003 bytes in all
        over.sendall(large)
        assert ends(over) == b""


@pytest.mark.parametrize("name", ["tls", "ws", "proxied"])
def test_who_never_says_connect_is_closed(doors: Doors, name: str) -> None:
    """Silence, and a byte at a time, before the handshake is done: the deadline runs from the accept."""
    began = time.monotonic()
    silent = socket.create_connection(("127.0.0.1", doors.ports[name]), timeout=10)
    slow = socket.create_connection(("127.0.0.1", doors.ports[name]), timeout=10)
    slow.sendall({"tls": b"\x16\x03\x01", "ws": b"GET /mq", "proxied": b"PROXY "}[name])
    with silent, slow:
        assert ends(silent) == b""
        assert ends(slow) == b""
    assert time.monotonic() - began < 6


@pytest.mark.parametrize("name", ["tls", "wss", "ws", "proxied", "maybe", "mutual"])
def test_garbage_costs_only_that_connection(doors: Doors, name: str) -> None:
    with doors.tls() as bystander:
        exchange(bystander, f"bystander {name}")
        for garbage in (
            b"\x00" * 64,
            b"GET / HTTP/1.1\r\n\r\n",
            b"\x16\x03\x01\xff\xff" + b"\xaa" * 70_000,
            b"\xff" * 9,
        ):
            with socket.create_connection(("127.0.0.1", doors.ports[name]), timeout=10) as over:
                with contextlib.suppress(OSError):
                    over.sendall(garbage)
                    over.shutdown(socket.SHUT_WR)
                ends(over)
        bystander.sendall(bytes([0xC0, 0]))
        assert bystander.recv(2) == bytes([0xD0, 0])


def test_garbage_inside_a_websocket(doors: Doors) -> None:
    upgrade = (
        b"GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: "
        + base64.b64encode(bytes(16))
        + b"\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
    )
    frames = [
        b"\x82\x05hello",  # not masked
        b"\x82\xff" + b"\xff" * 8,  # longer than anything
        b"\xf2\x80\x00\x00\x00\x00",  # reserved bits
        b"\x8b\x80\x00\x00\x00\x00",  # reserved opcode
        b"\x80\x85\x00\x00\x00\x00hello",  # continuation of nothing
        b"\x82\x85\x00\x00\x00\x00hello",  # no MQTT
    ]
    for frame in frames:
        with socket.create_connection(("127.0.0.1", doors.ports["ws"]), timeout=10) as over:
            over.sendall(upgrade)
            answer = b""
            while b"\r\n\r\n" not in answer:
                answer += over.recv(4096)
            assert answer.startswith(b"HTTP/1.1 101")
            over.sendall(frame)
            over.shutdown(socket.SHUT_WR)
            assert ends(over)[:1] == b"\x88"  # a Close frame


@pytest.mark.slow
def test_at_the_limit_of_descriptors_accepting_pauses_and_says_so(
    brokers: Callable[..., BrokerProcess],
) -> None:
    broker = brokers({"durability": "none"}).start()
    resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (64, 64))
    waiting = [socket.create_connection(broker.address, timeout=10) for _ in range(80)]
    broker.wait_for_line("accepting pauses")
    for over in waiting[:60]:
        over.close()
    with RawClient(broker.address, "late") as late:
        late.connect()
    for over in waiting[60:]:
        over.close()


def test_a_unix_socket_goes_with_its_broker(tmp_path: Path) -> None:
    broker = make_broker(tmp_path / "b", {"durability": "none"}, ["--listen", f"unix://{tmp_path}/s"]).start()
    try:
        with socket.socket(socket.AF_UNIX) as over:
            over.settimeout(10)
            over.connect(str(tmp_path / "s"))
            exchange(over, "unix")
        broker.crash()
        with socket.socket(socket.AF_UNIX) as over:
            over.settimeout(10)
            over.connect(str(tmp_path / "s"))
            exchange(over, "unix")
    finally:
        finish(broker)
    assert not (tmp_path / "s").exists()


@pytest.mark.slow
def test_hundreds_who_drip_delay_nobody_and_go_at_the_deadline(doors: Doors) -> None:
    """A byte now and then over TLS, WebSocket and behind a PROXY header that never ends."""
    drips = {
        "tls": b"\x16\x03\x01\x02\x00\x01",
        "ws": b"GET /mqtt HTTP/1.1\r\n",
        "proxied": b"PROXY TCP4 192.0.2",
    }
    dripping: list[tuple[socket.socket, bytes]] = []
    with RawClient(doors.broker.address, "drip probe") as probe:
        probe.connect()
        before = resident_bytes(doors.broker.pid)
        for number in range(600):
            name = ("tls", "ws", "proxied")[number % 3]
            over = socket.create_connection(("127.0.0.1", doors.ports[name]), timeout=10)
            over.setblocking(False)
            dripping.append((over, drips[name]))
        slowest = 0.0
        for round_ in range(6):
            for over, drip in dripping:
                with contextlib.suppress(OSError):
                    over.send(drip[round_ : round_ + 1])
            began = time.monotonic()
            probe.ping()
            slowest = max(slowest, time.monotonic() - began)
        assert slowest < 1.0
        assert resident_bytes(doors.broker.pid) - before < 120 << 20
        for over, _ in dripping:
            assert ends(over) == b""
            over.close()
        probe.ping()


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
