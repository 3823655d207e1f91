"""Errors carry their answer."""

from __future__ import annotations

import pytest

from headrace.errors import (
    ConfigError,
    HeadraceError,
    MalformedPacket,
    PacketTooLarge,
    ProtocolError,
    forget_calls,
)


def test_a_protocol_error_says_its_code() -> None:
    error = ProtocolError(0x82, "second CONNECT")
    assert str(error) == "second CONNECT (0x82)"
    assert (error.reason_code, error.connack_code, error.silent) == (0x82, 0, False)


def test_malformed_packet_is_a_protocol_error_with_0x81() -> None:
    with pytest.raises(ProtocolError) as caught:
        raise MalformedPacket("cut")
    assert caught.value.reason_code == 0x81
    assert caught.value.message == "cut"


def test_packet_too_large_names_both_sizes() -> None:
    error = PacketTooLarge(100, 64)
    assert error.reason_code == 0x95
    assert str(error) == "packet of 100 bytes, 64 are accepted (0x95)"


def test_a_retry_helps_only_where_a_class_says_so() -> None:
    class Busy(HeadraceError):
        retry_helps = True

    assert not ConfigError("x").retry_helps
    assert Busy("x").retry_helps


def test_an_error_that_forgets_its_calls_forgets_those_of_its_causes_too() -> None:
    def fail() -> None:
        try:
            raise OSError("first")
        except OSError as error:
            raise ConfigError("second") from error

    with pytest.raises(ConfigError) as caught:
        fail()
    error = caught.value
    cause = error.__cause__
    forget_calls(error)
    assert cause is not None
    assert (error.__traceback__, cause.__traceback__) == (None, None)
    assert str(error) == "second"
