"""What /metrics tells of connections between workers."""

from __future__ import annotations

import asyncio
from pathlib import Path

from prometheus_client.registry import CollectorRegistry

from headrace.peers.handover import HandOver
from headrace.peers.handover_metrics import HandOverCollector
from machine import Machine, connect_packet, run, until


def told(handover: HandOver | None, name: str, **labels: str) -> float | None:
    registry = CollectorRegistry()
    registry.register(HandOverCollector(handover))
    return registry.get_sample_value(f"headrace_worker_{name}", labels)


def test_connections_that_go_and_those_that_wait_are_told(tmp_path: Path) -> None:
    async def body() -> None:
        machine = Machine(tmp_path, ["tcp://127.0.0.1:0"])
        first, second = machine.workers
        await first.open()
        reader, writer = await asyncio.open_connection("127.0.0.1", int(first.ports[0]))
        writer.write(connect_packet(machine.name_at(1)))
        await until(lambda: told(first.handover, "handover_waiting") == 1)
        await second.open()
        assert await reader.readexactly(4) == bytes([0x20, 2, 0, 0])
        assert told(first.handover, "handed_over_total", way="passed") == 1
        assert told(first.handover, "handed_over_total", way="relayed") == 0
        assert told(first.handover, "handover_waiting") == 0
        assert told(first.handover, "handover_refused_total") == 0
        channel = None
        while channel is None:
            channel = first.peers.open_channel(1, b"nothing")
            await asyncio.sleep(0.01)
        await until(lambda: told(second.handover, "arrivals_refused_total", reason="channel") == 1)
        assert told(second.handover, "arrivals_refused_total", reason="cut_off") == 0
        writer.close()
        await machine.close()

    run(body)


def test_a_worker_alone_tells_zeros() -> None:
    assert told(None, "handed_over_total", way="passed") == 0
    assert told(None, "handover_waiting") == 0
    assert told(None, "arrivals_refused_total", reason="channel") == 0
