"""What the core says, as bytes of each version: what a version has no words for is left out."""

from __future__ import annotations

import pytest

from harness import Harness
from headrace.mqtt import codec
from headrace.mqtt import reason_codes as rc
from headrace.mqtt.properties import Properties
from headrace.storage.memory import MemoryLink


def link_of(version: int, ready: bool = True) -> MemoryLink:
    link = MemoryLink(Harness().worker)
    link.version = version
    link.ready = ready
    return link


def said(link: MemoryLink) -> bytes:
    link.flush()
    return link.sent


@pytest.mark.parametrize("version", [3, 4, 5])
def test_an_acknowledgement_of_success_is_four_bytes(version: int) -> None:
    link = link_of(version)
    link.puback(1)
    link.pubrec(0x102)
    link.pubrel(0xFFFF)
    link.pubcomp(0x8000)
    assert said(link) == bytes.fromhex("40020001 50020102 6202ffff 70028000")


def test_what_has_been_closed_is_told_nothing() -> None:
    link = link_of(5)
    link.closed = True
    link.puback(1)
    link.pingresp()
    assert said(link) == b""


@pytest.mark.parametrize(("version", "expected"), [(4, "40020007 50020007"), (5, "4003000710 5003000710")])
def test_a_reason_code_is_for_version_5(version: int, expected: str) -> None:
    link = link_of(version)
    for qos in (1, 2):
        link.answer(qos, 7, rc.NO_MATCHING_SUBSCRIBERS, None)
    assert said(link) == bytes.fromhex(expected)


@pytest.mark.parametrize(
    ("version", "ready", "expected"), [(5, True, "e0018e"), (5, False, ""), (4, True, "")]
)
def test_a_disconnect_is_for_version_5_behind_its_connack(version: int, ready: bool, expected: str) -> None:
    link = link_of(version, ready)
    link.disconnect(rc.SESSION_TAKEN_OVER)
    assert said(link) == bytes.fromhex(expected)


@pytest.mark.parametrize(
    ("version", "code", "returned"),
    [
        (5, rc.QUOTA_EXCEEDED, rc.QUOTA_EXCEEDED),
        (4, rc.QUOTA_EXCEEDED, rc.CONNACK_SERVER_UNAVAILABLE),
        (4, rc.CLIENT_IDENTIFIER_NOT_VALID, rc.CONNACK_IDENTIFIER_REJECTED),
        (3, rc.BANNED, rc.CONNACK_NOT_AUTHORIZED),
    ],
)
def test_a_refusal_has_the_code_of_its_version(version: int, code: int, returned: int) -> None:
    link = link_of(version)
    link.reject(code)
    assert said(link) == codec.encode_connack(version, False, returned)


def test_a_refusal_that_would_be_too_large_is_not_sent() -> None:
    link = link_of(5)
    link.max_packet_size = 4
    link.reject(rc.NOT_AUTHORIZED)
    assert said(link) == b""


def test_whether_a_connack_fits_and_that_3_1_has_no_flag_for_a_session() -> None:
    answer = Properties()
    answer.receive_maximum = 10
    link = link_of(5)
    size = len(codec.encode_connack(5, False, 0, answer))
    for most, fits in ((0, True), (size, True), (size - 1, False)):
        link.max_packet_size = most
        assert link.fits(answer) == fits
    old = link_of(3)
    old.accept(True, answer)
    assert said(old) == codec.encode_connack(3, False, 0)


@pytest.mark.parametrize(("version", "failed"), [(4, 0x80), (5, rc.NOT_AUTHORIZED)])
def test_a_suback_has_a_code_for_each_filter(version: int, failed: int) -> None:
    link = link_of(version)
    link.suback(9, [1, rc.NOT_AUTHORIZED])
    assert said(link).endswith(bytes((1, failed)))
    link.unsuback(9, [0])
    assert said(link).endswith(codec.encode_unsuback(version, 9, [0]))
