"""Waiting for a started process to say that it is ready."""

from __future__ import annotations

import socket

import pytest

from headrace.testing.readiness import Readiness


def send(address: str, text: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(text.encode(), address)


def test_it_returns_when_ready_was_said_and_passes_over_the_rest() -> None:
    with Readiness() as readiness:
        for text in ("STATUS=READY=1 is near", "WATCHDOG=1", "READY=1\nSTATUS=accepts clients"):
            send(readiness.address, text)
        readiness.wait(10, lambda: False)


def test_it_returns_when_the_process_has_ended() -> None:
    with Readiness() as readiness:
        readiness.wait(10, lambda: True)


def test_it_gives_up_in_time() -> None:
    with Readiness() as readiness, pytest.raises(TimeoutError):
        readiness.wait(0.1, lambda: False)


def test_its_address_fits_into_every_system_s_limit_and_goes_with_it() -> None:
    with Readiness() as readiness:
        address = readiness.address
        assert len(address.encode()) < 104
    with pytest.raises(OSError):
        send(address, "READY=1")
