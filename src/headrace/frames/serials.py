"""The serial number of a device as an MQTT client id.

Version 1 has one byte: its decimal number. Version 2 has up to 255: clean UTF-8 text stands for itself; anything else,
and text that begins with "0x", is "0x" and the bytes in hexadecimal. So two serial numbers of one version never have
the same client id.
"""

from __future__ import annotations

from typing import Final

from headrace.frames.frame import VERSION_1

HEX_PREFIX: Final = "0x"


def client_id_of(version: int, sn: bytes) -> str:
    """Return the client id of a serial number as it came."""
    if version == VERSION_1:
        return str(sn[0])
    try:
        text = sn.decode("utf-8")
    except UnicodeDecodeError:
        return HEX_PREFIX + sn.hex()
    if text.startswith(HEX_PREFIX) or not _is_clean(text):
        return HEX_PREFIX + sn.hex()
    return text


def _is_clean(text: str) -> bool:
    """Return whether MQTT allows it and asks nobody to reject it: no control characters, no noncharacters (1.5.4)."""
    for char in text:
        code = ord(char)
        if code < 0x20 or 0x7F <= code <= 0x9F or 0xFDD0 <= code <= 0xFDEF or code & 0xFFFE == 0xFFFE:
            return False
    return True


def serial_of(version: int, client_id: str) -> bytes:
    """Return the serial number behind a client id that `client_id_of` has made."""
    if version == VERSION_1:
        return bytes([int(client_id)])
    if client_id.startswith(HEX_PREFIX):
        return bytes.fromhex(client_id[len(HEX_PREFIX) :])
    return client_id.encode("utf-8")
