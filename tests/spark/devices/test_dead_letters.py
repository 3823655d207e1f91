"""What a task says of rows that cannot be sent; the table is tested with the job."""

from __future__ import annotations

import pyarrow as pa

from broker_process import BrokerProcess
from headrace_spark.base.broker_address import BrokerAddress
from headrace_spark.devices.dead_letters import Sender
from headrace_spark.devices.sink import SinkOptions
from spark.device_clients import received, subscribe


def test_a_task_sends_the_others(broker: BrokerProcess) -> None:
    subscribe(broker, "device-letters", "letters/#")
    rows = {
        "topic": ["letters/a", "letters/#", "$SYS/x", "letters/a"],
        "payload": [b"0", b"1", b"2", b"3"],
        "producer": ["one", "one", "two", "two"],
        "sequence": [5, 6, 0, 1],
    }
    sender = Sender(SinkOptions(BrokerAddress(f"tcp://127.0.0.1:{broker.port}"), "unused", 30.0, 0.0))
    [aside] = sender(iter([pa.RecordBatch.from_pydict(rows)]))
    assert aside.to_pylist() == [
        {"producer": "one", "sequence": 6, "reason": "that is no topic name"},
        {"producer": "two", "sequence": 0, "reason": "Not authorized (0x87)"},
    ]
    assert [packet.payload for packet in received(broker, "device-letters")] == [b"0", b"3"]
