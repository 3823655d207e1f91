"""What a long backlog in HBase or Kafka costs, and how fast it comes back.

    PYTHONPATH=tests python -m benchmarks.far_stores hbase|kafka [--clients 1000] [--each 100] [--waiting 10000]
        [--record]

A broker and the engine on this machine; CPU time is the broker's, all threads. Both figures are those of
`benchmarks.stores`:

- `put`: `clients` are away and have `each` messages of 256 bytes in the journal, while the engine cannot be reached. From
  the moment at which it is used: messages a second until all of them are put, messages for a CPU-second of the broker,
  and calls of the engine for each;
- `returned`: a client comes back to `waiting` messages that only the engine has: milliseconds to the first one, and
  messages a second until all have come and are acknowledged.

Wanted of HBase (exit 1 where it is missed): 20 000 messages a second put. A topic a client is for a few applications:
take few clients for Kafka. On a machine with other work the times are a floor.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from benchmarks.record import parser_of, show
from benchmarks.stores import DEADLINE_S, SETTINGS, TIGHT, cpu_s, figure, leave_all, publish, returned
from broker_process import BrokerProcess, make_broker, wait_until
from hbase_server import HBaseServer, hbase_server
from kafka_server import KafkaServer, kafka_server

WANTED_PER_S = {"hbase": 20_000}
Away = Callable[[], AbstractContextManager[None]]


def put(broker: BrokerProcess, away: Away, clients: int, each: int) -> dict[str, float]:
    """Measure what a message that is put costs; the engine is away until all of them lie in the journal."""
    names = [f"c{number}" for number in range(clients)]
    total = clients * each
    with away():
        broker.start()
        leave_all(broker, names)
        publish(broker, [f"d/{name}" for _ in range(each) for name in names])
        broker.restart()
    wait_until(lambda: figure(broker, "store_usable") == 1, "the engine is used", DEADLINE_S)
    began, cpu_before = time.perf_counter(), cpu_s(broker)
    wait_until(lambda: figure(broker, "store_put_total") >= total, "all of them are put", DEADLINE_S)
    taken_s, cpu_taken_s = time.perf_counter() - began, cpu_s(broker) - cpu_before
    return {
        "messages": total,
        "per_s": round(total / taken_s),
        "per_cpu_s": round(total / max(cpu_taken_s, 0.01)),
        "commands": round(figure(broker, "store_commands_total") / total, 3),
    }


@contextlib.contextmanager
def hbase_away(server: HBaseServer) -> Iterator[None]:
    """Let HBase be without its gateway until the block ends."""
    server.kill_gateway()
    yield
    server.start()


@contextlib.contextmanager
def engine_of(kind: str) -> Iterator[tuple[str, Away]]:
    """An engine until the block ends: the address of its stores, and what has it away."""
    if kind == "hbase":
        with hbase_server() as hbase:
            yield f"hbase://{hbase.address}/bench", lambda: hbase_away(hbase)
    else:
        with kafka_server() as kafka:
            kafka.warm_up()
            yield f"kafka://{kafka.address}/bench", lambda: kafka_away(kafka)


@contextlib.contextmanager
def kafka_away(server: KafkaServer) -> Iterator[None]:
    """Let there be no Kafka until the block ends."""
    server.kill()
    yield
    server.start()


def measured(kind: str, clients: int, each: int, waiting: int) -> dict[str, Any]:
    """Measure both, each on a directory and under a prefix of its own."""
    found: dict[str, Any] = {"machine": machine(), "engine": kind}
    with tempfile.TemporaryDirectory(prefix="headrace-stores-") as folder, engine_of(kind) as (address, away):

        def run(name: str, settings: dict[str, object], work: Callable[[BrokerProcess], Any]) -> Any:
            broker = make_broker(Path(folder) / name, settings | {"queues.device": f"{address}-{name}"})
            try:
                return work(broker)
            finally:
                broker.kill()
                broker.end()

        found["put"] = run("put", SETTINGS, lambda broker: put(broker, away, clients, each))
        found["returned"] = run("returned", TIGHT, lambda broker: returned(broker, waiting))
    return found


def missed(found: dict[str, Any]) -> list[str]:
    """Return which of the figures that are wanted are missed."""
    wanted = WANTED_PER_S.get(found["engine"], 0)
    return [f"puts below {wanted} a second"] if found["put"]["per_s"] < wanted else []


def main() -> int:
    parser = parser_of("far_stores", __doc__)
    parser.add_argument("engine", choices=["hbase", "kafka"])
    parser.add_argument("--clients", type=int, default=1000, help="that are away")
    parser.add_argument("--each", type=int, default=100, help="messages that wait for each of them")
    parser.add_argument("--waiting", type=int, default=10_000, help="messages of the one that returns")
    options = parser.parse_args()
    found = measured(options.engine, options.clients, options.each, options.waiting)
    found["missed"] = missed(found)
    show(found, f"stores-{options.engine}" if options.record else "")
    return 1 if found["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
