"""Devices that speak frames: durable before the answer, told apart by SN, refused with a code, at home with MQTT."""

from __future__ import annotations

import hashlib
import ssl
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker_process import BrokerProcess, free_port, headrace, make_broker
from certificates import Authority
from e2e.conftest import finish
from e2e.device import HELLO, PING, PUBLISH, RESPONSE, Device, frame, text
from e2e.raw import RawClient
from headrace.journal.reader import JournalReader

pytestmark = pytest.mark.skipif("__import__('broker_process').UNDER_AUDIT != 'headrace'")
Clients = Callable[..., RawClient]


class Served:
    """A broker with a listener for frames."""

    def __init__(self, folder: Path, settings: dict[str, object] | None = None) -> None:
        self.port = free_port()
        more = ["--listen", f"frame://127.0.0.1:{self.port}"]
        self.broker: BrokerProcess = make_broker(folder, settings or {}, more)

    def device(self, sn: bytes = b"door-1", version: int = 2) -> Device:
        return Device(self.port, sn, version)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    found = Served(tmp_path_factory.mktemp("frames"))
    found.broker.start()
    try:
        yield found
    finally:
        finish(found.broker)


@pytest.mark.parametrize(
    ("version", "sn", "client_id"), [(1, b"\x07", "7"), (2, b"lock-9", "lock-9"), (2, b"\xff\x00", "0xff00")]
)
def test_what_a_device_publishes_reaches_an_mqtt_subscriber(
    served: Served, clients: Clients, version: int, sn: bytes, client_id: str
) -> None:
    topic = f"from/{client_id}"
    with (
        RawClient(served.broker.address, f"sub-{client_id}") as subscriber,
        served.device(sn, version) as device,
    ):
        subscriber.connect()
        subscriber.subscribe(topic, qos=1)
        assert len(device.publish(1, topic, b"open")) == 16
        got = subscriber.read(3)
        assert (got.topic, got.payload, got.qos) == (topic, b"open", 1)


def test_the_answer_carries_the_id_that_the_lake_can_make(served: Served) -> None:
    with served.device() as device:
        found = device.publish(1, "ids", b"x")
    journal = JournalReader(served.broker.data_dir)
    texts = [f"journal:{journal.uuid}:{journal.epoch}:{at}" for at in range(journal.high_watermark())]
    assert found in {hashlib.md5(text.encode(), usedforsecurity=False).digest() for text in texts}


def test_answers_come_in_the_order_of_the_requests_and_carry_their_sn(served: Served) -> None:
    with served.device() as device:
        for seq in range(200):
            device.start_publish(seq, "wrong/#" if seq % 10 == 3 else "ordered", b"%d" % seq)
        answers = [device.published() for _ in range(200)]
    assert [seq for seq, _, _ in answers] == list(range(200))
    assert {seq for seq, code, _ in answers if code} == set(range(3, 200, 10))
    assert {code for _, code, _ in answers} == {0, 0x90}
    assert {message_id for _, code, message_id in answers if code} == {bytes(16)}
    assert len({message_id for _, _, message_id in answers}) == 181


def test_what_is_sent_again_is_one_message_and_has_one_id(served: Served) -> None:
    with RawClient(served.broker.address, "sub-again") as subscriber, served.device() as device:
        subscriber.connect()
        subscriber.subscribe("again", qos=1)
        first = device.publish(7, "again", b"a")
        assert device.publish(7, "again", b"a") == first
        with served.device() as other:  # it has lost its connection, and never heard
            assert other.publish(7, "again", b"a") == first
        second = device.publish(7, "again", b"b")  # it was reset: its numbers begin anew
        assert second != first
        assert [subscriber.read(3).payload for _ in range(2)] == [b"a", b"b"]
        assert device.publish(7, "again", b"b") == second


def test_the_same_number_of_two_devices_is_two_messages(served: Served) -> None:
    with served.device(b"one") as one, served.device(b"two") as two:
        assert one.publish(1, "pair", b"x") != two.publish(1, "pair", b"x")


def test_devices_behind_a_gateway_share_a_connection(served: Served) -> None:
    with served.device(b"gateway") as gateway:
        ids = []
        for number in range(20):
            sn = b"behind-%d" % (number % 5)
            gateway.start_publish(number // 5, "gateway", b"same", sn)
            answer = gateway.read(PUBLISH | RESPONSE)
            assert (answer.sn, answer.body[4]) == (sn, 0)
            ids.append(answer.body[5:])
        assert len(set(ids)) == 20


def test_a_device_is_heard_while_it_pings(served: Served) -> None:
    for version, sn in ((1, b"\x01"), (2, b"door")):
        with served.device(sn, version) as device:
            device.ping()
            device.ping()


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"\x03" + frame(PING, b"d")[1:], 0x84),
        (b"\x02\x00\x00\x00\x00", 0x81),
        (b"\x02\xff\xff\xff\xff", 0x95),
        (frame(PING, b"d")[:-1] + b"\x00", 0x81),
        (frame(0x0042, b"d"), 0x82),
        (frame(5, b"d", text("t") + text("c") + bytes(4)), 0x82),
        (frame(PUBLISH, b"d", b"\0\0\0\1\xff\xfftopic"), 0x81),
        (frame(PING, b""), 0x85),
        (frame(PING, b"$bridge/x"), 0x85),
        (frame(PING, b"\x01", version=1) + frame(PING, b"d"), 0x84),
    ],
    ids=[
        "version",
        "length 0",
        "4 GiB",
        "checksum",
        "opcode",
        "notify",
        "topic",
        "no SN",
        "a bridge",
        "two versions",
    ],
)
def test_bad_input_costs_that_connection_alone_and_is_counted(served: Served, sent: bytes, code: int) -> None:
    before = served.broker.metrics()
    with served.device() as neighbour, served.device(b"d", sent[0] if sent[0] == 1 else 2) as device:
        neighbour.ping()
        device.write(sent)
        assert device.error() == code
        neighbour.ping()
    name = 'headrace_protocol_errors_total{tenant="default"}'
    refused = 'headrace_connects_refused_total{tenant="default"}'
    after = served.broker.metrics()
    assert sum(after[key] - before[key] for key in (name, refused)) == 1


def test_a_frame_that_is_cut_is_waited_for_and_its_connection_may_end(served: Served) -> None:
    with served.device() as device:
        whole = frame(PUBLISH, b"door-1", struct.pack(">I", 1) + text("cut") + b"x" * 100)
        for byte in whole[:-1]:
            device.write(bytes([byte]))
        device.write(whole[-1:] + whole[:20])
        assert device.published()[:2] == (1, 0)
    with served.device() as device:
        device.ping()


def test_who_says_nothing_is_closed_in_time(tmp_path: Path) -> None:
    served = Served(tmp_path, {"limits.connect_timeout_s": 5, "frames.idle_s": 1})
    served.broker.start()
    try:
        with served.device() as silent, served.device() as idle:
            idle.ping()
            assert silent.ends()
            assert idle.error() == 0x8D
    finally:
        finish(served.broker)


@pytest.mark.slow
def test_what_was_answered_outlives_a_kill_and_is_known_when_it_comes_again(tmp_path: Path) -> None:
    served = Served(tmp_path)
    broker = served.broker.start()
    try:
        with RawClient(broker.address, "store") as client:
            client.connect(clean=False)
            client.subscribe("kept", qos=1)
            client.disconnect()
        with served.device() as device:
            ids = [device.publish(seq, "kept", b"%d" % seq) for seq in range(100)]
            broker.kill()
        broker.start()
        with served.device() as device:
            assert [device.publish(seq, "kept", b"%d" % seq) for seq in range(100)] == ids
            broker.stop()
        broker.start()  # from a snapshot
        with served.device() as device:
            assert [device.publish(seq, "kept", b"%d" % seq) for seq in range(100)] == ids
            device.publish(100, "kept", b"100")
        with RawClient(broker.address, "store") as client:
            client.connect(clean=False)
            got = [client.read(3).payload for _ in range(101)]
            assert got == [b"%d" % seq for seq in range(101)]
    finally:
        finish(broker)


ACL = """
topic write open/#
user hub
topic readwrite doors/#
pattern write own/%c
user other
topic readwrite doors/#
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("guarded")
    passwords, acl = folder / "passwords", folder / "acl"
    for user in ("hub", "other"):
        assert headrace("passwd", str(passwords), user, "-b", f"secret of {user}").returncode == 0
    acl.write_text(ACL)
    settings: dict[str, object] = {
        "access.password_file": passwords,
        "access.acl_file": acl,
        "allow_anonymous": "true",
        "limits.connect_timeout_s": 60,
    }
    served = Served(folder / "broker", settings)
    served.broker.start()
    try:
        yield served
    finally:
        finish(served.broker)


def test_a_password_lets_in_and_a_wrong_one_does_not(guarded: Served) -> None:
    with guarded.device(b"pw") as device:
        assert device.hello("hub", "secret of hub") == 0
        device.publish(1, "doors/1", b"x")
    with guarded.device(b"pw2") as device:
        code = device.hello("hub", "wrong")
        assert code >= 0x80
        assert device.ends()


def test_frames_behind_a_hello_wait_for_its_answer(guarded: Served) -> None:
    with guarded.device(b"eager") as device:
        device.send(HELLO, text("other") + text("secret of other"))
        device.start_publish(1, "doors/1", b"x")
        assert device.read(HELLO | RESPONSE).body == b"\0"
        assert device.published()[:2] == (1, 0)


def test_an_sn_belongs_to_the_user_who_came_first_even_after_a_kill(tmp_path: Path, guarded: Served) -> None:
    with guarded.device(b"mine") as device:
        assert device.hello("hub", "secret of hub") == 0
        device.publish(1, "doors/1", b"x")
    for kill in (False, True):
        if kill:
            guarded.broker.kill()
            guarded.broker.start()
        with guarded.device(b"mine") as thief, guarded.device(b"theirs") as other:
            assert thief.hello("other", "secret of other") == 0x87
            assert thief.ends()
            assert other.hello("other", "secret of other") == 0
            other.start_publish(1, "doors/1", b"x", sn=b"mine")
            assert other.error() == 0x87
        with guarded.device(b"mine") as nobody:
            nobody.send(PING)
            assert nobody.error() == 0x87


@pytest.mark.slow
def test_a_user_has_only_so_many_devices_even_after_a_kill(tmp_path: Path, guarded: Served) -> None:
    passwords = tmp_path / "passwords"
    for user in ("hub", "other"):
        assert headrace("passwd", str(passwords), user, "-b", f"secret of {user}").returncode == 0
    settings: dict[str, object] = {"access.password_file": passwords, "frames.user_devices_max": 2}
    served = Served(tmp_path / "broker", settings)
    served.broker.start()
    try:
        with served.device(b"a") as device:
            assert device.hello("hub", "secret of hub") == 0
            device.start_publish(1, "t", b"x", sn=b"b")
            assert device.published()[1] == 0
            device.start_publish(2, "t", b"x", sn=b"c")
            assert device.error() == 0x97
        served.broker.kill()
        served.broker.start()
        with served.device(b"c") as device:
            assert device.hello("hub", "secret of hub") == 0x97
            assert device.ends()
        with served.device(b"c") as device:
            assert device.hello("other", "secret of other") == 0, "it is nobody's"
        with served.device(b"b") as device:
            assert device.hello("hub", "secret of hub") == 0
        metrics = served.broker.metrics()
        refused = 'headrace_refused_packets_total{packet="connect",reason="quota_exceeded",tenant="default"}'
        assert metrics[refused] == 1
        assert metrics['headrace_owned_devices{tenant="default"}'] == 3
    finally:
        finish(served.broker)


def test_the_acl_holds_for_each_device_of_a_connection(guarded: Served) -> None:
    with guarded.device(b"gate-a") as device:
        assert device.hello("hub", "secret of hub") == 0
        for sn, topic, code in (
            (b"gate-a", "own/gate-a", 0),
            (b"gate-a", "own/gate-b", 0x87),
            (b"gate-b", "own/gate-b", 0),
            (b"gate-b", "own/gate-a", 0x87),
            (b"gate-a", "own/gate-a", 0),
            (b"gate-a", "$SYS/x", 0x87),
        ):
            device.start_publish(1, topic, topic.encode() + sn, sn=sn)
            assert device.published()[1] == code, (sn, topic)


def test_nobody_is_anonymous_where_that_is_not_allowed(tmp_path: Path) -> None:
    served = Served(tmp_path, {"allow_anonymous": "false"})
    served.broker.start()
    try:
        with served.device() as device:
            device.start_publish(1, "t", b"x")
            assert device.error() == 0x87
    finally:
        finish(served.broker)


def test_frames_come_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    certificate, key = authority.issue("server")
    port = free_port()
    settings: dict[str, object] = {"tls.certificate": certificate, "tls.key": key}
    broker = make_broker(tmp_path / "broker", settings, ["--listen", f"frames://127.0.0.1:{port}"]).start()
    try:
        context = ssl.create_default_context(cafile=str(authority.ca))
        context.check_hostname = False
        with Device(port, context=context) as device:
            device.publish(1, "over/tls", b"x" * 100_000)
            device.ping()
    finally:
        finish(broker)


def test_a_stopping_broker_says_so(tmp_path: Path) -> None:
    served = Served(tmp_path)
    served.broker.start()
    with served.device() as device:
        device.ping()
        served.broker.stop()
        assert device.error() == 0x8B
    finish(served.broker)
