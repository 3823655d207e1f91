"""As much of the DER encoding (X.690) as certificates and revocation lists are read with."""

from __future__ import annotations

from typing import Final

INTEGER: Final = 0x02
SEQUENCE: Final = 0x30
CONTEXT_0: Final = 0xA0
Element = tuple[int, bytes, bytes]  # tag, content, all of it


def one(der: bytes) -> Element:
    """Return the first element. IndexError where bytes are missing."""
    return elements(der)[0]


def inside(element: Element) -> list[Element]:
    """Return the elements of a sequence."""
    return elements(element[1])


def elements(der: bytes) -> list[Element]:
    """Return the elements that stand one behind the other. IndexError where bytes are missing."""
    found: list[Element] = []
    at = 0
    while at < len(der):
        start, length = at, der[at + 1]
        at += 2
        if length & 0x80:
            count = length & 0x7F
            length = int.from_bytes(der[at : at + count], "big")
            at += count
        if at + length > len(der):
            raise IndexError("it ends too early")
        found.append((der[start], der[at : at + length], der[start : at + length]))
        at += length
    return found
