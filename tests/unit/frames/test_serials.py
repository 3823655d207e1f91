"""Serial numbers as client ids: readable where they are text, and never the same for two devices of one version."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.frames.serials import client_id_of, serial_of


@pytest.mark.parametrize(
    ("version", "sn", "client_id"),
    [
        (1, b"\x00", "0"),
        (1, b"\xff", "255"),
        (2, b"door-1", "door-1"),
        (2, "Tür".encode(), "Tür"),
        (2, b"\xff\x01", "0xff01"),
        (2, b"a\nb", "0x610a62"),
        (2, b"\xc2\x85", "0xc285"),
        (2, "\ufdd0".encode(), "0xefb790"),
        (2, "\uffff".encode(), "0xefbfbf"),
        (2, b"0x41", "0x30783431"),
    ],
)
def test_the_client_id_of_a_serial_number(version: int, sn: bytes, client_id: str) -> None:
    assert client_id_of(version, sn) == client_id


@given(st.binary(min_size=1, max_size=255))
def test_a_client_id_leads_back_to_its_serial_number(sn: bytes) -> None:
    assert serial_of(2, client_id_of(2, sn)) == sn
    assert serial_of(1, client_id_of(1, sn[:1])) == sn[:1]
