"""Reason codes have the specification's names."""

from __future__ import annotations

from headrace.mqtt import reason_codes


def test_every_code_has_its_name() -> None:
    constants = {
        value for key, value in vars(reason_codes).items() if key.isupper() and isinstance(value, int)
    }
    spoken = {code for code in constants if code not in {3, 5}}  # CONNACK return codes of 3.x alone
    assert spoken == set(reason_codes.NAMES)


def test_name() -> None:
    assert reason_codes.name(0x87) == "Not authorized"
    assert reason_codes.name(0x7F) == "0x7F"


def test_what_a_3_1_1_client_is_told() -> None:
    assert reason_codes.connack_code_3(reason_codes.SUCCESS) == 0
    assert reason_codes.connack_code_3(reason_codes.UNSUPPORTED_PROTOCOL_VERSION) == 1
    assert reason_codes.connack_code_3(reason_codes.CLIENT_IDENTIFIER_NOT_VALID) == 2
    assert reason_codes.connack_code_3(reason_codes.SERVER_BUSY) == 3
    assert reason_codes.connack_code_3(reason_codes.BAD_USER_NAME_OR_PASSWORD) == 4
    assert reason_codes.connack_code_3(reason_codes.NOT_AUTHORIZED) == 5
