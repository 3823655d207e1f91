"""What the broker does with the answers of access control."""

from __future__ import annotations

import pytest
from librt.strings import BytesWriter

from harness import START_US, Client, Harness
from headrace.core.ports.access import PENDING, Access, SignIn
from headrace.core.ports.identity import Identity
from headrace.core.ports.link import Link
from headrace.core.records.message import decode_batch
from headrace.core.records.record import DROP_PERMISSION
from headrace.core.state.compacted import records
from headrace.core.state.groups import draws_of
from headrace.core.state.replay import Replay
from headrace.core.state.session import APPLICATION, DEVICE
from headrace.core.state.state import Fold
from headrace.mqtt import codec
from headrace.mqtt.packets import Connect, Will
from headrace.mqtt.properties import Properties
from headrace.storage.memory import MemoryLink

PUBLISH, PUBACK, PUBREC, PUBCOMP, SUBACK, CONNACK = 0x30, 0x40, 0x50, 0x70, 0x90, 0x20


class Rules(Access):
    """Topics that contain "no" are nobody's; `late` collects sign-ins instead of answering them."""

    def __init__(self, code: int = 0) -> None:
        super().__init__()
        self.code = code
        self.late: list[SignIn] = []
        self.unreadable = b"no"
        self.user: str | None = None
        self.noted: list[tuple[str, str, bytes]] = []

    def authenticate(self, request: SignIn) -> Identity | int:
        if self.code == PENDING:
            self.late.append(request)
        return self.code or request.identity_of(self.user)

    def may_publish(self, link: Link, topic: bytes) -> bool:
        return b"no" not in topic

    def may_leave_will(self, tenant: str, user: str | None, client_id: str, topic: bytes) -> bool:
        return b"no" not in topic

    def may_receive(self, link: Link, topic: bytes) -> bool:
        return self.unreadable not in topic

    def note_denied(self, link: Link, action: str, topic: bytes) -> None:
        self.noted.append((link.client_id, action, topic))

    def may_subscribe(self, link: Link, topic_filter: str) -> bool:
        return "no" not in topic_filter


@pytest.fixture
def rules() -> Rules:
    return Rules()


@pytest.fixture
def harness(rules: Rules) -> Harness:
    made = Harness()
    made.worker.guard(rules)
    return made


def reason(body: bytes) -> int:
    return body[2] if len(body) > 2 else 0


@pytest.mark.parametrize(
    ("version", "code", "answer"), [(4, 0x87, 5), (3, 0x87, 5), (5, 0x87, 0x87), (4, 0x89, 3)]
)
def test_who_is_not_let_in_is_told_why(
    harness: Harness, rules: Rules, version: int, code: int, answer: int
) -> None:
    rules.code = code
    client = harness.client("c", version=version)
    first, body = client.take()[0]
    assert (first, body[1]) == (CONNACK, answer)
    assert client.link.closed
    assert "c" not in harness.broker.fold.tenant("default").sessions


def test_a_late_answer_lets_in(harness: Harness, rules: Rules) -> None:
    rules.code = PENDING
    client = harness.client("c")
    assert client.take() == []
    assert not client.link.reading
    rules.late[0].answer(rules.late[0].identity_of(None))
    harness.sync()
    assert client.take() == [(CONNACK, b"\0\0")]
    assert client.link.reading


def test_a_late_answer_to_nobody(harness: Harness, rules: Rules) -> None:
    rules.code = PENDING
    client = harness.client("c")
    client.link.closed = True
    harness.broker.on_connection_lost(client.link)
    rules.late[0].answer(rules.late[0].identity_of(None))
    assert "c" not in harness.broker.fold.tenant("default").sessions


def publish(client: Client, topic: str, qos: int, packet_id: int) -> None:
    client.feed(
        codec.encode_publish(client.version, topic.encode(), b"x", qos, False, False, packet_id), False
    )


def test_version_5_is_told_behind_earlier_acknowledgements(harness: Harness) -> None:
    client = harness.client("c", version=5)
    client.take()
    publish(client, "yes", 1, 1)
    publish(client, "no", 1, 2)
    publish(client, "no", 2, 3)
    publish(client, "yes", 1, 4)
    harness.sync()
    answers = [(first, body[1], reason(body)) for first, body in client.take()]
    assert answers == [(PUBACK, 1, 0x10), (PUBACK, 2, 0x87), (PUBREC, 3, 0x87), (PUBACK, 4, 0x10)]


def test_version_3_1_1_has_no_word_for_it_and_is_acknowledged(harness: Harness) -> None:
    watcher = harness.client("w")
    watcher.subscribe("#")
    watcher.take()
    client = harness.client("c")
    client.take()
    publish(client, "no", 0, 0)
    publish(client, "no", 1, 2)
    publish(client, "no", 2, 3)
    harness.sync()
    assert [(first, body) for first, body in client.take()] == [(PUBACK, b"\0\2"), (PUBREC, b"\0\3")]
    client.feed(codec.encode_pubrel(4, 3))
    assert client.take() == [(PUBCOMP, b"\0\3")]
    harness.sync()
    assert watcher.publishes() == []


@pytest.mark.parametrize(("version", "code"), [(4, 0x80), (5, 0x87)])
def test_a_subscription_is_refused(harness: Harness, version: int, code: int) -> None:
    client = harness.client("c", version=version)
    client.take()
    client.subscribe("no/#")
    assert [body[-1] for first, body in client.take() if first == SUBACK] == [code]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("away", [False, True])
def test_permission_is_asked_when_it_is_sent(harness: Harness, rules: Rules, qos: int, away: bool) -> None:
    reader = harness.client("r")
    reader.subscribe("#", qos)
    if away:
        reader.lose()
    rules.unreadable = b"secret"
    writer = harness.client("w", clean=True)
    for topic in ("a/secret", "b"):
        writer.publish(topic, topic.encode(), qos)
    if away:
        reader = harness.client("r")
    reader.drain()
    got = [payload for _, payload, _, _ in reader.publishes()]
    assert got == ([] if away and qos == 0 else [b"b"])
    dropped = harness.broker.fold.tenant("default").counters.dropped
    assert dropped.get(DROP_PERMISSION, 0) == (0 if away and qos == 0 else 1)


def test_a_drop_for_permission_is_the_same_after_a_crash(harness: Harness, rules: Rules) -> None:
    reader = harness.client("r")
    reader.subscribe("#")
    rules.unreadable = b"secret"
    writer = harness.client("w", clean=True)
    for topic in ("a/secret", "b"):
        writer.publish(topic, topic.encode())
    before = reader.publishes()
    harness.crash()
    harness.worker.guard(rules)
    again = harness.client("r").publishes()
    assert [(packet_id, payload) for packet_id, payload, _, _ in again] == [(i, p) for i, p, _, _ in before]


def test_a_will_on_a_forbidden_topic_is_refused(harness: Harness) -> None:
    client = harness.client("c", version=5, will=Will("no", b"", 0, False, b"", 0, -1))
    assert client.take()[0][1][1] == 0x87
    assert client.link.closed


def test_an_answer_is_remembered_until_the_rules_change(harness: Harness, rules: Rules) -> None:
    reader, writer = harness.client("reader"), harness.client("writer")
    reader.subscribe("#")
    for number in range(3):
        if number == 2:
            rules.unreadable = b"new"
            rules.generation += 1
        for topic in ("new", "old"):
            writer.publish(topic, b"%d" % number, qos=0)
    assert [payload for _, payload, _, _ in reader.publishes()] == [b"0", b"0", b"1", b"1", b"2"]


def test_more_topics_than_are_remembered_are_asked_again(harness: Harness) -> None:
    reader, writer = harness.client("reader"), harness.client("writer")
    reader.subscribe("#")
    for _ in range(2):
        for number in range(300):
            writer.publish(f"a/{number}" if number % 2 else f"no/{number}", b"x", qos=0, sync=False)
    harness.sync()
    assert len(reader.publishes()) == 300


def test_long_topics_are_not_remembered(harness: Harness) -> None:
    reader, writer = harness.client("reader"), harness.client("writer")
    reader.subscribe("#")
    for number in range(20):
        writer.publish(f"{'x' * 1000}/{number}", b"x", qos=0, sync=False)
        writer.publish(f"a/{number}", b"x", qos=0, sync=False)
    harness.sync()
    assert len(reader.publishes()) == 40
    asked, told = writer.link.rights, reader.link.rights
    assert asked is not None
    assert told is not None
    for remembered in (told.receive, asked.publish):
        assert sorted(len(topic) for topic in remembered) == [3] * 10 + [4] * 10


def owner(fold: Fold) -> str | None:
    return fold.tenant("default").sessions["c"].owner


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_session_belongs_to_the_first_user_over_a_crash(
    harness: Harness, rules: Rules, snapshot: bool
) -> None:
    harness.client("c").lose()
    assert owner(harness.broker.fold) is None  # nobody in particular
    for user in ("ada", "eve"):
        rules.user = user
        harness.client("c").lose()
        assert owner(harness.broker.fold) == "ada"
        if snapshot:
            harness.take_snapshot()
        harness.crash()
        harness.worker.guard(rules)
        assert owner(harness.broker.fold) == "ada"
    body = BytesWriter()
    for record in records(harness.broker.fold, START_US):
        record.encode_into(body)
    fold = Fold(harness.journal)
    replay = Replay(fold)
    for record in decode_batch(body.getvalue(), 0):
        replay.record(record)
    assert owner(fold) == "ada"


def test_the_name_that_was_found_decides_on_the_type_of_a_session(harness: Harness, rules: Rules) -> None:
    """Not the one that a client writes beside its certificate."""
    harness.worker.settings.application_user_names.append("archive")
    rules.user = "ada"
    for client_id, user in (("claims", "ada"), ("is", "archive")):
        rules.user = user
        link = MemoryLink(harness.worker)
        link.version = 4
        harness.broker.on_connect(link, Connect(4, client_id, False, 0, "archive", b"", None, Properties()))
    sessions = harness.broker.fold.tenant("default").sessions
    assert (sessions["claims"].session_type, sessions["is"].session_type) == (DEVICE, APPLICATION)


def test_a_refused_publish_and_will_are_noted_once_each(harness: Harness, rules: Rules) -> None:
    client = harness.client("c", version=5)
    for qos in (0, 1, 2):
        publish(client, "no", qos, qos)
    harness.client("w", version=5, will=Will("no", b"", 0, False, b"", 0, -1))
    publish(client, "yes", 1, 4)
    harness.sync()
    assert rules.noted == [("c", "publish", b"no")] * 3 + [("w", "will", b"no")]


@pytest.mark.parametrize(("topic", "readable"), [("no/1", True), ("closed/1", False)])
def test_qos_0_asks_both_sides(harness: Harness, rules: Rules, topic: str, readable: bool) -> None:
    publisher, subscriber = harness.client("pub"), harness.client("sub")
    subscriber.subscribe("#")
    rules.unreadable = b"closed"
    publisher.publish(topic, b"x", 0)
    publisher.publish("yes", b"y", 0)
    assert [payload for _, payload, _, _ in subscriber.publishes()] == [b"y"]
    assert (harness.broker.fold.tenant("default").counters.dropped.get(DROP_PERMISSION, 0) == 0) is readable


def test_what_a_connection_remembers_of_answers_is_small() -> None:
    """Topics of 64 KiB, as many as it likes."""
    harness = Harness()
    harness.worker.guard(Rules())
    client = harness.client("c")
    client.subscribe("#")
    for number in range(300):
        client.publish(f"{number}/" + "x" * 60_000, b"x", 0)
        client.publish(f"{number}", b"x", 0)
    rights = client.link.rights
    assert rights is not None
    remembered = [*rights.publish, *rights.receive, rights.published, rights.received]
    assert 0 < sum(map(len, remembered)) < 100_000


class Closed(Rules):
    """`closed` clients may read nothing more from `withdrawn` on."""

    def __init__(self, closed: str) -> None:
        super().__init__()
        self.closed = closed

    def withdraw(self) -> None:
        self.generation += 1

    def may_receive(self, link: Link, topic: bytes) -> bool:
        return self.generation == 0 or link.client_id != self.closed

    def may_subscribe(self, link: Link, topic_filter: str) -> bool:
        return self.generation == 0 or link.client_id != self.closed


def closed_to(client_id: str) -> tuple[Harness, Closed]:
    harness, rules = Harness(), Closed(client_id)
    harness.worker.guard(rules)
    return harness, rules


def drops(harness: Harness, client_id: str) -> dict[str, int]:
    return harness.broker.fold.tenant("default").sessions[client_id].drops_by_name()


@pytest.mark.parametrize("restart", [False, True])
def test_what_is_in_flight_does_not_come_again_to_who_may_not_read_it_any_more(restart: bool) -> None:
    harness, rules = closed_to("c")
    client = harness.client("c", version=5)
    client.subscribe("t", 2)
    publisher = harness.client("p", clean=True)
    for qos in (1, 2, 2):
        publisher.publish("t", b"secret", qos)
    released = client.publishes()[2][0]
    client.feed(codec.encode_pubrec(5, released))
    client.take()
    client.lose()
    publisher.publish("t", b"secret")
    rules.withdraw()
    if restart:
        harness.crash()
        harness.worker.guard(rules)
    again = harness.client("c", version=5)
    assert [first for first, _ in again.take()] == [CONNACK, 0x62]  # PUBREL tells nothing
    assert drops(harness, "c") == {"permission_withdrawn": 3}
    again.feed(codec.encode_pubcomp(5, released))
    queue = harness.broker.fold.tenant("default").sessions["c"].queue
    assert queue is not None
    assert queue.unfinished() == 0


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("strategy", ["round-robin", "least-in-flight"])
def test_a_member_whose_right_is_withdrawn_gets_nothing_of_the_group(strategy: str, restart: bool) -> None:
    harness, rules = closed_to("m1")
    harness.settings.shared_strategy = strategy
    members = {name: harness.client(name, version=5) for name in ("m1", "m2")}
    for member in members.values():
        member.subscribe("$share/g/t", 2)
    rules.withdraw()
    if restart:
        harness.crash()
        harness.worker.guard(rules)
        members = {name: harness.client(name, version=5) for name in members}
    publisher = harness.client("p", clean=True)
    for number in range(9):
        publisher.publish("t", b"%d" % number, number % 3)
    assert members["m1"].publishes() == []
    assert len(members["m2"].publishes()) == 9
    members["m2"].lose()
    publisher.publish("t", b"waits")
    assert members["m1"].publishes() == []
    came = harness.client("m2", version=5).publishes()
    assert came[-1][1] == b"waits"


def test_a_head_that_a_member_may_not_read_goes_to_one_that_may() -> None:
    """The rules of the filter let it draw, those of the topic do not."""

    class Half(Rules):
        def may_receive(self, link: Link, topic: bytes) -> bool:
            return link.client_id != "m1" or topic != b"t/2"

    harness = Harness()
    harness.worker.guard(Half())
    one, two = (harness.client(name, version=5) for name in ("m1", "m2"))
    publisher = harness.client("p", clean=True)
    for member in (one, two):
        member.subscribe("$share/g/t/+", 1)
    for number in range(1, 9):
        publisher.publish(f"t/{1 + number % 2}", b"%d" % number)
    mine, others = one.publishes(), two.publishes()
    assert mine
    assert all(int(payload) % 2 == 0 for _, payload, _, _ in mine)
    assert len(mine) + len(others) == 8
    two.lose()
    publisher.publish("t/2", b"11")
    assert b"11" not in [payload for _, payload, _, _ in one.publishes()]
    assert b"11" in [payload for _, payload, _, _ in harness.client("m2", version=5).publishes()]


def test_qos_2_of_a_group_does_not_come_again_to_who_may_not_read_it_any_more() -> None:
    harness, rules = closed_to("m1")
    member = harness.client("m1", version=5)
    member.subscribe("$share/g/t", 2)
    harness.client("p", clean=True).publish("t", b"secret", 2)
    assert len(member.publishes()) == 1
    member.lose()
    rules.withdraw()
    assert harness.client("m1", version=5).publishes() == []
    session = harness.broker.fold.tenant("default").sessions["m1"]
    assert not draws_of(session)
    counted = harness.broker.fold.tenant("default").counters.dropped
    assert counted[DROP_PERMISSION] == 1
