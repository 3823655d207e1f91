"""The link to the remote broker: handshake, both directions, and what a cut or a crash leaves."""

from __future__ import annotations

import pytest

from harness import Harness
from headrace.bridge.suspect import ALONE_AFTER, GIVEN_UP_AFTER, Suspect
from headrace.bridge.topics import Rule
from headrace.core.ports.settings import BrokerSettings
from headrace.core.records.message import Message
from headrace.core.records.record import DROP_NOT_ACCEPTED, DROP_RETAINED_LIMIT
from headrace.mqtt import codec
from headrace.mqtt import reason_codes as rc
from headrace.mqtt.data_types import shown_name, text
from headrace.mqtt.properties import Properties
from unit.bridge.remote import (
    CONNECT,
    DISCONNECT,
    PINGREQ,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBSCRIBE,
    TRACE,
    Remote,
)

OUT = [Rule("up/#", "out", 2, "", "there/")]


def limits(**values: int) -> Properties:
    found = Properties()
    for name, value in values.items():
        setattr(found, name, value)
    return found


def payloads(remote: Remote) -> list[bytes]:
    return [payload for _, payload, _, _ in remote.publishes()]


def test_messages_flow_only_when_the_handshake_is_answered() -> None:
    harness = Harness()
    remote = Remote(harness, state_topic="state/us")
    harness.client("p").publish("up/x", b"1")
    assert remote.kinds() == [CONNECT]
    remote.feed(codec.encode_connack(5, False, 0))
    sent = remote.take()
    assert [first >> 4 for first, _ in sent] == [PUBLISH, SUBSCRIBE]
    assert sent[0][0] & 0x07 == 0x03, "QoS 1, retained"
    assert sent[1][1][-1] == 0x1E, "QoS 2, No Local, Retain As Published, retained only when new"
    remote.feed(codec.encode_suback(5, 65_534, [2]))
    assert remote.kinds() == []
    assert remote.up == []
    remote.feed(codec.encode_puback(5, 65_535))
    assert remote.up == [False]
    assert remote.publishes() == [("there/up/x", b"1", 1, False)]


def test_subscribe_waits_until_the_attached_session_is_durable() -> None:
    harness = Harness()
    remote = Remote(harness)
    remote.take()
    remote.feed(codec.encode_connack(5, False, 0), sync=False)
    harness.worker.end_tick()
    assert remote.kinds() == []
    harness.sync()
    assert remote.kinds() == [SUBSCRIBE]


def test_a_message_is_acknowledged_here_when_it_is_acknowledged_there() -> None:
    harness = Harness()
    remote = Remote(harness, rules=OUT)
    remote.accept()
    publisher = harness.client("p")
    for number in range(3):
        publisher.publish("up/x", b"%d" % number)
    ids = [packet_id for _, _, packet_id, _ in remote.publishes()]
    remote.feed(codec.encode_puback(5, ids[1]))
    remote.lose()
    harness.crash()
    again = Remote(harness, rules=OUT)
    again.accept(present=True)
    found = again.publishes()
    assert [(p, d) for _, p, _, d in found] == [(b"0", True), (b"2", True)]
    assert [packet_id for _, _, packet_id, _ in found] == [ids[0], ids[2]], "the same packet ids"


def test_qos_2_goes_on_with_pubrel_after_a_crash() -> None:
    harness = Harness()
    remote = Remote(harness, rules=OUT)
    remote.accept()
    harness.client("p").publish("up/x", b"x", qos=2)
    [(_, _, packet_id, _)] = remote.publishes()
    remote.feed(codec.encode_pubrec(5, packet_id), sync=False)
    harness.worker.end_tick()
    assert remote.kinds() == [], "PUBREL waits until PUBREC is durable"
    harness.sync()
    assert remote.kinds() == [PUBREL]
    harness.crash()
    again = Remote(harness, rules=OUT)
    again.accept(present=True)
    assert again.take() == [(0x62, packet_id.to_bytes(2, "big"))]
    again.feed(codec.encode_pubcomp(5, packet_id))
    assert again.session.outbound().unfinished() == 0


def test_what_comes_in_is_acknowledged_when_it_is_durable() -> None:
    harness = Harness()
    reader = harness.client("reader")
    reader.subscribe("here/#", 2)
    remote = Remote(harness)
    remote.accept()
    remote.send("down/x", b"1", 7, sync=False)
    harness.worker.end_tick()
    assert remote.kinds() == []
    harness.sync()
    assert remote.take() == [(0x40, b"\x00\x07")]
    remote.send("down/x", b"2", 8, qos=2)
    remote.send("down/x", b"2", 8, qos=2, dup=True)
    assert remote.kinds() == [PUBREC, PUBREC]
    remote.feed(codec.encode_pubrel(5, 8))
    assert remote.kinds() == [PUBCOMP]
    assert [payload for _, payload, _, _ in reader.publishes()] == [b"1", b"2"]


@pytest.mark.parametrize("crash", [False, True])
def test_packet_ids_of_a_session_that_the_remote_forgot_mean_nothing(crash: bool) -> None:
    """Else its next QoS 2 message under an id that was not released would be taken for a repetition, and lost."""
    harness = Harness()
    remote = Remote(harness)
    remote.accept()
    remote.send("down/x", b"old", 1, qos=2)
    if crash:
        harness.crash()
    else:
        remote.lose()
    reader = harness.client("reader")
    reader.subscribe("here/#", 2)
    again = Remote(harness)
    again.accept(present=False)
    again.send("down/x", b"new", 1, qos=2)
    assert [payload for _, payload, _, _ in reader.publishes()] == [b"new"]
    harness.crash()
    third = Remote(harness)
    third.accept(present=True)
    third.send("down/x", b"new", 1, qos=2, dup=True)
    assert third.kinds() == [PUBREC]


def test_the_limits_of_the_remote_broker_are_kept() -> None:
    harness = Harness()
    remote = Remote(harness, rules=OUT)
    remote.accept(properties=limits(receive_maximum=2, maximum_packet_size=100))
    publisher = harness.client("p")
    publisher.publish("up/x", b"x" * 100)
    for number in range(4):
        publisher.publish("up/x", b"%d" % number)
    found = remote.publishes()
    assert [payload for _, payload, _, _ in found] == [b"0", b"1"]
    assert remote.session.drops_by_name() == {"too_large_for_client": 1}
    remote.feed(codec.encode_puback(5, found[0][2]))
    assert payloads(remote) == [b"2"]


def test_a_remote_broker_with_a_lower_qos_is_told_apart() -> None:
    remote = Remote(Harness(), rules=OUT)
    remote.feed(codec.encode_connack(5, False, 0, limits(maximum_qos=1)))
    remote.lose()
    assert "QoS 1 at most" in remote.ended[0]


@pytest.mark.parametrize(
    ("version", "code", "words"),
    [(5, rc.BAD_USER_NAME_OR_PASSWORD, "refused: "), (4, 5, "not authorized"), (4, 77, "return code 77")],
)
def test_a_refusal_is_told_in_words(version: int, code: int, words: str) -> None:
    remote = Remote(Harness(), version)
    remote.feed(codec.encode_connack(version, False, code))
    assert remote.transport.closed
    remote.lose()
    assert words in remote.ended[0]
    assert remote.session.link is None


def test_what_came_through_this_broker_before_is_settled_and_dropped() -> None:
    harness = Harness()
    reader = harness.client("reader")
    reader.subscribe("#", 2)
    remote = Remote(harness)
    remote.accept()
    mine = b"\x26" + text("k") + text("v") + TRACE
    remote.send("down/x", b"loop", 5, properties=mine)
    remote.send("down/x", b"loop", 6, qos=2, properties=mine)
    remote.feed(codec.encode_pubrel(5, 6))
    assert remote.kinds() == [PUBACK, PUBREC, PUBCOMP]
    assert (remote.counters.loops, remote.counters.received) == (2, 2)
    assert reader.publishes() == []


def test_what_comes_in_does_not_go_out_again() -> None:
    remote = Remote(harness := Harness(), rules=[Rule("#", "both", 2)])
    remote.accept()
    remote.send("t", b"x", 5)
    assert remote.kinds() == [PUBACK]
    harness.client("p").publish("t", b"y")
    assert payloads(remote) == [b"y"]


def test_what_no_rule_lets_in_is_settled_and_counted() -> None:
    remote = Remote(Harness())
    remote.accept()
    remote.send("other", b"x", 5)
    assert remote.kinds() == [PUBACK]
    assert remote.counters.unmatched == 1


def test_properties_pass_except_the_subscription_identifier() -> None:
    harness = Harness()
    remote = Remote(harness)
    remote.accept()
    user = b"\x26" + text("k") + text("v\x0b")
    remote.send("down/x", b"x", 5, properties=user + b"\x0b\x07")
    assert [m.properties for m in harness.journal.records if isinstance(m, Message)] == [user + TRACE]


def sequenced(sequence: int) -> bytes:
    pairs = (("producer-id", "p"), ("producer-sequence", str(sequence)), ("k", "v"))
    return b"".join(b"\x26" + text(name) + text(value) for name, value in pairs)


@pytest.mark.parametrize("qos", [1, 2])
def test_sequences_of_producers_do_not_cross_and_no_message_stands_for_another(qos: int) -> None:
    """Under the client id of a bridge those of all its devices would be one producer's, here and there."""
    harness = Harness()
    remote = Remote(harness)
    remote.accept()
    for device in ("one", "two"):
        publisher = harness.client(device, version=5)
        for sequence in (1, 2, 2):
            publisher.publish("up/x", device.encode(), qos, properties=sequenced(sequence))
    sent = [body for first, body in remote.take() if first >> 4 == PUBLISH]
    assert [body[-3:] for body in sent] == [b"one", b"one", b"two", b"two"]
    assert not any(b"producer-" in body for body in sent)
    assert all(text("k") + text("v") + TRACE in body for body in sent)
    for packet_id, sequence in enumerate((1 << 62, 1, 1), 5):
        remote.send("down/x", b"in", packet_id, qos, properties=sequenced(sequence))
    inward = [m for m in harness.journal.records if isinstance(m, Message) and m.payload == b"in"]
    assert [m.properties for m in inward] == [b"\x26" + text("k") + text("v") + TRACE] * 3


def test_a_backlog_of_a_rule_that_is_gone_does_not_leave() -> None:
    harness = Harness()
    Remote(harness, rules=[Rule("old/#", "out", 1)]).lose()
    harness.client("p").publish("old/x", b"x")
    remote = Remote(harness, rules=OUT)
    remote.accept()
    harness.client("p").publish("up/x", b"y")
    assert payloads(remote) == [b"y"]
    assert remote.session.drops_by_name() == {"permission_withdrawn": 1}


def test_retained_messages_cross_once_and_those_of_qos_0_at_every_connection() -> None:
    harness = Harness()
    publisher = harness.client("p")
    publisher.publish("up/a", b"kept", retain=True)
    publisher.publish("up/b", b"loose", qos=0, retain=True)
    remote = Remote(harness, rules=OUT)
    remote.accept()
    sent = {first & 7: body for first, body in remote.take()}
    assert sorted(sent) == [1, 3]
    assert sent[1].endswith(b"loose")
    assert sent[3].endswith(b"kept")
    remote.feed(codec.encode_puback(5, 1))
    remote.lose()
    again = Remote(harness, rules=OUT)
    again.accept(present=True)
    assert [(first & 7, body[-5:]) for first, body in again.take()] == [(1, b"loose")]


def test_the_live_retain_flag_crosses() -> None:
    harness = Harness()
    remote = Remote(harness, rules=OUT)
    remote.accept()
    harness.client("p").publish("up/x", b"x", retain=True)
    assert [first & 1 for first, _ in remote.take()] == [1]


def test_keep_alive_asks_and_gives_up_without_an_answer() -> None:
    harness = Harness()
    remote = Remote(harness, rules=OUT, keep_alive_s=10)
    remote.accept()
    harness.advance(10.5)
    assert remote.kinds() == [PINGREQ]
    remote.feed(codec.PINGRESP)
    harness.advance(10.5)
    assert remote.kinds() == [PINGREQ]
    harness.advance(10.5)
    assert remote.transport.aborted
    remote.lose()
    assert "PINGRESP" in remote.ended[0]


def test_the_server_keep_alive_counts() -> None:
    harness = Harness()
    remote = Remote(harness, rules=OUT, keep_alive_s=100)
    remote.accept(properties=limits(server_keep_alive=5))
    harness.advance(5.5)
    assert remote.kinds() == [PINGREQ]


def test_no_ping_is_missed_while_we_do_not_read() -> None:
    harness = Harness()
    remote = Remote(harness, rules=OUT, keep_alive_s=10)
    remote.accept()
    remote.link.pause_reading()
    for _ in range(3):
        harness.advance(10.5)
    assert not remote.transport.aborted
    remote.link.resume_reading()
    assert remote.transport.reading


def test_a_remote_broker_that_breaks_the_protocol_costs_its_connection() -> None:
    harness = Harness()
    remote = Remote(harness)
    remote.accept()
    remote.feed(b"\xff\xff\xff\xff\xff\xff")
    assert remote.kinds() == []
    assert remote.transport.closed
    remote.lose()
    assert "protocol error" in remote.ended[0]
    assert remote.session.link is None


def test_a_disconnect_of_the_remote_broker_says_why() -> None:
    remote = Remote(Harness())
    remote.accept()
    remote.feed(codec.encode_disconnect(5, rc.SERVER_SHUTTING_DOWN))
    remote.lose()
    assert "shutting down" in remote.ended[0].lower()


def test_goodbye_takes_back_what_was_said_and_not_yet_acknowledged() -> None:
    harness = Harness()
    remote = Remote(harness, state_topic="state/us")
    remote.feed(codec.encode_connack(5, False, 0))
    remote.take()
    remote.link.say_goodbye()
    (first, body), (last, _) = remote.take()
    assert (first, last >> 4) == (0x33, DISCONNECT)
    assert body.endswith(b"0")
    assert (65_533).to_bytes(2, "big") in body, (
        "neither the id of the state that is on its way nor that of SUBSCRIBE"
    )


def test_goodbye_tells_the_state_and_disconnects() -> None:
    harness = Harness()
    remote = Remote(harness, rules=OUT, state_topic="state/us")
    remote.feed(codec.encode_connack(5, False, 0))
    remote.feed(codec.encode_puback(5, 65_535))
    remote.take()
    remote.link.say_goodbye()
    sent = remote.take()
    assert [first >> 4 for first, _ in sent] == [PUBLISH, DISCONNECT]
    assert sent[0][1].endswith(b"0")
    assert sent[1] == (0xE0, b"")
    assert remote.transport.closed


def test_a_refused_filter_does_not_keep_the_others_from_working() -> None:
    remote = Remote(Harness())
    remote.feed(codec.encode_connack(5, False, 0))
    remote.take()
    remote.feed(codec.encode_suback(5, 65_534, [rc.NOT_AUTHORIZED]))
    assert remote.link.refused_filters == ["down/#"]
    assert remote.up == [False]


def test_a_slow_remote_broker_leaves_the_backlog_in_the_journal() -> None:
    harness = Harness()
    remote = Remote(harness, rules=OUT)
    remote.accept()
    remote.link.pause_writing()
    publisher = harness.client("p")
    for number in range(3):
        publisher.publish("up/x", b"%d" % number)
    assert remote.kinds() == []
    remote.link.resume_writing()
    assert payloads(remote) == [b"0", b"1", b"2"]


def test_a_payload_that_is_refused_here_does_not_end_the_connection() -> None:
    settings = BrokerSettings()
    settings.payload_format_check = True
    harness = Harness(settings)
    remote = Remote(harness)
    remote.accept()
    for qos, packet_id in ((0, 0), (1, 5)):
        remote.send("down/x", b"\xff", packet_id, qos=qos, properties=b"\x01\x01")
    assert remote.take() == [(0x40, b"\x00\x05\x99")]
    assert not remote.transport.closed


def test_subscribe_has_a_packet_id_that_no_message_in_flight_has() -> None:
    settings = BrokerSettings()
    settings.direct_ids = 4
    harness = Harness(settings)
    rules = [*OUT, Rule("down/#", "in", 1, "", "")]
    remote = Remote(harness, rules=rules)
    remote.accept()
    publisher = harness.client("p")
    for number in range(12):
        publisher.publish("up/x", b"%d" % number)
    ids = {packet_id for _, _, packet_id, _ in remote.publishes()}
    assert len(ids) == 12
    assert 65_535 not in ids
    assert 65_534 in ids
    remote.lose()
    again = Remote(harness, rules=rules)
    again.feed(codec.encode_connack(5, True, 0))
    (subscribe,) = [body for first, body in again.take() if first >> 4 == SUBSCRIBE]
    packet_id = int.from_bytes(subscribe[:2], "big")
    assert packet_id not in ids
    again.feed(codec.encode_suback(5, packet_id, [1]))
    assert {packet_id for _, _, packet_id, _ in again.publishes()} == ids


# Odd packets: one of them costs the others nothing, and the log can name it

ODD = ["down/\x01", "down/\x7f", "down/\x85/x", "down/\ufffe", "down/\ufdd0", "down/\U0010ffff"]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("odd", ODD)
def test_an_odd_topic_that_may_be_dropped_is_dropped_and_named(odd: str, qos: int, version: int) -> None:
    harness = Harness()
    reader = harness.client("reader")
    reader.subscribe("#", 2)
    remote = Remote(harness, version)
    remote.accept()
    for number, topic in enumerate(["down/a", odd, odd, "down/b"], 5):
        remote.send(topic, b"x", number, qos, retain=True)
    assert not remote.transport.closed
    assert [m.topic for m in harness.journal.records if isinstance(m, Message)] == [
        b"here/down/a",
        b"here/down/b",
    ]
    answers = [(first >> 4, body[2:3] if len(body) > 2 else b"") for first, body in remote.take()]
    refused = b"\x90" if version == 5 else b""
    kind = {1: PUBACK, 2: PUBREC}.get(qos, 0)
    wanted = [(kind, code) for code in (b"", refused, refused, b"")] if qos else []
    assert [(k, code if code >= b"\x80" else b"") for k, code in answers] == wanted
    assert remote.counters.odd == 2
    assert harness.broker.fold.tenant("default").counters.dropped == {DROP_NOT_ACCEPTED: 2}
    assert {topic for _, topic, _ in remote.drops} == {ascii(odd)}


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_an_alias_of_an_odd_topic_stands_for_an_odd_topic(qos: int) -> None:
    harness = Harness()
    remote = Remote(harness)
    remote.accept()
    alias = b"\x23\x00\x01"
    for number, topic in enumerate(["down/\x01", "", "down/a", ""], 5):
        remote.send(topic, b"%d" % number, number, qos, properties=alias, retain=True)
    assert not remote.transport.closed
    assert [(m.topic, m.payload) for m in harness.journal.records if isinstance(m, Message)] == [
        (b"here/down/a", b"7"),
        (b"here/down/a", b"8"),
    ]
    assert remote.counters.odd == 2


def test_an_odd_response_topic_costs_its_message_alone() -> None:
    harness = Harness()
    remote = Remote(harness)
    remote.accept()
    odd = b"\x08" + text("answers/\x02")
    remote.send("down/a", b"odd", 5, 1, properties=odd + b"\x23\x00\x01")
    remote.send("", b"by alias", 6, 1, properties=b"\x23\x00\x01")
    assert [m.payload for m in harness.journal.records if isinstance(m, Message)] == [b"by alias"]
    assert (remote.transport.closed, remote.counters.odd) == (False, 1)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("topic", [b"down/+/x", b"down/#", b"down/a\x00b", b"down/\xff", b"down/\x01/+"])
def test_a_topic_that_must_end_the_connection_is_named(topic: bytes, qos: int, version: int) -> None:
    remote = Remote(Harness(), version)
    remote.accept()
    remote.send("down/a", b"x", 4, 1)
    remote.feed(codec.encode_publish(version, topic, b"x", qos, False, False, 5))
    assert remote.transport.closed
    remote.lose()
    assert len(remote.ended) == 1
    assert shown_name(topic) in remote.ended[0]
    assert PUBACK in remote.kinds()  # what came before is ours


def test_a_topic_that_is_too_deep_here_costs_its_message_alone() -> None:
    harness = Harness()
    remote = Remote(harness)
    remote.accept()
    for number, topic in enumerate(["down/" + "/" * 300, "down/a"], 5):
        remote.send(topic, b"x", number)
    assert [m.topic for m in harness.journal.records if isinstance(m, Message)] == [b"here/down/a"]
    assert next(body[2:3] for _, body in remote.take()) == b"\x90"
    assert harness.broker.fold.tenant("default").counters.dropped == {DROP_NOT_ACCEPTED: 1}


@pytest.mark.parametrize("code", [0x80, 0x83, 0x87, 0x90, 0x97, 0x99])
@pytest.mark.parametrize("qos", [1, 2])
def test_what_the_remote_broker_refuses_is_named_and_never_sent_again(qos: int, code: int) -> None:
    harness = Harness()
    remote = Remote(harness)
    remote.accept()
    publisher = harness.client("p")
    publisher.publish("up/bad", b"bad", qos)
    publisher.publish("up/good", b"good", qos)
    bad, _ = remote.publishes()
    answer = codec.encode_puback if qos == 1 else codec.encode_pubrec
    remote.feed(answer(5, bad[2], code))
    assert remote.drops == [("refused by the remote broker", "'there/up/bad'", rc.name(code))]
    assert remote.session.drops_by_name() == {"refused_by_client": 1}
    remote.lose()
    again = Remote(harness)
    again.accept()
    assert payloads(again) == [b"good"]


class Choosy:
    """A remote broker that closes the connection at some payloads, and acknowledges the others."""

    def __init__(self, harness: Harness, poison: set[bytes], code: int | None, is_prompt: bool) -> None:
        self.harness = harness
        self.poison = poison
        self.code = code
        self.is_prompt = is_prompt  # acknowledges what came before, although it closes
        self.suspect = Suspect()
        self.received: list[bytes] = []
        self.drops: list[tuple[str, str, str]] = []
        self.connections = 0

    def connect(self, qos: int) -> bool:
        """Hold one connection until nothing comes any more; False: it was closed here."""
        self.connections += 1
        remote = Remote(self.harness, rules=OUT, suspect=self.suspect)
        remote.accept()
        stayed = self._serve(remote, qos)
        self.harness.sync()
        self.drops += remote.drops
        remote.lose()
        return stayed

    def _serve(self, remote: Remote, qos: int) -> bool:
        while packets := remote.take():
            answers = []
            for first, body in packets:
                if first >> 4 == PUBREL:
                    answers.append(codec.encode_pubcomp(5, int.from_bytes(body[:2], "big")))
                    continue
                at = 2 + int.from_bytes(body[:2], "big")
                packet_id, payload = int.from_bytes(body[at : at + 2], "big"), body[at + 3 + body[at + 2] :]
                if payload in self.poison:
                    for encoded in answers if self.is_prompt else []:
                        remote.feed(encoded)
                    if self.code is not None:
                        remote.feed(codec.encode_disconnect(5, self.code))
                    return False
                self.received.append(payload)
                answer = codec.encode_puback if qos == 1 else codec.encode_pubrec
                answers.append(answer(5, packet_id))
            for encoded in answers:
                remote.feed(encoded)
        return True


@pytest.mark.parametrize("is_prompt", [True, False])
@pytest.mark.parametrize("code", [None, rc.TOPIC_NAME_INVALID, rc.NOT_AUTHORIZED])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_at_which_the_remote_broker_closes_is_given_up(
    qos: int, code: int | None, is_prompt: bool
) -> None:
    """Each of them alone, wherever they stand; all the others arrive."""
    harness = Harness()
    Remote(harness, rules=OUT).lose()
    publisher = harness.client("p")
    messages = [b"bad 1", b"a", b"b", b"bad 2", b"bad 3", b"c"]
    for payload in messages:
        publisher.publish(f"up/{payload.decode()}", payload, qos)
    remote = Choosy(harness, {payload for payload in messages if payload.startswith(b"bad")}, code, is_prompt)
    while not remote.connect(qos):
        assert remote.connections <= 3 * (GIVEN_UP_AFTER + 3)
    assert sorted(set(remote.received)) == [b"a", b"b", b"c"]
    assert [topic for how, topic, _ in remote.drops if how == "given up"] == [
        f"'there/up/bad {number}'" for number in (1, 2, 3)
    ]
    session = harness.broker.fold.tenant("default").sessions["$bridge/b"]
    assert session.drops_by_name() == {"refused_by_client": 3}
    assert session.outbound().unfinished() == 0


@pytest.mark.parametrize("code", [rc.SESSION_TAKEN_OVER, rc.SERVER_SHUTTING_DOWN, rc.SERVER_BUSY, None])
def test_no_message_is_given_up_because_connections_end(code: int | None) -> None:
    """For a reason of the connection, or for another message each time, or not by the remote broker."""
    harness = Harness()
    suspect = Suspect()
    publisher = harness.client("p")
    Remote(harness, rules=OUT).lose()
    publisher.publish("up/x", b"x")
    for _ in range(3 * GIVEN_UP_AFTER):
        remote = Remote(harness, rules=OUT, suspect=suspect)
        remote.accept()
        assert payloads(remote) == [b"x"]
        if code is None:
            remote.link.connection_lost(TimeoutError("no route"))
            harness.sync()
        else:
            remote.feed(codec.encode_disconnect(5, code))
            remote.lose()
    assert remote.session.drops_by_name() == {}
    for number in range(3 * GIVEN_UP_AFTER):  # each time it takes one and closes at the next
        remote = Remote(harness, rules=OUT, suspect=suspect)
        remote.accept()
        publisher.publish("up/x", b"%d" % number)
        remote.feed(codec.encode_puback(5, remote.publishes()[0][2]))
        remote.lose()
    assert remote.session.drops_by_name() == {}


def test_no_message_is_blamed_for_one_at_qos_0() -> None:
    """What is under suspicion goes alone until it has its answer."""
    harness = Harness()
    suspect = Suspect()
    publisher = harness.client("p")
    Remote(harness, rules=OUT).lose()
    publisher.publish("up/x", b"innocent")
    for _ in range(GIVEN_UP_AFTER - 1):
        remote = Remote(harness, rules=OUT, suspect=suspect)
        remote.accept()
        publisher.publish("up/x", b"noise", 0)
        found = remote.take()
        is_first = [body[-5:] == b"noise" for first, body in found if first >> 4 == PUBLISH]
        assert is_first in ([False, True], [False])
        remote.lose()
    assert is_first == [False]
    assert remote.session.drops_by_name()["qos0_client_slow"] == GIVEN_UP_AFTER - 1 - ALONE_AFTER
    remote = Remote(harness, rules=OUT, suspect=suspect)
    remote.accept()
    remote.feed(codec.encode_puback(5, remote.publishes()[0][2]))
    publisher.publish("up/x", b"noise", 0)
    assert PUBLISH in remote.kinds()


def test_retained_messages_of_qos_0_do_not_close_each_connection_for_ever() -> None:
    harness = Harness()
    suspect = Suspect()
    publisher = harness.client("p")
    Remote(harness, rules=OUT).lose()
    publisher.publish("up/r", b"r", 0, retain=True)
    sent = []
    for _ in range(GIVEN_UP_AFTER + 1):
        remote = Remote(harness, rules=OUT, suspect=suspect)
        remote.accept()
        sent.append(PUBLISH in remote.kinds())
        remote.lose()
    assert sent == [True] * GIVEN_UP_AFTER + [False]
    assert [how for how, _, _ in remote.drops] == ["left out"]


def test_what_the_remote_broker_had_not_answered_when_it_closed_is_named() -> None:
    remote = Remote(Harness(), state_topic="$SYS/state")
    remote.feed(codec.encode_connack(5, False, 0))
    remote.lose()
    assert "'$SYS/state'" in remote.ended[0]
    remote = Remote(Harness())
    remote.feed(codec.encode_connack(5, False, 0))
    remote.lose()
    assert "SUBSCRIBE to 'down/#'" in remote.ended[0]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_clients_of_the_tenant_cannot_have_ends_no_bridge(version: int, qos: int) -> None:
    """The remote broker was told of nothing: what it passes on is taken, and not kept."""
    harness = Harness()
    remote = Remote(harness, version)
    remote.accept()
    tenant = harness.broker.fold.tenant("default")
    tenant.limits.maximum_qos, tenant.limits.retain_available = 0, False
    reader = harness.client("reader")
    reader.subscribe("here/#", 0)
    for number in (5, 6):
        remote.feed(codec.encode_publish(version, b"down/a", b"x", qos, True, False, number if qos else 0))
    assert not remote.link.closed
    assert [payload for _, payload, _, _ in reader.publishes()] == [b"x", b"x"]
    assert (len(tenant.retained), tenant.counters.dropped) == (0, {DROP_RETAINED_LIMIT: 2})
    answers = [body for first, body in remote.take() if first >> 4 in (PUBACK, PUBREC)]
    assert [body[2:] for body in answers] == ([b"", b""] if qos else [])
