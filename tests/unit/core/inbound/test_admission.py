"""What the broker does not take, asked directly."""

from __future__ import annotations

import pytest

from headrace.core.inbound.admission import Admission, capped
from headrace.core.ports.settings import BrokerSettings
from headrace.core.state.tenant import Tenant
from headrace.mqtt.packets import NO_EXPIRY, Publish, Will
from headrace.storage.memory import MemoryJournal


@pytest.mark.parametrize(
    ("topic", "payload", "properties", "code"),
    [
        (b"$SYS/x", b"", b"", 0x87),
        (b"$SYSTEM/x", b"", b"", 0),
        (b"t", b"\xff", b"\x01\x01", 0x99),
        (b"t", b"\xff", b"\x01\x00", 0),
        (b"t", b"ok", b"\x01\x01", 0),
        (b"t", b"long", b"", 0x97),
    ],
)
def test_refusal(topic: bytes, payload: bytes, properties: bytes, code: int) -> None:
    settings = BrokerSettings()
    settings.payload_format_check = True
    settings.retained_bytes_max = 4 if payload == b"long" else 1000
    packet = Publish(topic, 1, True, False, 1, properties, NO_EXPIRY, payload)
    assert Admission(settings).refusal(5, Tenant("t", MemoryJournal(), limits=settings), packet) == code


def test_a_will_is_asked_for_the_same() -> None:
    settings = BrokerSettings()
    settings.payload_format_check = True
    admission = Admission(settings)
    assert admission.refusal_of_will(settings, Will("$SYS/x", b"")) == 0x90
    assert admission.refusal_of_will(settings, Will("t", b"\xff", properties=b"\x01\x01")) == 0x99
    assert admission.refusal_of_will(settings, Will("t", b"\xff")) == 0


def test_no_limit_is_no_limit() -> None:
    settings = BrokerSettings()
    settings.retained_messages_max = settings.retained_bytes_max = 0
    assert Admission(settings).keeps(Tenant("t", MemoryJournal(), limits=settings), b"t", 1 << 40, 1 << 40)


@pytest.mark.parametrize(
    ("asked", "longest", "granted"), [(-1, -1, -1), (9, -1, 9), (-1, 5, 5), (3, 5, 3), (9, 5, 5), (9, 0, 0)]
)
def test_a_message_lives_no_longer_than_its_tenant_allows(asked: int, longest: int, granted: int) -> None:
    assert capped(asked, longest) == granted
