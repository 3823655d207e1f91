"""The stores that a worker is connected to."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import pytest

from harness import Harness
from headrace.config import InvalidKey, QueueRuleConfig, QueuesConfig
from headrace.core.state.session import APPLICATION, DEVICE
from headrace.core.storing.storing import ALWAYS
from headrace.errors import ConfigError
from headrace.node.stores import OpenStores

UUID = "11111111-2222-3333-4444-555555555555"
NOWHERE = "redis://user:s3cret@127.0.0.1:1,127.0.0.1:2"


def with_stores(queues: QueuesConfig, look: Callable[[OpenStores], None]) -> None:
    """Look at the stores of a configuration, on a loop."""

    async def run() -> None:
        raised: list[Exception] = []
        stores = OpenStores(queues, raised.append)
        try:
            stores.open()
            look(stores)
        finally:
            stores.close()
        assert raised == []

    asyncio.run(run())


def test_without_a_store_nothing_is_opened_and_nothing_changes() -> None:
    def look(stores: OpenStores) -> None:
        assert not stores
        assert stores.trouble == ""
        assert stores.figures() == []
        harness = Harness()
        reader = harness.broker.delivery.reader
        assert stores.lend(harness.broker, UUID) == []
        assert harness.broker.stored is None
        assert harness.broker.delivery.reader is reader
        assert harness.broker.delivery.stores is None

    with_stores(QueuesConfig(), look)


def test_two_types_with_one_address_share_a_store_that_is_named_without_its_password() -> None:
    def look(stores: OpenStores) -> None:
        assert stores
        assert stores.window_ms == 1500
        harness = Harness()
        shares = stores.lend(harness.broker, UUID)
        assert len(shares) == 1
        assert harness.broker.stored is not None
        (figures,) = stores.figures()
        assert figures.name == "redis://127.0.0.1:1,127.0.0.1:2"
        assert len(figures.counters) == 1
        assert not figures.usable
        assert stores.trouble.startswith("redis://127.0.0.1:1,127.0.0.1:2: ")
        assert "s3cret" not in stores.trouble
        for share in shares:
            share.close()

    with_stores(QueuesConfig(device=NOWHERE, application=NOWHERE, window_s=1.5), look)


def test_streams_that_an_owner_begins_have_names_of_its_own() -> None:
    def look(stores: OpenStores) -> None:
        for owner in (0, 5, 6):
            broker = Harness().broker
            stores.lend(broker, UUID, owner)
            assert broker.stored is not None
            assert [storing._least for _, storing in broker.stored.storings] == [owner << 20]

    with_stores(QueuesConfig(device=NOWHERE), look)


def test_rules_say_which_session_has_which_store() -> None:
    rules = (
        QueueRuleConfig(store="journal", tenant="quiet"),
        QueueRuleConfig(store="redis://127.0.0.1:3", clients="meter-*"),
    )

    def look(stores: OpenStores) -> None:
        harness = Harness()
        assert len(stores.lend(harness.broker, UUID)) == 2
        assert [one.name for one in stores.figures()] == [
            "redis://127.0.0.1:1,127.0.0.1:2",
            "redis://127.0.0.1:3",
        ]
        chosen = stores.choosing
        first = chosen.store_of("default", DEVICE, "x")
        second = chosen.store_of("default", APPLICATION, "meter-1")
        assert first
        assert second not in (0, first)
        assert chosen.store_of("quiet", DEVICE, "meter-1") == 0
        assert chosen.store_of("default", APPLICATION, "x") == 0
        assert set(chosen.types) == {DEVICE, APPLICATION}

    with_stores(QueuesConfig(device=NOWHERE, rules=rules), look)


def test_the_window_may_never_end() -> None:
    def look(stores: OpenStores) -> None:
        assert stores.window_ms == ALWAYS

    with_stores(QueuesConfig(device=NOWHERE, window_s="always"), look)
    with_stores(QueuesConfig(device=NOWHERE, window_s=math.inf), look)


def test_a_file_that_cannot_be_read_is_named_with_its_key() -> None:
    with pytest.raises(InvalidKey, match=r"^queues\.application: password_file"):
        with_stores(QueuesConfig(application="redis://h?password_file=/nowhere/x"), print)


def test_a_store_that_alone_has_something_cannot_be_left_out() -> None:
    def look(stores: OpenStores) -> None:
        harness = Harness()
        client = harness.client("sub")
        client.subscribe("t")
        client.lose()
        harness.client("pub", clean=True).publish("t", b"x")
        session = harness.broker.fold.tenant("default").sessions["sub"]
        rows = session.outbound().stored_rows()
        rows.stored(1, 1, 1)
        harness.broker.fold.in_stores[session.incarnation] = session
        assert stores.lend(harness.broker, UUID) == [], "the journal has it too"
        rows.note_let_go(1)
        with pytest.raises(ConfigError, match=r"^queues\.device: .*'sub'"):
            stores.lend(harness.broker, UUID)

    with_stores(QueuesConfig(), look)
