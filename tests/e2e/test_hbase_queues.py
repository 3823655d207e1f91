"""Long backlogs in a real HBase: nothing acknowledged is lost, whatever is killed, and all of it comes back in order."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker_process import BrokerProcess, wait_until
from e2e.producer import Producer
from e2e.test_stored_queues import TIGHT, deliver, figure, numbers_of, read_all, shrink, subscribe_and_leave
from hbase_server import HBaseServer

pytestmark = [
    pytest.mark.hbase,
    pytest.mark.time_limit(600),
    pytest.mark.skipif("__import__('broker_process').UNDER_AUDIT != 'headrace'"),
]
Brokers = Callable[..., BrokerProcess]
WITHIN_S = 120.0


def stored_in(hbase: HBaseServer, name: str) -> dict[str, object]:
    return TIGHT | {"queues.device": f"hbase://{hbase.address}/e{name[-40:]}?regions=2"}


def test_what_only_hbase_has_comes_back_in_order_also_when_the_broker_was_killed(
    brokers: Brokers, hbase: HBaseServer, name: str
) -> None:
    broker = brokers(stored_in(hbase, name)).start()
    subscribe_and_leave(broker, "meter/1", "t/#")
    deliver(broker, "t/a", 0, 500)
    wait_until(lambda: figure(broker, "store_let_go_total") >= 500, "let go of by the journal", WITHIN_S)
    shrink(broker)
    broker.crash()
    deliver(broker, "t/a", 500, 100)
    broker.crash()
    assert numbers_of(broker, "meter/1", 600) == list(range(600))
    assert figure(broker, "store_read_total") > 0
    assert figure(broker, "store_forgotten_total") == 0
    wait_until(lambda: broker.get("/readyz").body.strip() == "ready", "HBase is used", WITHIN_S)


def test_a_gateway_and_an_hbase_that_are_killed_under_load_lose_nothing_acknowledged(
    brokers: Brokers, hbase: HBaseServer, name: str
) -> None:
    broker = brokers(stored_in(hbase, name)).start()
    wait_until(lambda: figure(broker, "store_usable") == 1, "it is used", WITHIN_S)
    subscribe_and_leave(broker, "meter", "load/#")
    producers = [Producer(broker, f"p{n}", f"load/{n}", rate=60, padding=64) for n in range(2)]
    for producer in producers:
        producer.start()
    for kill in (hbase.kill_gateway, hbase.kill_engine):
        for producer in producers:
            producer.wait_acked(len(producer.acked) + 200)
        kill()
        wait_until(lambda: figure(broker, "store_usable") == 0, "it is seen to be away", WITHIN_S)
        assert "ready, degraded: hbase://" in broker.get("/readyz").body
        for producer in producers:
            producer.wait_acked(len(producer.acked) + 100)
        hbase.start()
        wait_until(lambda: figure(broker, "store_usable") == 1, "it is used again", WITHIN_S)
    wait_until(lambda: figure(broker, "store_let_go_total") > 0, "let go of by the journal", WITHIN_S)
    for producer in producers:
        producer.finish()
    for producer in producers:
        producer.join(WITHIN_S)
        assert producer.error is None
    ledger = read_all(broker, "meter", producers)
    assert ledger.missing(producers) == {}
    assert ledger.faults(producers) == []
    assert figure(broker, "store_forgotten_total") == 0
