"""Limits of a user as clients meet them, changed by SIGHUP."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker_process import BrokerProcess, make_broker
from e2e.conftest import finish
from e2e.raw import RawClient
from e2e.wire import DISCONNECT, SUBACK

pytestmark = pytest.mark.skipif("__import__('broker_process').UNDER_AUDIT != 'headrace'")


class Limited:
    """A broker whose limits come from a file."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "headrace.toml"
        self.write("user_connections_max = 2", "user_subscriptions_max = 3")
        self.broker: BrokerProcess = make_broker(
            folder / "broker", {"durability": "none"}, ["--config", str(self.file)]
        )

    def write(self, *limits: str) -> None:
        self.file.write_text("\n".join(["[limits]", *limits, ""]), encoding="utf-8")

    def reload(self, said: str) -> None:
        seen = len(self.broker.lines)
        os.kill(self.broker.pid, signal.SIGHUP)
        self.broker.wait_for_line(said, after=seen)


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Limited]:
    made = Limited(tmp_path)
    made.broker.start()
    try:
        yield made
    finally:
        finish(made.broker)


def test_limits_of_a_user_and_what_a_reload_makes_of_them(
    limited: Limited, clients: Callable[..., RawClient]
) -> None:
    broker = limited.broker
    first, _ = (clients(broker, name, 5, user_name="ada") for name in "ab")
    clients(broker, "c", 5, connect=False).connect(expect=0x97, user_name="ada")
    clients(broker, "d", 4, connect=False).connect(expect=3, user_name="ada")
    clients(broker, "e", 4, user_name="bob").ping()
    for number in range(4):
        first.send(b"\x82\x08\0\1\0\0\2t%d\1" % number)
        assert first.expect(SUBACK).codes[-1] == (1 if number < 3 else 0x97)
    limited.write("user_connections_max = 3", 'over_rate = "disconnect"', "user_messages_per_s = 50")
    limited.reload("reloaded")
    third = clients(broker, "c", 5, user_name="ada")
    clients(broker, "d", 5, connect=False).connect(expect=0x97, user_name="ada")
    third.send(
        b"\x30\4\0\1t\0" * 200
    )  # at once: whoever writes to a closed connection loses what it was told before
    assert third.expect(DISCONNECT).reason == 0x96
    broker.wait_for_line("too many messages.*user_messages_per_s")
    limited.write("user_connections_max = -3")
    limited.reload("not reloaded")
    limited.write("connections_max = 100", "user_connections_max = 3")
    limited.reload(r"need a restart.*limits\.connections_max")
    first.ping()
